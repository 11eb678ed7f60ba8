"""What ended runs left behind is given back, once, and again where it failed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from waiting import until

from runtime.core.ops import Note, Op
from runtime.core.record import Head, Launch, RunSpec, Status
from runtime.engine import returning
from runtime.engine.clock import SystemClock
from runtime.engine.returning import Kept, Orphans, end_keeping, give_back
from runtime.errors import LaunchFailed, SandboxUnreachable, StoreUnavailable
from runtime.ports import Capabilities, SandboxProvider, ShardPort
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from runtime.testing.sample_ops import finish
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
        return self.driver.do(op)[0]

    async def find_active(self, owner: str, thread_id: str) -> Head | None:
        return self.driver.store.find_active(owner, thread_id)


class Provider:
    """Remembers what was destroyed; fails as long as it is told to. A key is `<host>/<run id>`."""

    capabilities = Capabilities(one_host=True)

    def __init__(self) -> None:
        self.destroyed: list[str] = []
        self.asked: list[str] = []
        self.there: list[str] = []
        self.unreachable = False
        self.able = True  # to make something here
        self.silent: dict[str, asyncio.Event] = {}  # hosts whose destroys wait, and then fail

    def host(self, key: str) -> str:
        return key.partition("/")[0]

    def key(self, run_id: str) -> str:
        if not self.able:
            raise LaunchFailed("nothing can be made here")
        return f"here/{run_id}"

    async def list(self) -> list[str]:
        if self.unreachable:
            raise SandboxUnreachable("its host does not answer")
        return list(self.there)

    async def destroy(self, key: str) -> None:
        if self.unreachable:
            raise SandboxUnreachable("its host does not answer")
        self.asked.append(key)
        if (waits := self.silent.get(self.host(key))) is not None:
            await waits.wait()
            raise SandboxUnreachable("its host does not answer")
        self.destroyed.append(key)


def ended_run(key: str = "key-1") -> tuple[ShardDriver, Provider, list[ShardPort], dict[str, SandboxProvider]]:
    driver, provider = ShardDriver(MemoryStore()), Provider()
    driver.start()
    driver.do(Note(run_id="run-1", epoch=1, sandbox_key=key))
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


class Wall(SystemClock):
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def keeping_run() -> tuple[ShardDriver, Provider, list[ShardPort], dict[str, SandboxProvider]]:
    driver, provider = ShardDriver(MemoryStore()), Provider()
    driver.start()
    driver.do(Note(run_id="run-1", epoch=1, sandbox_key="here/run-1", launch=Launch.INTENDED))
    driver.do(finish(1, 1, keep_s=60))
    return driver, provider, [cast("ShardPort", Direct(driver))], {"local": cast("SandboxProvider", provider)}


async def test_a_kept_sandbox_is_given_back_when_its_time_is_over_and_not_before() -> None:
    driver, provider, shards, providers = keeping_run()
    until_ms = driver.head().sandbox_kept_until
    assert until_ms is not None
    assert await give_back(shards, providers, Wall(until_ms - 1)) == 0
    assert provider.destroyed == []
    assert await give_back(shards, providers, Wall(until_ms)) == 1
    assert provider.destroyed == ["here/run-1"]
    assert (driver.head().destroy_pending, driver.head().sandbox_kept_until) == (False, None)


async def test_a_kept_sandbox_is_no_orphan() -> None:
    driver, provider, _, _ = keeping_run()
    provider.there = ["here/run-1"]
    orphans = orphans_of(driver, provider)
    assert (await orphans.end(), orphans.kept, provider.destroyed) == (0, {}, [])


async def test_a_turn_ends_a_keeping_whose_thread_goes_on() -> None:
    driver, provider, shards, providers = keeping_run()
    driver.start("run-2", "another thread")
    assert await give_back(shards, providers, Wall(driver.now_ms)) == 0
    driver.start("run-3")
    assert await give_back(shards, providers, Wall(driver.now_ms)) == 1
    assert provider.destroyed == ["here/run-1"]


async def test_who_ends_a_keeping_destroys_at_once_and_what_fails_stays_pending() -> None:
    driver, provider, shards, providers = keeping_run()
    kept = driver.head()
    provider.unreachable = True
    await end_keeping(shards[0], providers["local"], kept)
    assert driver.head().to_give_back
    provider.unreachable = False
    assert await give_back(shards, providers, Wall(driver.now_ms)) == 1
    await end_keeping(shards[0], providers["local"], kept)
    assert not driver.head().destroy_pending, (
        "who comes late destroys what is gone once more, and leaves nothing pending"
    )


class Silent:
    """A shard that does not answer."""

    async def record(self, run_id: str) -> tuple[Head, RunSpec] | None:
        raise StoreUnavailable(f"no answer about {run_id}")


def orphans_of(driver: ShardDriver | None, provider: Provider) -> Orphans:
    shard = cast("ShardPort", Silent() if driver is None else Direct(driver))
    return Orphans(lambda _: shard, {"other": cast("SandboxProvider", provider)})


async def test_a_sandbox_that_was_made_after_its_run_had_ended_is_destroyed() -> None:
    """A driver that stood still just before its `create`: the run ends under another, and then it goes on."""
    driver, provider, shards, providers = ended_run()
    await give_back(shards, providers, SystemClock())
    provider.destroyed.clear()
    provider.there = ["here/run-1"]
    assert await orphans_of(driver, provider).end() == 1
    assert provider.destroyed == ["here/run-1"]


async def test_no_sandbox_of_a_run_that_is_not_over_or_not_known_is_an_orphan() -> None:
    driver, provider = ShardDriver(MemoryStore()), Provider()
    driver.start()
    provider.there = ["here/run-1", "here/another", "elsewhere/run-1", "here/not_decodable", "here/of/run-1"]
    orphans = orphans_of(driver, provider)
    assert await orphans.end() == 0
    assert provider.destroyed == []
    assert orphans.kept == {
        "here/another": Kept.UNKNOWN_RUN,
        "here/not_decodable": Kept.UNDECODABLE_NAME,
        "here/of/run-1": Kept.UNDECODABLE_NAME,
    }
    provider.there = []
    assert (await orphans.end(), orphans.kept) == (0, {})


async def test_16_17_18_a_turn_ends_what_an_ended_run_left_and_nothing_beside_it_and_another_turn_nothing() -> None:
    driver, provider, shards, providers = ended_run()
    await give_back(shards, providers, SystemClock())
    provider.destroyed.clear()
    driver.start("run-2", "thread-2")
    provider.there = ["here/run-1", "here/run-2", "here/not_decodable"]
    orphans = orphans_of(driver, provider)
    assert await orphans.end() == 1
    assert provider.destroyed == ["here/run-1"]
    provider.there.remove("here/run-1")
    assert await orphans.end() == 0
    assert (provider.destroyed, orphans.kept) == (["here/run-1"], {"here/not_decodable": Kept.UNDECODABLE_NAME})


async def test_one_turn_destroys_so_many_orphans_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returning, "MAX_ENDED", 1)
    driver, provider, shards, providers = ended_run()
    await give_back(shards, providers, SystemClock())
    provider.destroyed.clear()
    provider.there = ["here/run-1", "elsewhere/run-1"]
    orphans = orphans_of(driver, provider)
    assert await orphans.end() == 1
    assert list(orphans.kept.values()) == [Kept.MAX_DELETES]
    provider.there = list(orphans.kept)
    assert (await orphans.end(), orphans.ended) == (1, 2)


async def test_an_orphan_on_another_host_is_destroyed_too() -> None:
    driver, provider, shards, providers = ended_run()
    await give_back(shards, providers, SystemClock())
    provider.destroyed.clear()
    provider.there = ["elsewhere/run-1"]
    assert await orphans_of(driver, provider).end() == 1
    assert provider.destroyed == ["elsewhere/run-1"]


async def test_an_orphan_elsewhere_is_destroyed_where_nothing_of_its_kind_can_be_made_here() -> None:
    driver, provider, shards, providers = ended_run()
    await give_back(shards, providers, SystemClock())
    provider.there, provider.able = ["elsewhere/run-1"], False
    assert await orphans_of(driver, provider).end() == 1


async def test_a_sandbox_beside_the_one_that_its_run_names_is_an_orphan() -> None:
    driver, provider = ShardDriver(MemoryStore()), Provider()
    driver.start()
    driver.do(Note(run_id="run-1", epoch=1, sandbox_key="here/run-1"))
    orphans = orphans_of(driver, provider)
    provider.there = ["elsewhere/run-1"]
    assert await orphans.end() == 0, "it may be the same one by another name"
    provider.there = ["elsewhere/run-1", "here/run-1"]
    assert await orphans.end() == 1
    assert provider.destroyed == ["elsewhere/run-1"]


async def test_a_host_that_does_not_answer_is_asked_once_and_holds_up_no_other() -> None:
    driver, provider = ShardDriver(MemoryStore()), Provider()
    for run_id, thread_id in (("run-1", "thread-1"), ("run-2", "thread-2")):
        driver.start(run_id, thread_id)
        driver.end(run_id, status=Status.FAILED)
        driver.do(Note(run_id=run_id, epoch=1, destroy_pending=False))
    provider.there = ["a/run-1", "a/run-2", "b/run-1", "b/run-2"]
    silence = provider.silent["a"] = asyncio.Event()
    ending = asyncio.create_task(orphans_of(driver, provider).end())
    await until(lambda: provider.destroyed == ["b/run-1", "b/run-2"], "the orphans of the other host")
    assert not ending.done()
    silence.set()
    assert await ending == 2
    assert provider.asked.count("a/run-1") + provider.asked.count("a/run-2") == 1


async def test_a_destroy_that_is_pending_is_not_done_twice() -> None:
    driver, provider, _, _ = ended_run()
    provider.there = ["here/run-1"]
    assert await orphans_of(driver, provider).end() == 0


async def test_a_sandbox_is_kept_while_the_store_does_not_say_whose_it_is() -> None:
    provider = Provider()
    provider.there = ["here/run-1"]
    orphans = orphans_of(None, provider)
    assert await orphans.end() == 0
    assert (provider.destroyed, orphans.kept) == ([], {"here/run-1": Kept.STORE_ERROR})


async def test_a_provider_that_does_not_answer_is_asked_again() -> None:
    driver, provider, shards, providers = ended_run()
    await give_back(shards, providers, SystemClock())
    provider.there, provider.unreachable = ["here/run-1"], True
    orphans = orphans_of(driver, provider)
    assert await orphans.end() == 0
    provider.unreachable = False
    assert await orphans.end() == 1


def test_the_interval_is_a_setting() -> None:
    assert Settings().reap_interval_s > 0


async def test_a_provider_that_hangs_holds_up_no_other_host_and_no_later_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returning, "DESTROY_S", 0.05)
    driver, provider, shards, providers = ended_run("away/run-1")
    driver.start("run-2", "thread-2")
    driver.do(Note(run_id="run-2", epoch=1, sandbox_key="here/run-2"))
    driver.end("run-2", status=Status.FAILED)
    provider.silent["away"] = asyncio.Event()
    assert await give_back(shards, providers, SystemClock()) == 1
    assert (provider.destroyed, driver.head().destroy_pending) == (["here/run-2"], True)
    del provider.silent["away"]
    assert await give_back(shards, providers, SystemClock()) == 1
    assert not driver.head().destroy_pending
