"""Workspaces of containers begin with sources, whole or not at all, whoever is lost or stands still in between."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from docker_engine import IMAGE, DockerEngine

from runtime.sandboxes import container, container_filling
from runtime.sandboxes.container_line import Line
from runtime.sandboxes.docker import STAGING, DockerProvider
from runtime.sandboxes.hardening import Limits
from runtime.testing.provider_kit import MakeProvider
from runtime.testing.sandbox_kit import run_to_end, sh
from runtime.testing.sources_kit import SEE, SEEN, SourcesKit, fill, folder_of

pytestmark = pytest.mark.timeout(180)
LIMITS = Limits(memory_bytes=256 << 20, pids=64)
WAIT_S = 60.0


class TestDockerSources(SourcesKit):
    @pytest.fixture
    def make_provider(self, engine: DockerEngine, tmp_path: Path, sources: Path) -> MakeProvider:
        return partial(DockerProvider, tmp_path.name, IMAGE, LIMITS, engine.address, [str(sources)], tmp_path / "data")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    made = tmp_path / "sources"
    made.mkdir()
    return made


@pytest.fixture
def provider(engine: DockerEngine, tmp_path: Path, sources: Path) -> DockerProvider:
    return DockerProvider(tmp_path.name, IMAGE, LIMITS, engine.address, [str(sources)], tmp_path / "data")


async def half_filled(sandbox: container.DockerSandbox, folder: Path) -> Line:
    """Send the first half of a folder, and see it arrive; the connection is the caller's to end."""
    line = await sandbox._attach(container.ROOT, *container.FILLER)
    assert not await container_filling.is_made(line)
    parts = list(container_filling._parts(folder))
    await line.send(b"".join(parts[: len(parts) // 2]))
    async with asyncio.timeout(WAIT_S):
        while not (await sandbox.exec(["ls", "-A"], WAIT_S))[1]:
            pass
    return line


async def test_who_comes_after_a_driver_that_was_lost_in_the_middle_begins_anew(
    provider: DockerProvider, sources: Path, tmp_path: Path
) -> None:
    source, key = folder_of(sources), provider.key("run-1")
    fill(tmp_path / "other")
    (tmp_path / "other" / "never").write_text("never")
    sandbox = await provider.create(key, "thread-1")
    (await half_filled(sandbox, tmp_path / "other")).close()
    successor = await provider.create(key, "thread-1", source)
    assert (await run_to_end(successor, sh(f"{SEE}; ls never; find . -user 0 -o -group 0")))[0] == SEEN
    assert list((tmp_path / "data" / STAGING).iterdir()) == []
    await provider.destroy(key)


async def test_who_comes_while_another_fills_waits_and_takes_what_that_one_made(
    provider: DockerProvider, sources: Path
) -> None:
    source, key = folder_of(sources), provider.key("run-1")
    sandbox = await provider.create(key, "thread-1")
    line = await half_filled(sandbox, sources / "app")
    coming = asyncio.create_task(provider.create(key, "thread-1", source))
    parts = list(container_filling._parts(sources / "app"))
    await line.send(b"".join(parts[len(parts) // 2 :]))
    assert (await line.answer())[0]["state"] == "made"
    line.close()
    assert (await run_to_end(await coming, sh(SEE)))[0] == SEEN
    await provider.destroy(key)


async def test_a_half_workspace_is_empty_for_a_run_that_names_no_source(
    provider: DockerProvider, sources: Path
) -> None:
    fill(sources / "app")
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    line = await half_filled(sandbox, sources / "app")
    await provider.destroy(sandbox.key)  # a cancel
    line.close()
    second = await provider.create(provider.key("run-2"), "thread-1")
    assert (await run_to_end(second, sh("ls -A")))[0] == b""
    await provider.destroy(second.key)
    third = await provider.create(provider.key("run-3"), "thread-1", folder_of(sources / "new"))
    assert (await run_to_end(third, sh("ls -A")))[0] == b"", "it is there, though it is empty"
    await provider.destroy(third.key)


async def test_what_cannot_be_written_in_the_container_is_a_clear_ending(
    provider: DockerProvider, sources: Path
) -> None:
    fill(sources / "app")
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    lines = [container_filling._line(path="no/folder", kind="file", size=4, mode=0o644), b"text"]
    line = await sandbox._attach(container.ROOT, *container.FILLER)
    assert not await container_filling.is_made(line)
    await line.send(b"".join([*container_filling._parts(sources / "app")][:-1] + lines + [b'{"kind":"end"}\n']))
    assert "No such file" in (await line.answer())[0]["error"]
    line.close()
    assert (await sandbox.exec(["ls", "-A"], WAIT_S)) == (0, b"")
    await provider.destroy(sandbox.key)
