"""What a workspace was like when a run began, so that its result can be told from it: taken once, before the launch.

Whoever launches takes it first, and places it by link(2), which fails over one that is there: a driver that stood
still meanwhile places nothing, and a successor finds it or launches for the first time (P15). It lies outside of the
workspace; an isolated agent cannot read it. Nothing about it stops a run: what could not be taken is not there.

    <folder of the thread>/<run>    contents, each compressed; then the entries; then where those begin

An entry is the file's lstat: an agent can set mtime, and cannot set ctime. Contents of text files up to `FILE_BYTES`
are kept for diffs, until `KEPT_BYTES` are used up or `TAKE_S` are over; what the baseline before has is copied from it.
The newest `BASELINES` of a thread are kept, and the next run's beginning is the end of the one before.

The agent made what is walked here: links are never followed, nothing but plain files is read, every folder is opened
from the one that holds it; depth, count and names are bounded (from within a folder longer paths are made than any that
can be opened by its name). This runs in containers too, of little more than the core of the standard library.
"""

# ruff: noqa: PTH101, PTH103, PTH108, PTH123
from __future__ import annotations

import json
import os
import stat
import struct
import time
import weakref
import zlib
from contextlib import suppress
from functools import partial

TYPE_CHECKING = False  # as in `recorder.py`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

MAX_ENTRIES = 200_000
MAX_DEPTH = 200
PATH_BYTES = 4096
NAMES_BYTES = 64 << 20  # of all paths and of what links lead to
FILE_BYTES = 1 << 20
KEPT_BYTES = 32 << 20
TAKE_S = 8.0  # an attendant that takes longer counts as one that does not answer
BASELINES = 8
LEFT_OUT = ".git"  # an agent's own history is no result; of an archive it is a part
BINARY_LOOK = 8000
_TRAILER = struct.Struct(">QQ8s")
_MAGIC = b"OUTLAST1"
_PIECE = 1 << 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = ".new-"


class TooMuch(Exception):
    """The workspace is over a bound, which the message names."""


class Gone(Exception):
    """What is asked for is not there (any more): `code` says what, as `runtime.core.result.WorkspaceGone` has them."""

    def __init__(self, message: str, code: str = "workspace_gone") -> None:
        super().__init__(message)
        self.code = code


class Entry:
    """One file, folder or link. `read` returns a text file's content; None for what is no text, too large or gone."""

    __slots__ = ("kept", "mode", "name", "parent", "path", "read", "seen", "size", "target")

    def __init__(self, path: str, mode: int, size: int, seen: list[int], target: str | None) -> None:
        self.path, self.mode, self.size, self.seen, self.target = path, mode, size, seen, target
        self.parent, self.name = -1, ""  # where a living one is; only while it is the walk's newest
        self.kept: tuple[int, int] | None = None  # of a baseline: where its content is
        self.read: Callable[[], bytes | None] = lambda: None

    @property
    def plain(self) -> bool:
        """Return whether it is a plain file."""
        return stat.S_ISREG(self.mode)

    @property
    def told(self) -> bool:
        """Return whether it is told of in a result: a plain file or a link."""
        return self.plain or stat.S_ISLNK(self.mode)

    @property
    def order(self) -> list[str]:
        """Return what walks are sorted by."""
        return self.path.split("/")


# --- a living workspace


def walk(root: int, *, whole: bool = False) -> Iterator[Entry]:
    """Yield what is in the open folder `root`, sorted; folders before what they hold. `whole`: LEFT_OUT too.

    Raises TooMuch. What vanishes or cannot be read meanwhile is left out."""
    yield from _walk(root, "", _Left(), os.fstat(root).st_dev, whole=whole)


class _Left:
    """What a walk may still see."""

    def __init__(self) -> None:
        self._entries, self._names = MAX_ENTRIES, NAMES_BYTES

    def count(self) -> None:
        """Take one name. Raises TooMuch."""
        self._entries -= 1
        if self._entries < 0:
            raise TooMuch(f"it holds over {MAX_ENTRIES} files and folders")

    def weigh(self, entry: Entry) -> None:
        """Take one entry's names. Raises TooMuch."""
        path = len(os.fsencode(entry.path))
        if path > PATH_BYTES:
            raise TooMuch(f"it holds a path of over {PATH_BYTES} bytes")
        self._names -= path + (0 if entry.target is None else len(os.fsencode(entry.target)))
        if self._names < 0:
            raise TooMuch(f"its names are over {NAMES_BYTES} bytes")


def _walk(folder: int, prefix: str, left: _Left, device: int, *, whole: bool) -> Iterator[Entry]:
    if prefix.count("/") > MAX_DEPTH:
        raise TooMuch(f"it is over {MAX_DEPTH} folders deep")
    names = []
    with os.scandir(folder) as found:
        for one in found:
            left.count()
            names.append(one.name)
    for name in sorted(names):
        if name == LEFT_OUT and not whole:
            continue
        try:
            entry = _look(folder, name, prefix + name)
        except OSError:
            continue
        left.weigh(entry)
        yield entry
        if stat.S_ISDIR(entry.mode) and entry.seen[0] == device:
            try:
                inner = os.open(name, FOLDER, dir_fd=folder)
            except OSError:
                continue
            try:
                yield from _walk(inner, f"{entry.path}/", left, device, whole=whole)
            finally:
                os.close(inner)


def _look(folder: int, name: str, path: str) -> Entry:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else None
    seen = [found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]
    entry = Entry(path, found.st_mode, found.st_size, seen, target)
    entry.parent, entry.name = folder, name
    entry.read = partial(_text, entry)
    return entry


def open_file(entry: Entry) -> int | None:
    """Open a living plain file; None if it is none any more."""
    try:
        fd = os.open(entry.name, _FILE, dir_fd=entry.parent)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _text(entry: Entry) -> bytes | None:
    if not entry.plain or entry.size > FILE_BYTES or (fd := open_file(entry)) is None:
        return None
    with suppress(OSError), open(fd, "rb") as file:
        data = file.read(FILE_BYTES + 1)
        return data if len(data) <= FILE_BYTES and b"\0" not in data[:BINARY_LOOK] else None
    return None


# --- a baseline


class Baseline:
    """One that is there; it is closed when nobody has it any more. Raises OSError and ValueError if it is not whole."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._fd)
        end = os.fstat(self._fd).st_size - _TRAILER.size
        if end < 0:
            raise ValueError("it is cut off")
        self._start, self._size, magic = _TRAILER.unpack(os.pread(self._fd, _TRAILER.size, end))
        if magic != _MAGIC:
            raise ValueError("it is no baseline")
        self._lines = self._unpacked()
        self.facts: dict[str, Any] = json.loads(next(self._lines, b"{}"))

    def entries(self) -> Iterator[Entry]:
        """Yield what the workspace held; once."""
        for line in self._lines:
            path, mode, size, seen, target, at, length = json.loads(line)
            entry = Entry(path, mode, size, seen, target)
            if length is not None:
                entry.kept = (at, length)
                entry.read = partial(self._read, at, length)
            yield entry

    def stored(self, at: int, length: int) -> bytes:
        """Return what is kept of a content, as it is kept."""
        return os.pread(self._fd, length, at)

    def _read(self, at: int, length: int) -> bytes:
        return zlib.decompress(self.stored(at, length))

    def _unpacked(self) -> Iterator[bytes]:
        unpack, rest, at = zlib.decompressobj(), b"", self._start
        while at < self._start + self._size:
            piece = os.pread(self._fd, min(_PIECE, self._start + self._size - at), at)
            if not piece:
                raise ValueError("it is cut off")
            at += len(piece)
            *lines, rest = (rest + unpack.decompress(piece)).split(b"\n")
            yield from lines


def take(workspace: str, folder: str, run: str, write: Callable[[str, BinaryIO, Baseline | None], None]) -> None:
    """Take the baseline of the run `run` into `folder`, if there is none; what goes wrong is nobody's trouble."""
    with suppress(OSError):
        if os.path.lexists(f"{folder}/{run}"):
            return
        os.makedirs(folder, 0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        _take(workspace, folder, run, write)


def _take(workspace: str, folder: str, run: str, write: Callable[[str, BinaryIO, Baseline | None], None]) -> None:
    fresh = f"{folder}/{_NEW}{os.getpid()}-{time.monotonic_ns()}"
    before = _newest(folder)
    try:
        with suppress(TooMuch), open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            write(workspace, out, before)
            out.flush()
            os.link(fresh, f"{folder}/{run}")
    finally:
        if before is not None:
            before.close()
        _prune(folder, fresh)


def write(workspace: str, out: BinaryIO, before: Baseline | None) -> None:
    """Write the baseline of a workspace; what `before` has already is copied. Raises OSError, TooMuch."""
    root = os.open(workspace, FOLDER)
    try:
        _write(root, out, before)
    finally:
        os.close(root)


def _write(root: int, out: BinaryIO, before: Baseline | None) -> None:
    pack, packed = zlib.compressobj(1), bytearray()
    deadline, at = time.monotonic() + TAKE_S, 0
    packed += pack.compress(json.dumps({"at": time.time_ns()}).encode() + b"\n")
    known = iter(()) if before is None else before.entries()
    for old, entry in merged(known, walk(root)):
        if entry is None:
            continue
        kept = None
        if time.monotonic() > deadline:
            if time.monotonic() > deadline + TAKE_S / 2:
                raise TooMuch("there is too much to look at")
        elif entry.plain and at < KEPT_BYTES:
            kept = _kept(before, old, entry)
        if kept is not None:
            out.write(kept)
        line = [entry.path, entry.mode, entry.size, entry.seen, entry.target, at, None if kept is None else len(kept)]
        packed += pack.compress(json.dumps(line).encode() + b"\n")
        at += len(kept or b"")
    packed += pack.flush()
    out.write(packed)
    out.write(_TRAILER.pack(at, len(packed), _MAGIC))


def _kept(before: Baseline | None, old: Entry | None, entry: Entry) -> bytes | None:
    if before is not None and old is not None and old.kept is not None and untouched(old, entry):
        return before.stored(*old.kept)
    data = entry.read()
    return None if data is None else zlib.compress(data, 1)


def untouched(old: Entry, new: Entry) -> bool:
    """Return whether nothing was done to a file, as far as lstat can tell."""
    return (old.mode, old.size, old.seen[1:], old.target) == (new.mode, new.size, new.seen[1:], new.target)


def same(old: Entry, new: Entry) -> bool:
    """Return whether a file or link is as it was, even if it was written meanwhile."""
    if untouched(old, new):
        return True
    if old.size != new.size or old.mode != new.mode or old.target != new.target:
        return False
    if not new.plain:
        return True
    content = old.read()
    return content is not None and content == new.read()


def merged(old: Iterator[Entry], new: Iterator[Entry]) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Yield what two sorted walks hold, the entries of one path together."""
    left, right = next(old, None), next(new, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.order < right.order):
            yield left, None
            left = next(old, None)
        elif left is None or right.order < left.order:
            yield None, right
            right = next(new, None)
        else:
            yield left, right
            left, right = next(old, None), next(new, None)


# --- those of a thread


def taken(folder: str) -> list[tuple[int, str]]:
    """Return when each baseline was placed, in ns, and its path; oldest first."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if not entry.name.startswith(_NEW) and entry.is_file(follow_symlinks=False):
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    return sorted(found)


def _newest(folder: str) -> Baseline | None:
    for _, path in reversed(taken(folder)[-1:]):
        with suppress(OSError, ValueError, zlib.error):
            return Baseline(path)
    return None


def _prune(folder: str, fresh: str) -> None:
    with suppress(OSError):
        os.unlink(fresh)
    for _, path in taken(folder)[:-BASELINES]:
        with suppress(OSError):
            os.unlink(path)
