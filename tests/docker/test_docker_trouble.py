"""What is missing is said plainly, with what to do: by `outlast doctor`, and as the ending of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from docker_engine import IMAGE, DockerEngine

from runtime.errors import LaunchFailed, SandboxUnreachable
from runtime.sandboxes import container_python, docker
from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.docker_survey import examine
from runtime.sandboxes.hardening import Limits
from runtime.settings import load
from runtime.testing.sandbox_kit import run_to_end, sh
from serve_app.commands import checks

pytestmark = pytest.mark.timeout(180)
ABSENT = "registry.invalid/nothing:1"


def nowhere(tmp_path: Path) -> DockerProvider:
    return DockerProvider("test", IMAGE, Limits(), f"unix://{tmp_path}/none.sock")


async def test_where_there_is_no_engine_a_run_cannot_begin_and_nothing_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = nowhere(tmp_path)
    with pytest.raises(SandboxUnreachable, match="Install Docker"):  # it may be restarting
        provider.key("run-1")
    monkeypatch.setattr(docker, "ABSENT_PATIENCE_S", 0.0)
    with pytest.raises(LaunchFailed, match="OUTLAST_DOCKER_HOST"):
        provider.key("run-1")
    assert await provider.list() == []


async def test_an_engine_that_is_away_proves_nothing(tmp_path: Path) -> None:
    key = "docker/some-engine/test/run-1"
    with pytest.raises(SandboxUnreachable):
        await nowhere(tmp_path).resume(key)
    with pytest.raises(SandboxUnreachable):
        await nowhere(tmp_path).destroy(key)


async def test_another_engine_proves_nothing(engine: DockerEngine) -> None:
    provider = DockerProvider("test", IMAGE, Limits(), engine.address)
    key = "docker/some-engine/test/run-1"
    with pytest.raises(SandboxUnreachable, match="not of this engine"):
        await provider.resume(key)
    with pytest.raises(SandboxUnreachable, match="not of this engine"):
        await provider.destroy(key)


async def test_an_image_that_cannot_be_had_is_a_clear_ending(engine: DockerEngine) -> None:
    provider = DockerProvider("test-no-image", ABSENT, Limits(), engine.address)
    with pytest.raises(LaunchFailed, match=r"registry\.invalid/nothing:1 .*OUTLAST_DOCKER_IMAGE"):
        await provider.create(provider.key("run-1"), "thread-1")
    assert await provider.list() == []


def test_doctor_says_what_is_missing(engine: DockerEngine, tmp_path: Path) -> None:
    ok, detail = examine(f"unix://{tmp_path}/none.sock", IMAGE)
    assert (ok, "Install Docker" in detail) == (False, True)
    ok, detail = examine(engine.address, ABSENT)
    assert (ok, "not there yet" in detail) == (True, True)
    ok, detail = examine(engine.address, IMAGE)
    assert (ok, f"the image {IMAGE} is there" in detail) == (True, True)


def test_doctor_looks_only_if_containers_are_chosen(engine: DockerEngine) -> None:
    chosen = load({}, sandbox="docker", docker_host=engine.address, docker_image=IMAGE)
    assert engine.address in checks.docker(chosen).detail
    assert "isolates the agent" in checks.sandbox(chosen).detail
    assert checks.docker(load({})).detail.startswith("not looked at")


@pytest.mark.long
async def test_a_volume_that_was_not_filled_to_its_end_is_filled_again() -> None:
    own = DockerEngine()
    try:
        own.import_image()
        with own.client() as client:
            client.create_volume(container_python.volume())
        provider = DockerProvider("test", IMAGE, Limits(), own.address)
        made = await asyncio.gather(*(provider.create(provider.key(f"run-{n}"), f"thread-{n}") for n in range(3)))
        for sandbox in made:
            journal, _ = await run_to_end(sandbox, sh("echo filled"))
            assert journal == b"filled\n"
        assert len(own.containers()) == len(made)
    finally:
        own.close()
