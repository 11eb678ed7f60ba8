"""One file's part of a diff, as `git diff` writes it and `git apply` reads it.

Nothing here takes longer than the text is long: where two texts are so different that comparing them would, the old
lines are taken out and the new ones put in.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate
from typing import NamedTuple

from runtime.sandboxes.baseline import Entry

MAX_WORK = 2_000_000  # pairs of equal lines that are looked at, of what is not the beginning or end of both
CONTEXT = 3
_QUOTED = {0x22: b'\\"', 0x5C: b"\\\\", 0x09: b"\\t", 0x0A: b"\\n", 0x0D: b"\\r"}
_PLAIN = frozenset(range(0x20, 0x7F)) - _QUOTED.keys()
Step = tuple[str, int, int, int, int]


class _TooDifferent(Exception):
    pass


class _Matcher(SequenceMatcher[bytes]):
    """Raises _TooDifferent rather than do more than MAX_WORK: of few different lines it is cubic."""

    def __init__(self, ours: Sequence[bytes], theirs: Sequence[bytes]) -> None:
        super().__init__(None, ours, theirs, autojunk=False)
        equal = Counter(theirs)
        self._pairs = [0, *accumulate(1 + equal[line] for line in ours)]
        self._work = 0

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        self._work += self._pairs[-1 if ahi is None else ahi] - self._pairs[alo]
        if self._work > MAX_WORK:
            raise _TooDifferent
        return super().find_longest_match(alo, ahi, blo, bhi)


class Version(NamedTuple):
    """A file before or after. `text` is None for what is not shown: no text, or too large."""

    mode: int
    text: bytes | None

    @property
    def git_mode(self) -> bytes:
        """Return git's word for what it is."""
        if stat.S_ISLNK(self.mode):
            return b"120000"
        return b"100755" if self.mode & stat.S_IXUSR else b"100644"


def version(entry: Entry) -> Version:
    """Return a file or link as a diff shows it."""
    return Version(entry.mode, entry.read() if entry.target is None else os.fsencode(entry.target))


def entry_diff(old: Entry | None, new: Entry | None) -> Iterator[bytes]:
    """Yield the lines of what became of the file or link of one path."""
    entry = new or old
    if entry is not None:
        before, after = (None if one is None else version(one) for one in (old, new))
        yield from file_diff(os.fsencode(entry.path), before, after)


def file_diff(path: bytes, old: Version | None, new: Version | None) -> Iterator[bytes]:
    """Yield the lines of one file's change; one that became a link, or was one, as two files."""
    if old is not None and new is not None and stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        yield from file_diff(path, old, None)
        yield from file_diff(path, None, new)
        return
    before, after = _quoted(b"a/" + path), _quoted(b"b/" + path)
    yield b"diff --git %s %s\n" % (before, after)
    if old is None and new is not None:
        yield b"new file mode %s\n" % new.git_mode
    elif new is None and old is not None:
        yield b"deleted file mode %s\n" % old.git_mode
    elif old is not None and new is not None and old.git_mode != new.git_mode:
        yield b"old mode %s\nnew mode %s\n" % (old.git_mode, new.git_mode)
    ours = b"" if old is None else old.text
    theirs = b"" if new is None else new.text
    names = (b"/dev/null" if old is None else before, b"/dev/null" if new is None else after)
    if ours is None or theirs is None:
        yield b"Binary files %s and %s differ\n" % names
    elif ours != theirs:
        yield b"--- %s\n+++ %s\n" % tuple(name + (b"\t" if b" " in name else b"") for name in names)
        yield from _hunks(_lines(ours), _lines(theirs))


def shown(path: str) -> str:
    """Return a path for people and JSON: a byte that is no UTF-8 as a backslash, x and two digits."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _hunks(ours: Sequence[bytes], theirs: Sequence[bytes]) -> Iterator[bytes]:
    for group in _groups(_steps(ours, theirs)):
        first, last = group[0], group[-1]
        yield b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4]))
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from (_line(b" ", line) for line in ours[i1:i2])
                continue
            yield from (_line(b"-", line) for line in ours[i1:i2])
            yield from (_line(b"+", line) for line in theirs[j1:j2])


def _groups(steps: list[Step]) -> Iterator[list[Step]]:
    """Yield the steps of each hunk: changes, with CONTEXT lines around them and between those that are near."""
    group: list[Step] = []
    for at, (kind, i1, i2, j1, j2) in enumerate(steps):
        if kind != "equal":
            group.append((kind, i1, i2, j1, j2))
            continue
        after = min(CONTEXT, i2 - i1) if at else 0
        before = min(CONTEXT, i2 - i1) if at < len(steps) - 1 else 0
        if at and before and i2 - i1 <= 2 * CONTEXT:
            group.append((kind, i1, i2, j1, j2))
            continue
        if at:
            yield [*group, (kind, i1, i1 + after, j1, j1 + after)]
        group = [(kind, i2 - before, i2, j2 - before, j2)]
    if any(step[0] != "equal" for step in group):
        yield group


def _steps(ours: Sequence[bytes], theirs: Sequence[bytes]) -> list[Step]:
    """Return what makes the one of the other, in the words of `difflib`."""
    shorter = min(len(ours), len(theirs))
    head = next((at for at in range(shorter) if ours[at] != theirs[at]), shorter)
    tail = next((at for at in range(shorter - head) if ours[-1 - at] != theirs[-1 - at]), shorter - head)
    mine, its = ours[head : len(ours) - tail], theirs[head : len(theirs) - tail]
    steps: list[Step] = [("equal", 0, head, 0, head)] if head else []
    try:
        found = _Matcher(mine, its).get_opcodes() if mine and its else []
        steps += [(kind, head + i1, head + i2, head + j1, head + j2) for kind, i1, i2, j1, j2 in found]
    except _TooDifferent:
        found = []
    if not found and (mine or its):
        steps.append(("replace", head, head + len(mine), head, head + len(its)))
    if tail:
        steps.append(("equal", len(ours) - tail, len(ours), len(theirs) - tail, len(theirs)))
    return steps


def _lines(text: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in text.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _line(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)


def _quoted(name: bytes) -> bytes:
    """Return a path as git quotes it: no name begins a line of its own, or looks like another one."""
    if all(byte in _PLAIN for byte in name):
        return name
    kept = (_QUOTED.get(byte) or (bytes((byte,)) if byte in _PLAIN else b"\\%03o" % byte) for byte in name)
    return b'"' + b"".join(kept) + b'"'
