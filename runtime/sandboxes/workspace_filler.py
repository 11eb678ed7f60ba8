"""Fills a new workspace from inside its container, as its root; a program for one driver's connection.

It waits for the lock of `workspace_marks.py`, which it holds to its end, and says how things are: an answer is a line
of JSON, `{"state": "made"}` or `{"state": "new"}`. Of a new one it takes what `container_filling.py` sends:

    {"path": ..., "kind": "folder" | "file" | "link", "mode": ..., "size": ... | "target": ...}
    as many bytes as a file's size
    ...
    {"kind": "end"}

and answers `made`, or an `error` when it is empty again. It is whole with the end alone: a connection that is over
before that, or is silent for as long as the first argument says, leaves a half one, marked as that. A child that is
the agent's user writes it, so all of it is the agent's; an empty line only says that somebody is there.
"""

# ruff: noqa: PTH102, PTH211
from __future__ import annotations

import json
import os
import select
import sys
from contextlib import suppress

from runtime.sandboxes.attendant import BASELINES
from runtime.sandboxes.workspace_marks import Marks, as_agent, empty

TYPE_CHECKING = False  # as in `recorder.py`
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LOOK_S = 0.1
PIECE_BYTES = 1 << 20


class Input:
    """What comes on stdin. Every read raises EOFError at its end, and after too long a silence."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._held = b""

    def facts(self) -> dict[str, Any]:
        """Return the next line."""
        while True:
            line, newline, rest = self._held.partition(b"\n")
            if not newline:
                self._held += self._more()
                continue
            self._held = rest
            if line:
                facts: dict[str, Any] = json.loads(line)
                return facts

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes."""
        while size:
            data = self._held or self._more()
            piece, self._held = data[:size], data[size:]
            size -= len(piece)
            yield piece

    def until(self, marks: Marks) -> None:
        """Return with the lock; nothing but word of the driver comes meanwhile."""
        silent_s = 0.0
        while not marks.take():
            if not select.select([0], [], [], LOOK_S)[0]:
                silent_s += LOOK_S
                if silent_s > self._silence_s:
                    raise EOFError
            else:
                self._held += self._more()
                silent_s = 0.0

    def first(self) -> None:
        """Return when there is something to take."""
        while not self._held.lstrip(b"\n"):
            self._held = self._more()

    def _more(self) -> bytes:
        if not select.select([0], [], [], self._silence_s)[0]:
            raise EOFError("the driver is silent")
        data = os.read(0, PIECE_BYTES)
        if not data:
            raise EOFError("the connection has ended")
        return data


def fill(source: Input, workspace: str) -> None:
    """Take what comes, into an empty workspace; to its end, whatever happens, for the driver listens only then."""
    os.umask(0)
    os.chdir(workspace)
    failure: OSError | None = None
    try:
        empty(".")
    except OSError as error:
        failure = error
    while (facts := source.facts())["kind"] != "end":
        try:
            if failure is None:
                make(facts, source)
                continue
        except OSError as error:
            failure = error
        for _ in source.pieces(facts.pop("size", 0)):
            pass
    if failure is not None:
        with suppress(OSError):
            empty(".")
        raise failure


def make(facts: dict[str, Any], source: Input) -> None:
    """Make one of the files; what is left of its bytes when that fails is its `size` then."""
    path: str = facts["path"]
    if facts["kind"] == "folder":
        os.mkdir(path, facts["mode"])
    elif facts["kind"] == "link":
        os.symlink(facts["target"], path)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, facts["mode"])
        try:
            for piece in source.pieces(facts["size"]):
                facts["size"] -= len(piece)
                left = memoryview(piece)
                while left:
                    left = left[os.write(fd, left) :]
        finally:
            os.close(fd)


def answer(**facts: Any) -> None:
    """Send one answer."""
    sys.stdout.write(json.dumps({**facts, "bytes": 0}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Fill the workspace that the second argument names."""
    source, marks = Input(float(sys.argv[1])), Marks(BASELINES, sys.argv[2])
    with suppress(EOFError, BrokenPipeError):
        source.until(marks)
        if marks.there():
            answer(state="made")
            return
        answer(state="new")
        source.first()
        marks.begin()
        try:
            as_agent(lambda: fill(source, marks.workspace))
            marks.end()
        except OSError as error:
            answer(error=str(error))
        else:
            answer(state="made")


if __name__ == "__main__":
    main()
