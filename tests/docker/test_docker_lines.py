"""Connections into containers: none of them outlives its client, and none says anything about the run by its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
from docker_engine import IMAGE, DockerEngine
from waiting import wait_until

from runtime.core.launch import ExitKind
from runtime.errors import SandboxLost, SandboxUnreachable
from runtime.sandboxes import container
from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.hardening import Limits
from runtime.testing.sandbox_kit import read_all, run_to_end, sh

pytestmark = pytest.mark.timeout(180)
SOON_S = 60.0
COUNTING = "echo on; while [ ! -e gate ]; do sleep 0.05; done; echo last; exit 4"


@pytest.fixture
async def provider(lasting: DockerEngine) -> AsyncIterator[DockerProvider]:
    """Yield a provider; whatever exists afterwards is destroyed."""
    provider = DockerProvider("lines", IMAGE, Limits(memory_bytes=256 << 20, pids=64), lasting.address)
    yield provider
    for key in await provider.list():
        await provider.destroy(key)


def attendants(engine: DockerEngine) -> int:
    """Return how many programs of ours wait in the containers for a client."""
    with engine.client() as client:
        listed = [client.top(one["Id"], ps_args="-ww -eo pid,comm,args")["Processes"] for one in client.containers()]
    found = [(name, command) for processes in listed for _, name, command in processes if "attendant.main" in command]
    assert found, "the recorder is one of them, by its command line"
    return sum(name != "recorder" for name, _ in found)


async def test_a_follower_ends_with_its_client(lasting: DockerEngine, provider: DockerProvider) -> None:
    sandbox = await provider.create(provider.key("run-1"), "thread-ends")
    await sandbox.launch(sh(COUNTING))
    followers = [sandbox.follow(0) for _ in range(3)]
    assert [await anext(follower) for follower in followers] == [b"on\n"] * 3
    assert attendants(lasting) == len(followers)
    for follower in followers:
        await follower.aclose()
    await asyncio.to_thread(wait_until, lambda: attendants(lasting) == 0, "the end of the followers", SOON_S)


async def test_a_follower_goes_on_after_its_engine_was_killed(
    lasting: DockerEngine, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "SILENCE_S", 3.0)
    sandbox = await provider.create(provider.key("run-1"), "thread-killed")
    await sandbox.launch(sh(COUNTING))
    seen = b""
    follower = sandbox.follow(0)
    while not seen.endswith(b"on\n"):
        seen += await anext(follower)
    going_on = asyncio.ensure_future(anext(follower))
    lasting.end(signal.SIGKILL)
    with pytest.raises(SandboxUnreachable):  # the engine's own follower waits and asks again (P17)
        await going_on
    lasting.start()
    await asyncio.to_thread(wait_until, lambda: attendants(lasting) == 0, "the end of the old follower", SOON_S)
    found = await provider.resume(sandbox.key)
    assert found is not None
    assert await found.exit() is None
    assert (await found.exec(["touch", "gate"], SOON_S))[0] == 0
    assert await read_all(found, len(seen)) == b"last\n"
    exit = await found.exit()
    assert exit is not None
    assert exit.code == 4


async def test_what_a_stopped_container_recorded_is_read_and_nothing_launched_twice(
    lasting: DockerEngine, provider: DockerProvider
) -> None:
    sandbox = await provider.create(provider.key("run-1"), "thread-stopped")
    journal, exit = await run_to_end(sandbox, sh("echo once; exit 4"))
    (name,) = lasting.containers()
    with lasting.client() as client:
        client.stop(name, timeout=0)
    found = await provider.resume(sandbox.key)
    assert found is not None
    await found.launch(sh("echo twice"))
    assert (await read_all(found), await found.exit()) == (journal, exit)


async def test_a_paused_container_is_unreachable_and_a_removed_one_is_lost(
    lasting: DockerEngine, provider: DockerProvider
) -> None:
    sandbox = await provider.create(provider.key("run-1"), "thread-paused")
    (name,) = lasting.containers()
    with lasting.client() as client:
        client.pause(name)
        with pytest.raises(SandboxUnreachable, match="docker unpause"):
            await sandbox.launched()
        client.unpause(name)
        assert not await sandbox.launched()
        client.remove_container(name, force=True)
    found = await provider.resume(sandbox.key)
    assert found is None
    with pytest.raises(SandboxLost):
        await sandbox.launched()


@pytest.mark.long
async def test_a_silent_follower_is_not_taken_for_a_lost_one(
    lasting: DockerEngine, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "SILENCE_S", 3.0)
    sandbox = await provider.create(provider.key("run-1"), "thread-silent")
    journal, exit = await run_to_end(sandbox, sh("echo on; sleep 5; echo last"))
    assert (journal, exit.kind) == (b"on\nlast\n", ExitKind.EXITED), exit
    assert attendants(lasting) == 1, "it is the one that was there at the beginning"
