"""Ids and offsets: types with `parse` and `__str__`, so that a bare string is never taken for one.

`RunId` and `ThreadId` are str subclasses: they go through JSON, SQL and Ray as they are, and only `parse` makes one
from outside input.

A client's run id is its owner's: two owners may use the same one and never learn of each other. So everything behind
the gateway (stores, names, actors, sandboxes) knows a run by its key, `owner@runId`, and a thread's folders by
`thread_key`. Of the local owner, who is all there is without tokens, key and id are one.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple, Self

from runtime.errors import InputInvalid

# 1 to 128 of these (design 9). 128 keeps every derived name below the 255 bytes that a file name may have.
_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")
_OWNER = re.compile(r"[A-Za-z0-9._~-]{1,64}")
_OFFSET = re.compile(r"([0-9]{16})_([0-9]{16})")


class _Id(str):
    """An id that was checked once, where it came in."""

    __slots__ = ()
    field = "id"
    code = "id_invalid"
    pattern = _ID
    form = "1 to 128 characters out of A-Z a-z 0-9 . _ : ~ -"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Return `text` as an id. Raises InputInvalid (`code` of the class) for anything else."""
        if not isinstance(text, str) or not cls.pattern.fullmatch(text):
            raise InputInvalid(
                f"{cls.field} must be {cls.form} and is not.",
                code=cls.code,
                field=cls.field,
            )
        return cls(text)


class RunId(_Id):
    """One execution of one agent for one user message; unique for ever."""

    __slots__ = ()
    field = "runId"
    code = "run_id_invalid"


class ThreadId(_Id):
    """A conversation: many runs, at most one active."""

    __slots__ = ()
    field = "threadId"
    code = "thread_id_invalid"


class Owner(_Id):
    """Whom a run belongs to: of tokens, whom they speak for."""

    __slots__ = ()
    field = "owner"
    code = "owner_invalid"
    pattern = _OWNER
    form = "1 to 64 characters out of A-Z a-z 0-9 . _ ~ -"


# Whoever has the machine: all there is without tokens, and the operator where there are some.
LOCAL_OWNER = "local"


class RunKey(_Id):
    """A run over all owners: what the operator calls it, and everything behind the gateway."""

    __slots__ = ()
    field = "runId"
    code = "run_id_invalid"
    pattern = re.compile(rf"(?:{_OWNER.pattern}@)?{_ID.pattern}")
    form = "1 to 128 characters out of A-Z a-z 0-9 . _ : ~ -, or owner@ before them,"


def run_key(owner: str, run_id: str) -> str:
    """Return the key of an owner's run: no two owners share one, since no id holds an @."""
    return run_id if owner == LOCAL_OWNER else f"{owner}@{run_id}"


def shown_run_id(key: str) -> str:
    """Return the run id that the run's owner knows."""
    return key.rpartition("@")[2]


class Offset(NamedTuple):
    """A client's position in a log: after `position` chunks, in generation `generation` (P10)."""

    generation: int
    position: int

    @classmethod
    def parse(cls, text: str) -> Offset | None:
        """Return the offset; None for `now` (the tail). `-1` and all zeros are the start.

        Raises InputInvalid `offset_invalid` for any other text.
        """
        if text == "-1":
            return START
        if text == "now":
            return None
        match = _OFFSET.fullmatch(text)
        if match is None:
            raise InputInvalid(
                "offset must be -1, now, or one that this server sent (16 digits, _, 16 digits).",
                code="offset_invalid",
                field="offset",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.generation:016d}_{self.position:016d}"

    def leads_into(self, generation: int, length: int) -> bool:
        """Return whether it is a position in a log of `length` chunks of that generation. The start is in every log."""
        return self == START or (self.generation == generation and self.position <= length)


START = Offset(0, 0)


def shard_of(run_id: str, shards: int) -> int:
    """Return which of `shards` log shards serves a run: the same on every node and in every version (P12)."""
    return zlib.crc32(run_id.encode()) % shards


def thread_key(owner: str, thread_id: str) -> str:
    """Return what a thread's workspace and agent home are known by: other for each owner. Of LOCAL_OWNER it is the
    thread's id alone, as it was before there were others; no id has a slash."""
    return thread_id if owner == LOCAL_OWNER else f"{owner}/{thread_id}"


def owner_and_thread(key: str) -> tuple[str, str]:
    """Return whose thread `thread_key` made the key of, and its id."""
    owner, slash, thread_id = key.rpartition("/")
    return (owner, thread_id) if slash else (LOCAL_OWNER, key)
