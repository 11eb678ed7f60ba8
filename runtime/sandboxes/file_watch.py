"""What an agent does to its workspace's files, while it does it: told again and again, by comparing two walks.

The first look compares with the baseline, so a successor of a driver sees all that happened since the launch; each
change has a key that follows from what the file is like now, by which the log knows what it has been told already.
What came and went between two looks is not seen. No inotify: it needs a watch for each folder, loses events without
saying which, and is not the agent's to exhaust.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from runtime.sandboxes.baseline import FOLDER, Baseline, Entry, TooMuch, merged, same, walk
from runtime.sandboxes.diffing import Version, entry_diff, file_diff, shown

MAX_FILES = 20_000  # of a larger workspace nothing is told: a driver looks at all of it again and again
NAMES_BYTES = 8 << 20  # nor of one whose paths are longer than this together: they are held
MAX_CHANGES = 500  # of one look; the next one tells more
SETTLE_NS = 200_000_000
DIFF_BYTES = 64 << 10
Seen = tuple[object, ...]
Facts = dict[str, Any]


class FileWatch:
    """One driver's watch of one workspace. Blocks."""

    def __init__(
        self,
        workspace: str,
        baseline: str,
        *,
        diffs: bool,
        eyes: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`eyes`: in which the workspace is looked at."""
        self._workspace = workspace
        self._baseline = baseline
        self._diffs = diffs
        self._eyes = eyes
        self._launch: Baseline | None = None  # open for diffs
        self._known: dict[str, Seen] | None = None
        self._waiting: set[str] = set()
        self._first: dict[str, Seen] = {}  # of what was there at the launch, and has not been deleted yet
        self._before: dict[str, tuple[int, tuple[int, int] | None]] = {}  # mode and content; for diffs alone

    def look(self, *, settled: bool = True) -> list[Facts]:
        """Return what changed since the last look, at most MAX_CHANGES of it: the facts of `runtime.ports.FileChange`.
        Unless `settled`, what changed within SETTLE_NS waits for the next look, once. Raises OSError, TooMuch."""
        if self._known is None:
            self._known = self._begin()
            self._first = dict(self._known)
        with self._eyes():
            root = os.open(self._workspace, FOLDER)
            try:
                return self._compare(root, self._known, 0 if settled else SETTLE_NS)
            finally:
                os.close(root)

    def whole(self, max_bytes: int, within_s: float) -> Facts:
        """Return how all differs from what it was at the launch: the facts of `runtime.ports.WholeDiff`. Nothing of a
        look is used or changed, so one may be under way. Raises OSError, TooMuch."""
        deadline = time.monotonic() + within_s
        launch = self._opened()
        with closing(launch), self._eyes():
            root = os.open(self._workspace, FOLDER)
            try:
                parts, whole = _parts(merged(_told(launch.entries()), _told(walk(root))), max_bytes, deadline)
            finally:
                os.close(root)
        return {"diff": b"".join(parts).decode("utf-8", "replace"), "truncated": not whole}

    def _opened(self) -> Baseline:
        try:
            return Baseline(self._baseline)
        except (OSError, ValueError, zlib.error) as error:
            raise TooMuch("nobody knows how it began") from error

    def _begin(self) -> dict[str, Seen]:
        """Return what there was at the launch. Raises TooMuch where that is not known."""
        baseline = self._opened()
        try:
            known = {}
            for entry in _told(baseline.entries()):
                known[entry.path] = _seen(entry)
                if self._diffs:
                    self._before[entry.path] = (entry.mode, entry.kept)
            return known
        finally:
            if self._diffs:
                self._launch = baseline
            else:
                baseline.close()

    def _compare(self, root: int, known: dict[str, Seen], settle_ns: int) -> list[Facts]:
        changes: list[Facts] = []
        gone = set(known)
        waited, self._waiting = self._waiting, set()
        for entry in _told(walk(root)):
            seen, before = _seen(entry), known.get(entry.path)
            gone.discard(entry.path)
            if seen != before and time.time_ns() - entry.seen[3] < settle_ns and entry.path not in waited:
                self._waiting.add(entry.path)
                continue
            if seen != before and len(changes) < MAX_CHANGES:
                known[entry.path] = seen
                at_ms = entry.seen[3] // 1_000_000
                changes.append(
                    {
                        "type": "create" if before is None else "change",
                        "path": shown(entry.path),
                        "timestamp": at_ms,
                        "key": _key(entry.path, seen),
                        "diff": self._diff(entry) if self._diffs else None,
                    }
                )
        for path in sorted(gone)[: MAX_CHANGES - len(changes)]:
            was = known.pop(path)
            was = self._first.pop(path, was)  # by this a successor knows it too, whatever came between
            now_ms = time.time_ns() // 1_000_000
            gone_key = _key(path, was) + ":gone"
            changes.append({"type": "delete", "path": shown(path), "timestamp": now_ms, "key": gone_key, "diff": None})
        return changes

    def _diff(self, entry: Entry) -> str | None:
        """Return how a text differs from what it was at the launch; None if that cannot be said, or is long."""
        old = None
        if entry.path in self._before:
            mode, kept = self._before[entry.path]
            if kept is None or self._launch is None:
                return None
            try:
                old = Version(mode, zlib.decompress(self._launch.stored(*kept)))
            except (OSError, zlib.error):
                return None
        text = entry.read()
        if text is None or len(text) > DIFF_BYTES:
            return None
        lines = b"".join(file_diff(os.fsencode(entry.path), old, Version(entry.mode, text)))
        return lines.decode("utf-8", "replace") if len(lines) <= DIFF_BYTES else None


def _parts(
    pairs: Iterator[tuple[Entry | None, Entry | None]], max_bytes: int, deadline: float
) -> tuple[list[bytes], bool]:
    """Return the parts of a diff that fit, each one file's, and whether those are all."""
    parts: list[bytes] = []
    whole = True
    for old, new in pairs:
        if time.monotonic() > deadline:
            return parts, False
        if old is not None and new is not None and same(old, new):
            continue
        part = _at_most(entry_diff(old, new), max_bytes)
        if part is None:
            whole = False
            continue
        parts.append(part)
        max_bytes -= len(part)
    return parts, whole


def _at_most(lines: Iterator[bytes], max_bytes: int) -> bytes | None:
    """Return the lines together; None if they are longer."""
    taken, size = [], 0
    for line in lines:
        size += len(line)
        if size > max_bytes:
            return None
        taken.append(line)
    return b"".join(taken)


def _told(entries: Iterator[Entry]) -> Iterator[Entry]:
    names = 0
    for count, entry in enumerate(entries):
        if count >= MAX_FILES:
            raise TooMuch(f"it holds over {MAX_FILES} files and folders")
        names += len(entry.path) + len(entry.target or "")
        if names > NAMES_BYTES:
            raise TooMuch(f"its names are over {NAMES_BYTES} bytes")
        if entry.told:
            yield entry


def _seen(entry: Entry) -> Seen:
    return (entry.mode, entry.size, *entry.seen[1:], entry.target)


def _key(path: str, seen: Seen) -> str:
    told = ".".join(format(number, "x") for number in seen if isinstance(number, int))
    return f"file:{shown(path)}:{told}"  # a link that leads elsewhere is another file
