"""A workspace as bytes to send: what a run changed in it, as a list or a diff, or all of it as an archive.

Before the first byte it is looked through once, so that what is too large is refused and not broken off. Nothing is
held in memory but one small file and its kept content. An agent may be at work meanwhile: then each file is sent as it
is when its turn comes, and an archive's member has the length that its head says, whatever became of the file.
"""

from __future__ import annotations

import json
import os
import stat
import tarfile
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from runtime.sandboxes.baseline import FOLDER, Baseline, Entry, Gone, TooMuch, merged, open_file, same, taken, walk
from runtime.sandboxes.diffing import entry_diff, shown, version

PIECE = 256 << 10
HELD_S = 5.0  # after so long less is a piece too: whoever waits for one gives up at some time
_GZIP = 16 + zlib.MAX_WBITS
_READ = 64 << 10


class Change(NamedTuple):
    """One file or link that is not as it was."""

    old: Entry | None
    new: Entry | None

    @property
    def path(self) -> str:
        """Return where it is."""
        entry = self.new or self.old
        assert entry is not None
        return entry.path

    @property
    def word(self) -> str:
        """Return what was done."""
        return "created" if self.old is None else "deleted" if self.new is None else "modified"


def read(workspace: Path, baselines: Path, run: str, form: str, max_bytes: int) -> Generator[bytes, None, None]:
    """Yield the result of the run `run` in pieces of some PIECE bytes. Blocks.

    `form` is one of `runtime.core.result.Form`. Raises Gone, TooMuch, before the first piece unless an agent is at
    work. Of the standard library and its neighbours alone: it runs in containers too."""
    yield from _gathered(_read(workspace, baselines, run, form, max_bytes))


def _read(workspace: Path, baselines: Path, run: str, form: str, max_bytes: int) -> Iterator[bytes]:
    placed = [Path(path) for _, path in taken(str(baselines))]
    at = next((at for at, path in enumerate(placed) if path.name == run), None)
    later = None if at is None else next(iter(placed[at + 1 :]), None)
    if form == "archive":
        if later is not None:
            raise Gone(
                "A later run of the thread has changed the workspace. Ask for the newest run's archive, or for this "
                "one's files or diff.",
                code="workspace_changed",
            )
        yield from _archive(workspace, max_bytes)
        return
    if at is None:
        raise Gone(
            "How the workspace was when this run began is not kept (any more). Ask for its archive.",
            code="baseline_gone",
        )
    with ExitStack() as held:
        sides = _Sides(workspace, placed[at], later, held)
        yield from _files(sides, max_bytes) if form == "files" else _diff(sides, max_bytes)


class _Sides:
    """The workspace before and after; `changes` may be gone through again and again."""

    def __init__(self, workspace: Path, before: Path, after: Path | None, held: ExitStack) -> None:
        self._before, self._after = before, after
        self._root = held.enter_context(_opened(workspace)) if after is None else -1

    def changes(self) -> Iterator[Change]:
        """Yield what differs. Raises Gone, TooMuch."""
        with ExitStack() as held:
            old = _entries(self._before, held)
            new = walk(self._root) if self._after is None else _entries(self._after, held)
            for one, other in merged(_told(old), _told(new)):
                if one is None or other is None or not same(one, other):
                    yield Change(one, other)


def _entries(path: Path, held: ExitStack) -> Iterator[Entry]:
    try:
        return held.enter_context(closing(Baseline(str(path)))).entries()
    except (OSError, ValueError, zlib.error) as error:
        raise Gone(f"What is kept of the workspace cannot be read: {error}.", code="baseline_gone") from error


def _told(entries: Iterator[Entry]) -> Iterator[Entry]:
    return (entry for entry in entries if entry.told)


@contextmanager
def _opened(workspace: Path) -> Iterator[int]:
    try:
        root = os.open(workspace, FOLDER)
    except OSError as error:
        raise Gone(f"The workspace is not there any more: {error.strerror}.") from error
    try:
        yield root
    finally:
        os.close(root)


# --- what was changed


def _files(sides: _Sides, max_bytes: int) -> Iterator[bytes]:
    size = 0
    for change in sides.changes():
        size += len(_told_as(change))
        if size > max_bytes:
            raise TooMuch(f"the list of what was changed is over {max_bytes} bytes (OUTLAST_WORKSPACE_MAX_BYTES)")
    between = b"["
    for change in sides.changes():
        yield between + _told_as(change)
        between = b",\n"
    yield b"[]\n" if between == b"[" else b"]\n"


def _told_as(change: Change) -> bytes:
    size = 0 if change.new is None else change.new.size
    return _json({"path": shown(change.path), "change": change.word, "bytes": size})


def _diff(sides: _Sides, max_bytes: int) -> Iterator[bytes]:
    size = 0
    for change in sides.changes():
        size += len(os.fsencode(change.path))
        size += sum(entry.size for entry in change if entry is not None and version(entry).text is not None)
        if size > max_bytes:
            raise TooMuch(f"the text that was changed is over {max_bytes} bytes (OUTLAST_WORKSPACE_MAX_BYTES)")
    for change in sides.changes():
        yield from entry_diff(*change)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# --- all of it


def _archive(workspace: Path, max_bytes: int) -> Iterator[bytes]:
    with _opened(workspace) as root:
        size = 0
        for entry in walk(root, whole=True):
            size += _weight(entry)
            if size > max_bytes:
                raise TooMuch(f"it is over {max_bytes} bytes (OUTLAST_WORKSPACE_MAX_BYTES)")
        pack = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        left = max_bytes
        for entry in walk(root, whole=True):
            left -= _weight(entry)
            if left < 0:
                raise TooMuch(f"it has grown over {max_bytes} bytes meanwhile (OUTLAST_WORKSPACE_MAX_BYTES)")
            for piece in _member(entry):
                yield pack.compress(piece)
        yield pack.compress(b"\0" * 2 * tarfile.BLOCKSIZE) + pack.flush()


def _weight(entry: Entry) -> int:
    """Return what an entry takes of the bound: its head too, of which many empty files are nothing but."""
    return tarfile.BLOCKSIZE + len(os.fsencode(entry.path)) + (entry.size if entry.plain else 0)


def _member(entry: Entry) -> Iterator[bytes]:
    """Yield a file, folder or link as a tar has it; nothing else is in an archive, and nothing but those is opened."""
    info = tarfile.TarInfo(entry.path)
    info.mode, info.mtime = stat.S_IMODE(entry.mode) & 0o777, entry.seen[2] // 1_000_000_000
    if stat.S_ISDIR(entry.mode):
        info.type = tarfile.DIRTYPE
    elif entry.target is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
    elif not entry.plain:
        return
    else:
        fd = open_file(entry)
        if fd is None:
            return
        with open(fd, "rb") as file:  # noqa: PTH123 - of a folder that was opened before
            info.size = entry.size
            yield _head(info)
            left = info.size
            while left:
                piece = file.read(min(left, _READ)) or b"\0" * min(left, _READ)
                left -= len(piece)
                yield piece
        yield b"\0" * (-info.size % tarfile.BLOCKSIZE)
        return
    yield _head(info)


def _head(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of PIECE or a little more; smaller are the last, and what took HELD_S."""
    held, size, since = [], 0, time.monotonic()
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PIECE or (size and time.monotonic() - since >= HELD_S):
            yield b"".join(held)
            held, size, since = [], 0, time.monotonic()
    if size:
        yield b"".join(held)
