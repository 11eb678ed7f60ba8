"""What a new workspace begins with, and that nothing of it can lie, or lead, outside."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from new_workspaces import content, fill, git, refused
from own_deployment import DEPLOYMENT

from runtime.core.workspace import SourceKind, WorkspaceSource
from runtime.errors import LaunchFailed
from runtime.sandboxes import filling
from runtime.sandboxes.local import LocalProvider
from runtime.testing.sandbox_kit import run_to_end, sh

# --- folders


def test_a_folder_is_copied_as_it_is(sources: Path) -> None:
    app = sources / "app"
    (app / "deep" / "er").mkdir(parents=True)
    (app / "deep" / "er" / "a b é").write_text("text")
    (app / "run").write_text("#!/bin/sh")
    (app / "run").chmod(0o755)
    (app / "link").symlink_to("deep/er/a b é")
    os.mkfifo(app / "pipe")
    made = fill(sources, "directory", "app")
    assert content(made) == {"deep/er/a b é": "text", "run": "#!/bin/sh", "link": "-> deep/er/a b é"}
    assert (made / "run").stat().st_mode & stat.S_IXUSR
    assert not (made / "pipe").exists()
    (made / "run").write_text("changed")
    assert (app / "run").read_text() == "#!/bin/sh"


def test_a_link_is_no_way_out_of_what_is_allowed(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (sources / "app").symlink_to(tmp_path / "secret")
    refused(sources, "directory", "app", "leads out of")


@pytest.mark.parametrize("kind", ["directory", "archive", "git"])
def test_a_source_that_is_not_there_is_named(sources: Path, kind: str) -> None:
    refused(sources, kind, "absent", "absent")


def test_an_existing_workspace_is_never_replaced(sources: Path) -> None:
    (sources / "app").mkdir()
    (sources / "app" / "new").touch()
    place = sources.parent / "workspaces" / "thread"
    place.mkdir(parents=True)
    assert content(fill(sources, "directory", "app")) == {}


def test_one_that_came_to_be_meanwhile_stays_although_it_is_empty(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that stood still while its successor made the workspace, and an agent began in it."""
    (sources / "app").mkdir()
    (sources / "app" / "new").touch()
    place = sources.parent / "workspaces" / "thread"
    real = filling._fill

    def slow(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        place.mkdir()

    monkeypatch.setattr(filling, "_fill", slow)
    before = fill(sources, "directory", "app")
    assert content(before) == {}
    assert [path.name for path in place.parent.iterdir()] == ["thread"]


def test_a_driver_that_stood_still_leaves_its_successors_filling_alone(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor fills when the driver before it, which knows nothing of it, wakes and makes the workspace too."""
    (sources / "app").mkdir()
    (sources / "app" / "file").write_text("text")
    real, found = filling._fill, []

    def slow(target: Path, *arguments: Any) -> None:
        monkeypatch.setattr(filling, "_fill", real)
        fill(sources, "directory", "app")
        real(target, *arguments)
        found.append(content(target))

    monkeypatch.setattr(filling, "_fill", slow)
    place = fill(sources, "directory", "app")
    assert found == [content(place)] == [{"file": "text"}]
    assert [path.name for path in place.parent.iterdir()] == ["thread"]


def test_a_folder_that_was_taken_for_abandoned_before_it_was_locked_is_made_anew(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "app").mkdir()
    removed: list[Path] = []
    real = filling._lock

    def late(file: int, path: Path) -> bool:
        if not removed:
            removed.append(path)
            filling._remove(path.parent)
        return real(file, path)

    monkeypatch.setattr(filling, "_lock", late)
    assert content(fill(sources, "directory", "app")) == {}
    assert len(removed) == 1


def test_what_an_interrupted_filling_left_is_removed(sources: Path) -> None:
    (sources / "app").mkdir()
    left = sources.parent / "workspaces" / "thread_new12345678"
    left.mkdir(parents=True)
    (left / "half").touch()
    fill(sources, "directory", "app")
    assert [path.name for path in left.parent.iterdir()] == ["thread"]


@pytest.mark.parametrize("error", [RuntimeError("why"), RecursionError(), ValueError(), MemoryError()])
def test_whatever_goes_wrong_is_a_failed_launch(
    sources: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    (sources / "app").mkdir()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(filling, "_fill", fail)
    refused(sources, "directory", "app", f"could not be made from .*/app: {str(error) or type(error).__name__}")


@pytest.mark.parametrize("kind", ["directory", "archive"])
def test_a_source_of_endless_folders_is_refused(sources: Path, kind: str) -> None:
    deep = sources / "app" / "/".join("d" * (filling.MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    with zipfile.ZipFile(sources / "app.zip", "w") as packed:
        packed.writestr(f"{deep.relative_to(sources)}/file", "")
    refused(sources, kind, "app" if kind == "directory" else "app.zip", "folders deep")


@pytest.mark.parametrize(("bound", "value"), [("MAX_BYTES", 1000), ("MAX_FILES", 3)])
@pytest.mark.parametrize("kind", ["directory", "archive", "git"])
def test_a_source_over_its_bounds_is_refused(
    sources: Path, monkeypatch: pytest.MonkeyPatch, kind: str, bound: str, value: int
) -> None:
    app = sources / "app"
    app.mkdir()
    for number in range(5):
        (app / f"file {number}").write_text("x" * 300)
    git("init", "--quiet", cwd=app)
    git("add", ".", cwd=app)
    git("commit", "--quiet", "-m", "all", cwd=app)
    with tarfile.open(sources / "app.tar.gz", "w:gz") as tar:
        tar.add(app, "app")
    monkeypatch.setattr(filling, bound, value)
    refused(sources, kind, "app.tar.gz" if kind == "archive" else "app", "is over")


# --- archives

Member = tuple[str, str, str]  # kind, name, text or target


def pack_tar(path: Path, members: list[Member]) -> None:
    kinds = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}
    kinds |= {"device": tarfile.CHRTYPE, "pipe": tarfile.FIFOTYPE}
    with tarfile.open(path, "w:gz") as tar:
        for kind, name, text in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kinds[kind], 0o4755
            if kind in ("link", "hard"):
                info.linkname = text
            data = text.encode() if kind == "file" else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def pack_zip(path: Path, members: list[Member]) -> None:
    types = {"file": stat.S_IFREG, "link": stat.S_IFLNK, "folder": stat.S_IFDIR}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for kind, name, text in members:
            info = zipfile.ZipInfo(f"{name}/" if kind == "folder" else name)
            info.external_attr = (types[kind] | 0o755) << 16
            packed.writestr(info, "" if kind == "folder" else text, zipfile.ZIP_DEFLATED)


PACKS = {"app.tar.gz": pack_tar, "app.zip": pack_zip}
Pack = Callable[[Path, list[Member]], None]


@pytest.mark.parametrize("name", PACKS)
def test_an_archive_is_unpacked(sources: Path, name: str) -> None:
    members = [
        ("folder", "empty", ""),
        ("file", "app/run", "first"),
        ("link", "app/again", "../app/run"),
        ("file", "./deep/er/é", "text"),
    ]
    PACKS[name](sources / name, members)
    made = fill(sources, "archive", name)
    assert content(made) == {"app/run": "first", "app/again": "-> ../app/run", "deep/er/é": "text"}
    assert (made / "empty").is_dir()
    assert stat.S_IMODE((made / "app" / "run").stat().st_mode) == 0o755  # no setuid
    assert (made / "app" / "again").read_text() == "first"


EVIL: dict[str, tuple[list[Member], str]] = {
    "a path above": ([("file", "../outside", "x")], "outside the workspace"),
    "a path above, later": ([("file", "a/../../outside", "x")], "outside the workspace"),
    "an absolute path": ([("file", "/tmp/outside", "x")], "outside the workspace"),
    "a link above": ([("link", "way", "../..")], "link out of the workspace"),
    "an absolute link": ([("link", "way", "/etc")], "link out of the workspace"),
    "a link above, deeper": ([("link", "a/b", "../../x")], "link out of the workspace"),
    "links above, by way of one another": (
        [("link", "way", "."), ("link", "out", "way/..")],
        "link out of the workspace",
    ),
    "a file through a link": ([("link", "way", "../.."), ("file", "way/outside", "x")], "link out of the workspace"),
    "a name that is two things": ([("file", "a", "x"), ("file", "a/b", "x")], "could not be made"),
}


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("name", PACKS)
def test_no_member_of_an_archive_leaves_the_workspace(sources: Path, name: str, evil: str) -> None:
    members, why = EVIL[evil]
    PACKS[name](sources / name, members)
    refused(sources, "archive", name, why)


@pytest.mark.parametrize("kind", ["hard", "device", "pipe"])
def test_an_archive_of_more_than_files_folders_and_links_is_refused(sources: Path, kind: str) -> None:
    pack_tar(sources / "app.tar.gz", [("file", "a", "x"), (kind, "b", "a")])
    refused(sources, "archive", "app.tar.gz", "no file, folder or link")


def test_links_of_an_archive_that_lead_out_together_are_no_way_for_a_file(sources: Path) -> None:
    """Each stays inside by its words; what follows one after the other is made last, and never written through."""
    members = [
        ("link", "a", "b/c"),
        ("link", "b", "."),
        ("link", "c", "a/.."),
        ("file", "a/x", "x"),
    ]
    pack_tar(sources / "app.tar.gz", members)
    with pytest.raises(LaunchFailed, match="could not be made"):
        fill(sources, "archive", "app.tar.gz")


def test_what_is_no_archive_is_refused(sources: Path) -> None:
    (sources / "app").write_text("text")
    refused(sources, "archive", "app", "could not be made")


def plain_tar(path: Path, names: str = "abc") -> bytes:
    """Write, and return, a tar of small files: a header and a block each, then zeros."""
    with tarfile.open(path, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 10
            tar.addfile(info, io.BytesIO(b"0123456789"))
    return path.read_bytes()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut before the third header": lambda data: data[:2048],
    "cut in the third header": lambda data: data[:2100],
    "cut in the third file": lambda data: data[:2565],
    "cut before its end": lambda data: data[:3072],
    "a bad third header": lambda data: data[:2048] + b"x" + data[2049:],
    "no third header": lambda data: data[:2048] + bytes(512) + data[2560:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("packed", [False, True])
def test_of_a_damaged_archive_nothing_is_taken(sources: Path, damage: str, packed: bool) -> None:
    data = DAMAGES[damage](plain_tar(sources / "app.tar"))
    (sources / "app.tar").write_bytes(gzip.compress(data) if packed else data)
    refused(sources, "archive", "app.tar", "is damaged|unexpected end of data")


@pytest.mark.parametrize("end", [slice(-1), slice(-8), slice(-100)])
def test_of_a_compressed_archive_that_is_cut_off_nothing_is_taken(sources: Path, end: slice) -> None:
    (sources / "app.tgz").write_bytes(gzip.compress(plain_tar(sources / "app.tgz"))[end])
    refused(sources, "archive", "app.tgz", "could not be made")


def test_a_compressed_archive_is_held_against_its_checksum(sources: Path) -> None:
    data = bytearray(gzip.compress(plain_tar(sources / "app.tgz")))
    data[-8] ^= 1
    (sources / "app.tgz").write_bytes(data)
    refused(sources, "archive", "app.tgz", "CRC")


@pytest.mark.parametrize("end", [3072 + 512, 3072 + 1024])
def test_an_archive_needs_no_padding_behind_its_end(sources: Path, end: int) -> None:
    (sources / "app.tar").write_bytes(plain_tar(sources / "app.tar")[:end])
    assert list(content(fill(sources, "archive", "app.tar"))) == ["a", "b", "c"]


def test_a_tar_that_ends_with_a_zip_is_a_tar(sources: Path) -> None:
    pack_zip(sources / "inner.zip", [("file", "inside", "x")])
    with tarfile.open(sources / "app.tar", "w") as tar:
        tar.add(sources / "inner.zip", "inner.zip")
    assert [path.name for path in fill(sources, "archive", "app.tar").iterdir()] == ["inner.zip"]


def test_a_damaged_or_locked_zip_is_refused(sources: Path) -> None:
    pack_zip(sources / "app.zip", [("file", "a", "text" * 100)])
    whole = (sources / "app.zip").read_bytes()
    data = bytearray(whole)
    data[31] = 0xFF  # the compressed data: no block of deflate begins so
    (sources / "app.zip").write_bytes(data)
    refused(sources, "archive", "app.zip", "decompressing")
    data = bytearray(whole)
    data[6] |= 1  # encrypted, says the member, and so does the directory
    data[whole.index(b"PK\1\2") + 8] |= 1
    (sources / "app.zip").write_bytes(data)
    refused(sources, "archive", "app.zip", "encrypted")


# --- through the provider


async def test_our_own_data_is_no_source_and_left_out_of_a_folder_that_holds_it(sources: Path) -> None:
    app, data = sources / "app", sources / "app" / "data"
    data.mkdir(parents=True)
    (app / "file").write_text("text")
    (data / "token").write_text("secret")
    provider = LocalProvider(data / "sandboxes", DEPLOYMENT, data / "workspaces", data / "homes", [str(sources)])
    (data / "workspaces" / "another").mkdir(parents=True)
    source = WorkspaceSource(kind=SourceKind.DIRECTORY, place=str(app))
    sandbox = await provider.create(provider.key("run-1"), "thread-1", source)
    assert content(Path(sandbox.workspace)) == {"file": "text"}
    await provider.destroy(sandbox.key)
    for number, own in enumerate((data, data / "workspaces" / "another")):
        source = WorkspaceSource(kind=SourceKind.DIRECTORY, place=str(own))
        with pytest.raises(LaunchFailed, match="own data"):
            await provider.create(provider.key(f"own-{number}"), f"own-{number}", source)


async def test_a_threads_first_run_finds_its_source_and_the_next_one_what_became_of_it(
    sources: Path, tmp_path: Path
) -> None:
    (sources / "app").mkdir()
    (sources / "app" / "file").write_text("first\n")
    source = WorkspaceSource(kind=SourceKind.DIRECTORY, place=str(sources / "app"))
    data = tmp_path / "data"
    provider = LocalProvider(data / "s", DEPLOYMENT, data / "w", sources=[str(sources)])
    assert provider.capabilities.workspace_sources
    for run, said in (("run-1", b"first\n"), ("run-2", b"first\nmore\n")):
        sandbox = await provider.create(provider.key(run), "thread", source)
        assert (await run_to_end(sandbox, sh("cat file; echo more >> file")))[0] == said
        await provider.destroy(sandbox.key)
    bare = LocalProvider(data / "s", DEPLOYMENT, data / "w")
    with pytest.raises(LaunchFailed, match="OUTLAST_WORKSPACE_SOURCES"):
        await bare.create(bare.key("run-3"), "another", source)
