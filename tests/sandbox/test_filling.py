"""What a new workspace begins with, and that nothing of it can lie, or lead, outside."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.core.workspace import SourceKind, WorkspaceSource
from runtime.errors import LaunchFailed
from runtime.sandboxes import filling
from runtime.sandboxes.filling import make_workspace
from runtime.sandboxes.local import LocalProvider
from runtime.testing.sandbox_kit import run_to_end, sh


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return the one folder that is allowed."""
    made = tmp_path / "sources"
    made.mkdir()
    return made


def fill(sources: Path, kind: str, name: str, ref: str | None = None) -> Path:
    """Return a new workspace that begins with `name`."""
    place = sources.parent / "workspaces" / "thread"
    source = WorkspaceSource(kind=SourceKind(kind), place=str(sources / name), ref=ref)
    make_workspace(place, source, [str(sources)])
    return place


def refused(sources: Path, kind: str, name: str, why: str) -> None:
    """Check that no workspace can be made of it, and that nothing is left of the attempt."""
    with pytest.raises(LaunchFailed, match=why):
        fill(sources, kind, name)
    assert list((sources.parent / "workspaces").iterdir()) == []
    assert not (sources.parent / "outside").exists()


def content(folder: Path) -> dict[str, str]:
    """Return each file's text, and each link's target, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
    return found


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


def test_what_an_interrupted_filling_left_is_removed(sources: Path) -> None:
    (sources / "app").mkdir()
    left = sources.parent / "workspaces" / "thread_new12345678"
    left.mkdir(parents=True)
    (left / "half").touch()
    fill(sources, "directory", "app")
    assert [path.name for path in left.parent.iterdir()] == ["thread"]


@pytest.mark.parametrize(("bound", "value"), [("MAX_BYTES", 1000), ("MAX_FILES", 3)])
@pytest.mark.parametrize("kind", ["directory", "archive"])
def test_a_source_over_its_bounds_is_refused(
    sources: Path, monkeypatch: pytest.MonkeyPatch, kind: str, bound: str, value: int
) -> None:
    app = sources / "app"
    app.mkdir()
    for number in range(5):
        (app / f"file {number}").write_text("x" * 300)
    with tarfile.open(sources / "app.tar.gz", "w:gz") as tar:
        tar.add(app, "app")
    monkeypatch.setattr(filling, bound, value)
    refused(sources, kind, "app" if kind == "directory" else "app.tar.gz", "is over")


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
            packed.writestr(info, "" if kind == "folder" else text)


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


# --- repositories


def git(*arguments: str, cwd: Path) -> None:
    who = {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": os.environ["PATH"]}
    who |= {f"GIT_{whose}_{what}": "test@test" for whose in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, env=who)


@pytest.fixture
def repository(sources: Path) -> Path:
    made = sources / "repo"
    made.mkdir()
    git("init", "--quiet", "--initial-branch=main", cwd=made)
    for branch, text in (("main", "first"), ("feature/x", "second")):
        git("checkout", "--quiet", "-B", branch, cwd=made)
        (made / "file").write_text(text)
        git("add", "file", cwd=made)
        git("commit", "--quiet", "-m", text, cwd=made)
    git("checkout", "--quiet", "main", cwd=made)
    return made


@pytest.mark.parametrize(("ref", "text"), [(None, "first"), ("main", "first"), ("feature/x", "second")])
def test_a_repository_is_cloned(sources: Path, repository: Path, ref: str | None, text: str) -> None:
    made = fill(sources, "git", "repo", ref)
    assert (made / "file").read_text() == text
    git("log", cwd=made)


def test_a_ref_that_is_not_there_is_refused_in_gits_words(sources: Path, repository: Path) -> None:
    with pytest.raises(LaunchFailed, match=r"git could not get the workspace: .*nowhere"):
        fill(sources, "git", "repo", "nowhere")


# --- through the provider


async def test_a_threads_first_run_finds_its_source_and_the_next_one_what_became_of_it(
    sources: Path, tmp_path: Path
) -> None:
    (sources / "app").mkdir()
    (sources / "app" / "file").write_text("first\n")
    source = WorkspaceSource(kind=SourceKind.DIRECTORY, place=str(sources / "app"))
    provider = LocalProvider(tmp_path / "s", "test", tmp_path / "w", sources=[str(sources)])
    assert provider.capabilities.workspace_sources
    for run, said in (("run-1", b"first\n"), ("run-2", b"first\nmore\n")):
        sandbox = await provider.create(provider.key(run), "thread", source)
        assert (await run_to_end(sandbox, sh("cat file; echo more >> file")))[0] == said
        await provider.destroy(sandbox.key)
    bare = LocalProvider(tmp_path / "s", "test", tmp_path / "w")
    with pytest.raises(LaunchFailed, match="OUTLAST_WORKSPACE_SOURCES"):
        await bare.create(bare.key("run-3"), "another", source)
