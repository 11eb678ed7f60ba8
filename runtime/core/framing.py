"""Cut a journal's bytes into lines: the same lines, at the same positions, however the bytes came.

A line ends at byte 0x0A and nowhere else; 0x0D stays in it. Positions count bytes from the start of the journal, so a
line's end is where a reader may resume. What a line's bytes mean, invalid UTF-8 included, is the translators' matter.

The hot path makes no object for a line but its bytes and its position: a `Framed` holds them in two lists side by side.
A line over the limit is counted and let go while it comes; its place in the lists is kept by empty bytes, and `skipped`
says what was there.
"""

from __future__ import annotations

from itertools import accumulate, count
from operator import add
from typing import NamedTuple

_NEWLINE = b"\n"


class SkippedLine(NamedTuple):
    """A line over the limit: `size` bytes that began at `position`, without the newline."""

    position: int
    size: int


class Framed(NamedTuple):
    """Lines in order: `lines[i]` without its newline, `ends[i]` the position after the newline.

    `skipped` says of which lines, by their end, only the size is known. `torn`: the last line has no newline, and its
    end is the end of the bytes."""

    lines: list[bytes]
    ends: list[int]
    skipped: dict[int, SkippedLine]
    torn: bool = False


class Framer:
    """Frames one stream of bytes that begins at position `start`, itself the start of a line.

    Holds at most `max_line_bytes` (at least 1) of an unfinished line, and the time for a line is linear in its length
    however small the pieces are."""

    __slots__ = ("_held", "_held_start", "_lost", "_max")

    def __init__(self, start: int, max_line_bytes: int) -> None:
        self._held_start = start  # of the unfinished line
        self._held = bytearray()
        self._lost = 0  # bytes of the unfinished line that were let go, since it is over the limit
        self._max = max_line_bytes

    @property
    def line_start(self) -> int:
        """Return the position after the last complete line: where a reader would resume."""
        return self._held_start

    @property
    def position(self) -> int:
        """Return the position after all bytes so far."""
        return self._held_start + self._size

    @property
    def _size(self) -> int:
        return self._lost or len(self._held)

    def feed(self, data: bytes) -> Framed:
        """Return the lines that `data` completes."""
        lines = data.split(_NEWLINE)
        rest = lines.pop()
        if not lines:
            self._hold(rest)
            return Framed([], [], {})
        sizes = list(map(len, lines))
        sizes[0] += self._size
        ends = list(map(add, accumulate(sizes), count(self._held_start + 1)))
        skipped: dict[int, SkippedLine] = {}
        if self._size + len(data) > self._max:
            for index in [index for index, size in enumerate(sizes) if size > self._max]:
                lines[index] = b""
                skipped[ends[index]] = SkippedLine(ends[index] - 1 - sizes[index], sizes[index])
        if self._held and ends[0] not in skipped:
            lines[0] = b"".join((self._held, lines[0]))
        self._begin(ends[-1])
        self._hold(rest)
        return Framed(lines, ends, skipped)

    def finish(self) -> Framed:
        """Return what is left after the last newline as one torn line; nothing if there is nothing."""
        if not self._size:
            return Framed([], [], {})
        end = self.position
        skipped = {end: SkippedLine(self._held_start, self._lost)} if self._lost else {}
        line = bytes(self._held)
        self._begin(end)
        return Framed([line], [end], skipped, torn=True)

    def _begin(self, position: int) -> None:
        self._held_start = position
        self._held.clear()
        self._lost = 0

    def _hold(self, data: bytes) -> None:
        """Keep `data` as more of the unfinished line, or its size alone if the line is over the limit."""
        if self._lost:
            self._lost += len(data)
        elif len(self._held) + len(data) > self._max:
            self._lost = len(self._held) + len(data)
            self._held.clear()
        else:
            self._held += data
