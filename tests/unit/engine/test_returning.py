"""What ended runs left behind is given back, once, and again where it failed."""

from __future__ import annotations

from typing import Any, cast

from runtime.core.ops import Note, Op
from runtime.core.record import Head, RunSpec, Status
from runtime.engine.clock import SystemClock
from runtime.engine.returning import give_back
from runtime.errors import SandboxUnreachable
from runtime.ports import SandboxProvider, ShardPort
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from runtime.testing.store_cases.shard_driver import ShardDriver


class Direct:
    """A shard's questions over a store, without its memory."""

    def __init__(self, driver: ShardDriver) -> None:
        self.driver = driver

    async def destroy_pending(self) -> list[Head]:
        return self.driver.store.list_destroy_pending(0)

    async def record(self, run_id: str) -> tuple[Head, RunSpec] | None:
        return self.driver.store.read_run(run_id)

    async def submit(self, op: Op) -> Any:
        return self.driver.do(op)


class Provider:
    """Remembers what was destroyed; fails as long as it is told to."""

    def __init__(self) -> None:
        self.destroyed: list[str] = []
        self.unreachable = False

    async def destroy(self, key: str) -> None:
        if self.unreachable:
            raise SandboxUnreachable("its host does not answer")
        self.destroyed.append(key)


def ended_run() -> tuple[ShardDriver, Provider, list[ShardPort], dict[str, SandboxProvider]]:
    driver, provider = ShardDriver(MemoryStore()), Provider()
    driver.start()
    driver.do(Note(run_id="run-1", epoch=1, sandbox_key="key-1"))
    driver.end(status=Status.FAILED)
    name = driver.store.read_run("run-1")
    assert name is not None
    providers = {name[1].provider: cast("SandboxProvider", provider)}
    return driver, provider, [cast("ShardPort", Direct(driver))], providers


async def test_a_sandbox_whose_driver_died_before_its_destroy_is_destroyed_once() -> None:
    driver, provider, shards, providers = ended_run()
    assert await give_back(shards, providers, SystemClock()) == 1
    assert await give_back(shards, providers, SystemClock()) == 0
    assert provider.destroyed == ["key-1"]
    assert not driver.head().destroy_pending


async def test_a_destroy_that_fails_stays_pending() -> None:
    driver, provider, shards, providers = ended_run()
    provider.unreachable = True
    assert await give_back(shards, providers, SystemClock()) == 0
    assert driver.head().destroy_pending
    provider.unreachable = False
    assert await give_back(shards, providers, SystemClock()) == 1


async def test_a_provider_that_is_not_here_destroys_nothing() -> None:
    driver, _, shards, _ = ended_run()
    assert await give_back(shards, {}, SystemClock()) == 0
    assert driver.head().destroy_pending


def test_the_interval_is_a_setting() -> None:
    assert Settings().reap_interval_s > 0
