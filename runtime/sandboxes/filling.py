"""Fills a new workspace from its source: a folder, an archive or a git repository of this host.

A workspace is filled beside its place and renamed into it, so it is there whole or not at all; never over one that is
there, even an empty one: a driver that stood still meanwhile would take the ground from under an agent. Who fills holds
a lock, by which others tell what is being filled from what was left behind.

    <place>_new<8 hex digits>/lock, workspace/, home/ (git's)

What comes from outside cannot leave it: members of archives are written one by one under names that were checked, links
last, and only those that lead nowhere else. Everything counts against `MAX_BYTES` and `MAX_FILES` while it is written;
what git writes is counted every `LOOK_S`, and once more at its end.

`realpath` is asked again what was allowed by name: a link in an allowed folder is not a way out of it. Our own data
(other threads' workspaces, the store, the token) is no source, and left out of a folder that holds it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import stat
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from runtime.core.workspace import SourceKind, WorkspaceSource
from runtime.errors import LaunchFailed
from runtime.sandboxes.cloning import clone

MAX_BYTES = 4 << 30
MAX_FILES = 200_000
MAX_DEPTH = 200
UNFINISHED = "_new"  # no name of ours has an underscore without two hex digits behind it
LOCK, WHOLE = "lock", "workspace"
_PIECE = 1 << 20
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


def make_workspace(
    place: Path, source: WorkspaceSource | None, allowed: Sequence[str], own: Collection[Path] = ()
) -> None:
    """Make the workspace at `place` from its source, unless it is there; never from what is in `own`. Blocks.

    Raises LaunchFailed if the source is not there, not allowed, too large, or no whole archive or repository."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if source is None:
        place.mkdir(exist_ok=True)
    if place.is_dir():
        return
    assert source is not None
    with prepared(place, source, allowed, own) as made, suppress(FileExistsError):  # another one was first
        _rename_to_nothing(made, place)


@contextmanager
def prepared(
    place: Path, source: WorkspaceSource, allowed: Sequence[str], own: Collection[Path] = ()
) -> Iterator[Path]:
    """Make a folder of the source beside `place`, and yield it; what is left of it at the end goes. Blocks.

    Raises as `make_workspace`, and OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(place)
    with _held_folder(place) as fresh:
        made = fresh / WHOLE
        made.mkdir()
        try:
            _fill(made, source, allowed, [Path(os.path.realpath(one)) for one in (*own, place.parent)])
        except LaunchFailed:
            raise
        except Exception as error:  # who reads what anybody may have packed must expect anything
            what = f"the {source.kind.value} {source.place}"
            raise LaunchFailed(
                f"The workspace could not be made from {what}: {str(error) or type(error).__name__}."
            ) from error
        yield made


# --- what is being made ----------------------------------------------------------------------------------------


@contextmanager
def _held_folder(place: Path) -> Iterator[Path]:
    """Make a folder beside `place` that is removed at the end, and by nobody else before."""
    while True:
        fresh = place.with_name(f"{place.name}{UNFINISHED}{secrets.token_hex(4)}")
        fresh.mkdir()
        with _locked(fresh) as held:
            if not held:  # taken for abandoned just now
                continue
            try:
                yield fresh
            finally:
                _remove(fresh)
        return


def _remove_abandoned(place: Path) -> None:
    for left in place.parent.glob(f"{place.name}{UNFINISHED}*"):
        with suppress(OSError), _locked(left) as held:
            if held:
                _remove(left)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock, if it is free and the folder is there; yields whether it is held."""
    path = folder / LOCK
    try:
        file = path.open("a")
    except FileNotFoundError:
        yield False
        return
    with file:
        yield _lock(file.fileno(), path)


def _lock(file: int, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), path.stat())  # else who had it removed the folder
    except (BlockingIOError, FileNotFoundError):
        return False


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder, however deep, each folder before what it holds."""
    folders = [str(folder)]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                yield entry


def _remove(folder: Path) -> None:
    with suppress(OSError):
        for entry in reversed(list(_below(folder))):
            with suppress(FileNotFoundError):
                (os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
        folder.rmdir()


def _rename_to_nothing(fresh: Path, place: Path) -> None:
    """Rename, but not over anything, which rename(2) would do to an empty folder. Raises FileExistsError."""
    done = ctypes.CDLL(None, use_errno=True).renameat2(
        _AT_FDCWD, os.fsencode(fresh), _AT_FDCWD, os.fsencode(place), _RENAME_NOREPLACE
    )
    if done == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(code, os.strerror(code), str(place))
    if place.exists():  # a file system without this promise; the window that is left is a few microseconds
        raise FileExistsError(str(place))
    fresh.rename(place)


def _fill(target: Path, source: WorkspaceSource, allowed: Sequence[str], own: Collection[Path]) -> None:
    place = Path(source.place)
    if source.place.startswith("/"):
        real = Path(os.path.realpath(place))
        if not any(real.is_relative_to(os.path.realpath(one)) for one in allowed if one.startswith("/")):
            raise LaunchFailed(f"{source.place} leads out of what OUTLAST_WORKSPACE_SOURCES allows.")
        if any(real.is_relative_to(one) for one in own):
            raise LaunchFailed(f"{source.place} is among Outlast's own data, which no workspace begins with.")
        place = real
    room = _Room()
    match source.kind:
        case SourceKind.DIRECTORY:
            _copy_folder(place, target, room, {str(one) for one in own})
        case SourceKind.ARCHIVE:
            _unpack(place, target, room)
        case SourceKind.GIT:
            clone(str(place) if source.place.startswith("/") else source.place, source.ref, target, _check_room)


class _Room:
    """What may still be written."""

    def __init__(self) -> None:
        self.bytes, self.files = MAX_BYTES, MAX_FILES

    def take(self, size: int, files: int = 0) -> None:
        """Take some of it. Raises LaunchFailed when it is used up."""
        self.bytes -= size
        self.files -= files
        if self.bytes < 0 or self.files < 0:
            raise LaunchFailed(f"The workspace's source is over {MAX_BYTES} bytes or {MAX_FILES} files.")


def _check_room(folder: Path) -> None:
    """Check what a folder holds by now. Raises LaunchFailed when that is too much."""
    room = _Room()
    for entry in _below(folder):
        with suppress(FileNotFoundError):  # a temporary one
            room.take(0 if entry.is_dir(follow_symlinks=False) else entry.stat(follow_symlinks=False).st_size, 1)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise LaunchFailed(f"The workspace's source is over {MAX_DEPTH} folders deep.")


# --- folders ---------------------------------------------------------------------------------------------------


def _copy_folder(source: Path, target: Path, room: _Room, own: Collection[str], depth: int = 1) -> None:
    """Copy files, folders and links as they are; what is none of these is left out, and so are the folders `own`."""
    _check_depth(depth)
    with os.scandir(source) as entries:
        for entry in entries:
            made = target / entry.name
            room.take(0, 1)
            if entry.path in own:
                continue
            if entry.is_symlink():
                made.symlink_to(Path(entry.path).readlink())
            elif entry.is_dir():
                made.mkdir()
                _copy_folder(Path(entry.path), made, room, own, depth + 1)
                made.chmod(stat.S_IMODE(entry.stat().st_mode) | stat.S_IRWXU)
            elif entry.is_file():
                with open(entry.path, "rb") as data:  # noqa: PTH123 - an entry has a path as text
                    _write(made, data, room, executable=bool(entry.stat().st_mode & stat.S_IXUSR))


def _write(path: Path, data: IO[bytes], room: _Room, *, executable: bool) -> None:
    """Write a file that is not there yet; through no link. Raises FileExistsError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o755 if executable else 0o644), "wb") as file:
        while piece := data.read(_PIECE):
            room.take(len(piece))
            file.write(piece)


# --- archives --------------------------------------------------------------------------------------------------


class _Member:
    """One file, folder or link of an archive; `path` is inside it, checked."""

    def __init__(self, name: str, kind: str, executable: bool = False, link: str = "") -> None:
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name:
            raise LaunchFailed(f"The archive has a member that would lie outside the workspace: {name[:200]!r}.")
        if kind == "other":
            raise LaunchFailed(f"The archive has a member that is no file, folder or link inside it: {name[:200]!r}.")
        _check_depth(len(pure.parts))
        self.path, self.kind, self.executable, self.link = pure, kind, executable, link


def _unpack(archive: Path, target: Path, room: _Room) -> None:
    links: list[_Member] = []
    for member, data in _members(archive, room):
        room.take(0, 1)
        made = target / member.path
        if member.kind == "link":
            links.append(member)
        elif member.kind == "folder":
            made.mkdir(parents=True, exist_ok=True)
        elif data is not None:
            made.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                made.unlink()  # tar may name a file twice: the last one counts
            _write(made, data, room, executable=member.executable)
    for member in links:  # from now on nothing is written through a path of the archive
        made = target / member.path
        if _leads_out(member):
            raise LaunchFailed(f"The archive has a link out of the workspace: {str(member.path)[:200]!r}.")
        made.parent.mkdir(parents=True, exist_ok=True)
        if os.path.realpath(made.parent) == str(target.resolve() / member.path.parent):
            made.symlink_to(member.link)


def _leads_out(member: _Member) -> bool:
    """Return whether a link leaves the workspace, by its words alone. Up is counted from where it lies, so `..` after
    anything else, which may be another link, is taken for a way out."""
    parts = PurePosixPath(member.link).parts
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return member.link.startswith("/") or not parts or ".." in parts[up:] or up > len(member.path.parent.parts)


def _members(archive: Path, room: _Room) -> Iterator[tuple[_Member, IO[bytes] | None]]:
    if zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive):  # a tar that ends with a zip looks like one
        yield from _of_zip(archive)
    else:
        yield from _of_tar(archive, room)


def _of_tar(archive: Path, room: _Room) -> Iterator[tuple[_Member, IO[bytes] | None]]:
    with tarfile.open(archive, "r:*") as tar:
        for info in tar:
            kind = "file" if info.isreg() else "folder" if info.isdir() else "link" if info.issym() else "other"
            member = _Member(info.name, kind, bool(info.mode & stat.S_IXUSR), info.linkname)
            yield member, tar.extractfile(info) if kind == "file" else None
        _check_end(tar, room)


def _check_end(tar: tarfile.TarFile, room: _Room) -> None:
    """Check that the last member was followed by zeros alone, and that what is compressed has its checksum.

    `tarfile` takes a header that is cut off or broken for the end. Raises LaunchFailed, OSError and others."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    zeros = 0
    while piece := tar.fileobj.read(_PIECE):
        room.take(len(piece))
        if piece.strip(b"\0"):
            break
        zeros += len(piece)
    if piece or zeros < tarfile.BLOCKSIZE:
        raise LaunchFailed("The archive is damaged: its end is missing, or it goes on behind a broken member.")


def _of_zip(archive: Path) -> Iterator[tuple[_Member, IO[bytes] | None]]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            mode = info.external_attr >> 16
            if info.is_dir():
                yield _Member(info.filename, "folder"), None
            elif stat.S_ISLNK(mode):
                with packed.open(info) as data:
                    yield _Member(info.filename, "link", link=data.read(4096).decode("utf-8", "replace")), None
            else:
                with packed.open(info) as data:
                    yield _Member(info.filename, "file", bool(mode & stat.S_IXUSR)), data
