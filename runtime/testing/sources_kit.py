"""The conformance kit of providers that declare `workspace_sources`: a new workspace is there whole or not at all.

    class TestMySources(SourcesKit):
        @pytest.fixture
        def make_provider(self, tmp_path: Path, sources: Path) -> MakeProvider:
            return functools.partial(MyProvider, tmp_path, allowed=[str(sources)])

It is used as `SandboxKit` is, beside it, and needs git on this host.
"""

# ruff: noqa: D102 - as in `sandbox_kit.py`

from __future__ import annotations

import asyncio
import base64
import io
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from runtime.core.workspace import SourceKind, WorkspaceSource
from runtime.errors import LaunchFailed
from runtime.ports import SandboxProvider
from runtime.testing.provider_kit import MakeProvider, ProviderKit
from runtime.testing.sandbox_kit import DEADLINE_S, run_to_end, sh

FILES = 300
SEE = "cat a/deep/file; ls many | wc -l; readlink link; test -x run && echo runs"
SEEN = b"text\n%d\na/deep/file\nruns\n" % FILES
# Ends with the process that started it, which is killed.
STALLING_GIT = """#!/bin/sh
for last; do :; done
echo half > "$last/half"
echo > "{told}"
while kill -0 $PPID 2> /dev/null; do sleep 0.05; done
"""


def fill(folder: Path) -> None:
    """Make the files of a source."""
    (folder / "a" / "deep").mkdir(parents=True)
    (folder / "a" / "deep" / "file").write_text("text\n")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("a/deep/file")
    (folder / "many").mkdir()
    for number in range(FILES):
        (folder / "many" / str(number)).write_bytes(b"x" * 1000 * (number % 20))


def folder_of(sources: Path) -> WorkspaceSource:
    """Return a folder."""
    fill(sources / "app")
    return WorkspaceSource(kind=SourceKind.DIRECTORY, place=str(sources / "app"))


def archive_of(sources: Path) -> WorkspaceSource:
    """Return an archive of it."""
    fill(sources / "app")
    with tarfile.open(sources / "app.tar.gz", "w:gz") as tar:
        tar.add(sources / "app", "")
    return WorkspaceSource(kind=SourceKind.ARCHIVE, place=str(sources / "app.tar.gz"))


def repository_of(sources: Path) -> WorkspaceSource:
    """Return a repository of it."""
    fill(sources / "app")
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{whose}_{what}": "kit@kit" for whose in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        subprocess.run(["git", *words], cwd=sources / "app", env=env, check=True)
    return WorkspaceSource(kind=SourceKind.GIT, place=str(sources / "app"))


KINDS = {"directory": folder_of, "archive": archive_of, "git": repository_of}


def begin() -> None:
    """Make a sandbox as a program of its own, which is killed in the middle of it."""
    make, key, source = pickle.loads(base64.b64decode(sys.argv[1]))  # noqa: S301 - from our own parent
    asyncio.run(make().create(key, "thread-1", source))


@pytest.mark.asyncio
class SourcesKit(ProviderKit):
    """What every provider that declares `workspace_sources` must do."""

    @pytest.fixture
    def sources(self, tmp_path: Path) -> Path:
        """Return the one folder that is allowed."""
        made = tmp_path / "sources"
        made.mkdir(exist_ok=True)
        return made

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_threads_first_run_finds_its_source_and_the_next_one_what_became_of_it(
        self, provider: SandboxProvider, sources: Path, kind: str
    ) -> None:
        assert provider.capabilities.workspace_sources
        source = KINDS[kind](sources)
        first = await provider.create(provider.key("run-1"), "thread-1", source)
        own = "echo more >> a/deep/file && rm many/* && mkdir own && touch a/new many/new own/new && echo own"
        assert (await run_to_end(first, sh(f"{SEE}; {own}")))[0] == SEEN + b"own\n"
        await provider.destroy(first.key)
        second = await provider.create(provider.key("run-2"), "thread-1", source)
        assert (await run_to_end(second, sh("cat a/deep/file; ls many")))[0] == b"text\nmore\nnew\n"

    async def test_a_workspace_that_is_there_is_never_filled_not_even_an_empty_one(
        self, provider: SandboxProvider, sources: Path
    ) -> None:
        first = await provider.create(provider.key("run-1"), "thread-1")
        assert (await run_to_end(first, sh("ls -A")))[0] == b""
        await provider.destroy(first.key)
        second = await provider.create(provider.key("run-2"), "thread-1", folder_of(sources))
        assert (await run_to_end(second, sh("ls -A")))[0] == b""

    async def test_of_a_source_with_a_way_out_there_is_nothing(self, provider: SandboxProvider, sources: Path) -> None:
        with tarfile.open(sources / "evil.tar", "w") as tar:
            good, link = tarfile.TarInfo("good"), tarfile.TarInfo("way")
            link.type, link.linkname = tarfile.SYMTYPE, "../../etc"
            tar.addfile(good, io.BytesIO())
            tar.addfile(link)
        evil = WorkspaceSource(kind=SourceKind.ARCHIVE, place=str(sources / "evil.tar"))
        elsewhere = WorkspaceSource(kind=SourceKind.DIRECTORY, place="/etc")
        for source in (evil, elsewhere):
            with pytest.raises(LaunchFailed):
                await provider.create(provider.key("run-1"), "thread-1", source)
            await provider.destroy(provider.key("run-1"))
        sandbox = await provider.create(provider.key("run-2"), "thread-1", folder_of(sources))
        assert (await run_to_end(sandbox, sh(SEE)))[0] == SEEN

    async def test_who_fill_at_once_leave_one_whole_workspace(
        self, provider: SandboxProvider, make_provider: MakeProvider, sources: Path
    ) -> None:
        source, key, other = archive_of(sources), provider.key("run-1"), make_provider()
        made = await asyncio.gather(*(each.create(key, "thread-1", source) for each in (provider, other, provider)))
        assert (await run_to_end(made[0], sh(SEE)))[0] == SEEN
        assert (await other.create(key, "thread-1", source)).key == key
        assert (await made[1].exec(["cat", "a/deep/file"], DEADLINE_S)) == (0, b"text\n")

    async def test_of_a_driver_that_was_killed_while_it_filled_nothing_is_left(
        self, make_provider: MakeProvider, sources: Path, tmp_path: Path, provider: SandboxProvider
    ) -> None:
        source, key, told = repository_of(sources), provider.key("run-1"), tmp_path / "told"
        os.mkfifo(told)
        (tmp_path / "bin").mkdir()
        git = tmp_path / "bin" / "git"
        git.write_text(STALLING_GIT.format(told=told))
        git.chmod(0o755)
        paths = {
            "PATH": f"{git.parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path),
        }
        what = base64.b64encode(pickle.dumps((make_provider, key, source))).decode()
        program = f"from {__name__} import begin; begin()"
        driver = await asyncio.create_subprocess_exec(sys.executable, "-c", program, what, env={**os.environ, **paths})
        async with asyncio.timeout(2 * DEADLINE_S):
            await asyncio.to_thread(told.read_text)
            driver.kill()
            await driver.wait()
        sandbox = await provider.create(key, "thread-1", source)
        assert (await run_to_end(sandbox, sh(f"{SEE}; ls -A")))[0].split(b"runs\n")[1].split() == [
            b".git",
            b"a",
            b"link",
            b"many",
            b"run",
        ]
