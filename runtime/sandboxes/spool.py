"""The driver's end of host tools: which calls wait in a sandbox's spool, and their answers. See `tool_server.py`.

Runs where the spool is: in the driver (`local`), or in an attendant as the container's root (`docker`), where `calls`
is the agent's folder and all else is not. So nothing in `calls` is trusted: a link is not followed, what is no file or
too long is no call, and a call without the token of one of the offers is answered with a refusal and goes no further.

A driver that lost its run may still write here. It can do no harm (I1): an offer has a name of its own, which only the
agent that was launched with it knows the token of; and an answer is made of the stored result of its call, so whoever
writes it writes the same bytes.
"""

# ruff: noqa: PTH103, PTH108, PTH110, PTH113, PTH123, PTH208
from __future__ import annotations

import json
import os
import stat
from contextlib import suppress

from runtime.sandboxes.tool_server import CALL_BYTES, LONG_NAME, NAME_CHARACTERS, digest, fault, write_whole

TYPE_CHECKING = False  # as in `tool_server.py`
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    Json = dict[str, Any]

CALLS, ANSWERS, OFFERS = "calls", "answers", "offers"
MOST = 16  # calls that are looked at in one go: an agent may write any number
MOST_BYTES = CALL_BYTES  # once as much is found, the rest waits: what is told in one go is less than twice that
MOST_DEEP = 100  # real arguments nest to about 10; far below what ends the stack of whoever reads or writes them next
REFUSED = "This call does not have the token of this run."
TOO_DEEP = f"The arguments are nested deeper than {MOST_DEEP}."
ID_CHARACTERS = 32


def make(path: str) -> None:
    """Make a spool of our own user's."""
    for name in (CALLS, ANSWERS, OFFERS):
        os.makedirs(f"{path}/{name}", mode=0o700, exist_ok=True)


def offer(path: str, name: str, data: bytes) -> None:
    """Write an offer. Raises OSError."""
    write_whole(f"{path}/{OFFERS}", name, data)


def answer(path: str, id: str, data: bytes) -> None:
    """Write the answer of a call, unless it has one. Raises OSError."""
    if _is_id(id) and not os.path.exists(f"{path}/{ANSWERS}/{id}"):
        write_whole(f"{path}/{ANSWERS}", id, data)


def waiting(path: str, known: Collection[str]) -> list[Json]:
    """Return calls without an answer that are not `known`, as `{id, tool, arguments}`: some of them, if there are any.
    Raises OSError.

    Answers whose calls are gone have been read, and are removed."""
    answers = set(filter(_is_id, os.listdir(f"{path}/{ANSWERS}")))
    calls = set(filter(_is_id, os.listdir(f"{path}/{CALLS}")))  # after the answers: what is gone here was answered
    for id in answers - calls:
        with suppress(OSError):
            os.unlink(f"{path}/{ANSWERS}/{id}")
    found: list[Json] = []
    left = MOST_BYTES
    for id in sorted(calls - answers - set(known))[:MOST]:
        call, size = _read(path, id)
        if call is not None:
            found.append(call)
            left -= size
        if left <= 0:
            break
    return found


def _is_id(name: str) -> bool:
    return len(name) == ID_CHARACTERS and all(character in "0123456789abcdef" for character in name)


def _read(path: str, id: str) -> tuple[Json | None, int]:
    """Return a call, None if it is none, which is then answered; and how many bytes it had."""
    data = b""
    with suppress(OSError):
        fd = os.open(f"{path}/{CALLS}/{id}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                data = file.read(CALL_BYTES + 1)
    refusal = REFUSED
    try:
        call = json.loads(data) if len(data) <= CALL_BYTES else None
        if isinstance(call, dict) and _offered(path, call.pop("token", None)):
            tool, arguments = call.get("tool"), call.get("arguments")
            if isinstance(tool, str) and isinstance(arguments, dict):
                refusal = LONG_NAME if len(tool) > NAME_CHARACTERS else TOO_DEEP if _too_deep(arguments) else ""
                if not refusal:
                    return {"id": id, "tool": tool, "arguments": arguments}, len(data)
    except RecursionError:
        refusal = TOO_DEEP
    except ValueError:
        pass  # no JSON
    with suppress(OSError):
        answer(path, id, json.dumps(fault(refusal)).encode())
    return None, len(data)


def _too_deep(arguments: Json) -> bool:
    level: list[Any] = [arguments]
    for _ in range(MOST_DEEP):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
    return bool(level)


def _offered(path: str, token: object) -> bool:
    return isinstance(token, str) and os.path.isfile(f"{path}/{OFFERS}/{digest(token)}")
