"""Fills a new workspace from its source: a folder, an archive or a git repository of this host.

A workspace is filled beside its place and renamed into it, so it is there whole or not at all; never over one that is
there, even an empty one: a driver that stood still meanwhile would take the ground from under an agent.

What comes from outside cannot leave it: members of archives are written one by one under names that were checked, links
last, and only those that lead nowhere else. Everything counts against `MAX_BYTES` and `MAX_FILES` while it is written.

`realpath` is asked again what was allowed by name: a link in an allowed folder is not a way out of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from runtime.core.workspace import SourceKind, WorkspaceSource
from runtime.errors import LaunchFailed

MAX_BYTES = 4 << 30
MAX_FILES = 200_000
GIT_S = 600.0
UNFINISHED = "_new"  # no name of ours has an underscore without two hex digits behind it
_PIECE = 1 << 20
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
# Nothing of the host's user but the way to programs: no credentials, no helpers, no prompts.
_GIT_ENV = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
_GIT_OPTIONS = ("-c", "protocol.allow=never", "-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=true")
_GIT_PROTOCOLS = ("https", "http", "ssh", "file")


def make_workspace(place: Path, source: WorkspaceSource | None, allowed: Sequence[str]) -> None:
    """Make the workspace at `place` from its source, unless it is there. Blocks.

    Raises LaunchFailed if the source is not there, not allowed, too large, or no archive or repository."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if source is None:
        place.mkdir(exist_ok=True)
    if place.is_dir():
        return
    assert source is not None
    for left in place.parent.glob(f"{place.name}{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    fresh = place.with_name(f"{place.name}{UNFINISHED}{secrets.token_hex(4)}")
    fresh.mkdir()
    try:
        _fill(fresh, source, allowed)
        with suppress(FileExistsError):  # another one was first
            _rename_to_nothing(fresh, place)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        what = f"the {source.kind.value} {source.place}"
        raise LaunchFailed(f"The workspace could not be made from {what}: {error}.") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


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


def _fill(target: Path, source: WorkspaceSource, allowed: Sequence[str]) -> None:
    place = Path(source.place)
    if source.place.startswith("/"):
        real = Path(os.path.realpath(place))
        if not any(real.is_relative_to(os.path.realpath(one)) for one in allowed if one.startswith("/")):
            raise LaunchFailed(f"{source.place} leads out of what OUTLAST_WORKSPACE_SOURCES allows.")
        place = real
    room = _Room()
    match source.kind:
        case SourceKind.DIRECTORY:
            _copy_folder(place, target, room)
        case SourceKind.ARCHIVE:
            _unpack(place, target, room)
        case SourceKind.GIT:
            _clone(str(place) if source.place.startswith("/") else source.place, source.ref, target)


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


# --- folders ---------------------------------------------------------------------------------------------------


def _copy_folder(source: Path, target: Path, room: _Room) -> None:
    """Copy files, folders and links as they are; what is none of these is left out."""
    with os.scandir(source) as entries:
        for entry in entries:
            made = target / entry.name
            room.take(0, 1)
            if entry.is_symlink():
                made.symlink_to(Path(entry.path).readlink())
            elif entry.is_dir():
                made.mkdir()
                _copy_folder(Path(entry.path), made, room)
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
        self.path, self.kind, self.executable, self.link = pure, kind, executable, link


def _unpack(archive: Path, target: Path, room: _Room) -> None:
    links: list[_Member] = []
    for member, data in _members(archive):
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


def _members(archive: Path) -> Iterator[tuple[_Member, IO[bytes] | None]]:
    if zipfile.is_zipfile(archive):
        yield from _of_zip(archive)
    else:
        yield from _of_tar(archive)


def _of_tar(archive: Path) -> Iterator[tuple[_Member, IO[bytes] | None]]:
    with tarfile.open(archive, "r:*") as tar:
        for info in tar:
            kind = "file" if info.isreg() else "folder" if info.isdir() else "link" if info.issym() else "other"
            member = _Member(info.name, kind, bool(info.mode & stat.S_IXUSR), info.linkname)
            yield member, tar.extractfile(info) if kind == "file" else None


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


# --- repositories ----------------------------------------------------------------------------------------------


def _clone(place: str, ref: str | None, target: Path) -> None:
    _git("clone", "--quiet", "--no-hardlinks", "--", place, str(target))
    if ref is not None:
        _git("-C", str(target), "checkout", "--quiet", ref, "--")
    size = sum(path.lstat().st_size for path in target.rglob("*"))
    if size > MAX_BYTES:
        raise LaunchFailed(f"The workspace's source is over {MAX_BYTES} bytes.")


def _git(*arguments: str) -> None:
    protocols = [option for name in _GIT_PROTOCOLS for option in ("-c", f"protocol.{name}.allow=always")]
    env = {**_GIT_ENV, **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}}
    try:
        done = subprocess.run(
            ["git", *_GIT_OPTIONS, *protocols, *arguments],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise LaunchFailed("The workspace is a git repository, and git is not installed on this host.") from None
    except subprocess.TimeoutExpired:
        raise LaunchFailed(f"git did not get the workspace within {GIT_S:.0f} s.") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise LaunchFailed(f"git could not get the workspace: {said or f'it exited with {done.returncode}'}")
