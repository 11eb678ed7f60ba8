"""A PostgreSQL server that freezes or dies under a shard: seen in bounded time, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import waiting
from postgres_server import PostgresServer

from runtime.core.ops import Append, Appended, Attach, Claimed, Created
from runtime.engine.claimed_log import pages
from runtime.engine.clock import StoreThreads, SystemClock
from runtime.engine.shard import Shard
from runtime.errors import StoreError, StoreUnavailable
from runtime.settings import Settings
from runtime.stores.postgres import PostgresStore
from runtime.testing.sample_ops import RUN, append, claim, create, live, text
from runtime.testing.store_cases.shard_driver import ShardDriver

Open = Callable[..., PostgresStore]
BOUND_S = 6.0  # of one call: to connect anew, and to wait for an answer
RUNS = [f"run-{place}" for place in range(6)]


def _stored(call: Callable[[], object]) -> bool:
    try:
        call()
    except StoreUnavailable:
        return False
    return True


def test_a_frozen_server_is_unavailable_in_bounded_time(own_server: PostgresServer, own_store: Open) -> None:
    store = own_store()
    shard = ShardDriver(store)
    shard.start()
    own_server.freeze()
    for ask in (lambda: shard.do(append(live(1, 1, "a"))), lambda: store.read_run(RUN), store.check):
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            ask()
        assert time.monotonic() - begun < BOUND_S
    own_server.thaw()
    waiting.wait_until(lambda: _stored(lambda: shard.do(append(live(1, 1, "a")))), "the append is stored", 20)
    assert shard.log()[1:] == [text("a")]


def test_a_server_that_was_restarted_costs_an_idle_shard_nothing(own_server: PostgresServer, own_store: Open) -> None:
    store = own_store()
    shard = ShardDriver(store)
    shard.start()
    own_server.crash()
    with pytest.raises(StoreUnavailable):
        store.read_run(RUN)
    own_server.restart()
    shard.ask(append(live(1, 1, "a")), Appended)
    assert shard.log()[1:] == [text("a")]


@asynccontextmanager
async def _open_shard(store: PostgresStore) -> AsyncIterator[Shard]:
    threads = StoreThreads()
    shard = await Shard.open(store, 0, "test", settings=Settings(), clock=SystemClock(), threads=threads)
    try:
        yield shard
    finally:
        await shard.close()
        threads.close()


class Writer:
    """Appends to one run as a driver does, and repeats what was not answered."""

    def __init__(self, shard: Shard, run_id: str) -> None:
        self.run_id = run_id
        self.acknowledged = 1
        self.failures = 0
        self.stop = False
        self._shard = shard

    async def write(self) -> None:
        while not self.stop:
            seq = self.acknowledged
            outcome = await self._repeat(append(live(seq, 1, str(seq), str(seq + 1), run_id=self.run_id)))
            assert isinstance(outcome, Appended), outcome
            assert outcome.next_seq == seq + 2
            self.acknowledged = outcome.next_seq

    async def _repeat(self, op: Append) -> object:
        while True:
            try:
                return await self._shard.submit(op)
            except StoreError:
                self.failures += 1


async def _begin(shard: Shard) -> list[Writer]:
    for run_id in RUNS:
        assert isinstance(await shard.submit(create(run_id, f"thread-of-{run_id}")), Created)
        assert isinstance(await shard.submit(claim(0, "driver", run_id)), Claimed)
    return [Writer(shard, run_id) for run_id in RUNS]


async def _check(shard: Shard, writers: list[Writer]) -> None:
    for writer in writers:
        record = await shard.record(writer.run_id)
        assert record is not None
        log = pages(shard, writer.run_id, 0, record[0].next_seq)
        chunks = [chunk async for page in log for batch in page for chunk in batch.chunks()]
        assert len(chunks) == writer.acknowledged
        assert chunks[1:] == [text(str(seq)) for seq in range(1, writer.acknowledged)]


@pytest.mark.parametrize("outage", ["crash", "freeze"])
async def test_an_outage_under_concurrent_appends_loses_and_doubles_nothing(
    own_server: PostgresServer, own_store: Open, outage: str
) -> None:
    def strike() -> None:
        if outage == "crash":
            own_server.crash()
        else:
            own_server.freeze()

    def mend() -> None:
        if outage == "crash":
            own_server.restart()
        else:
            own_server.thaw()

    async with _open_shard(own_store()) as shard:
        writers = await _begin(shard)
        tasks = [asyncio.create_task(writer.write()) for writer in writers]
        for turn in (1, 2):
            goal = 40 * turn
            await waiting.until(lambda goal=goal: min(w.acknowledged for w in writers) > goal, "appends", 30)  # type: ignore[misc]
            await asyncio.to_thread(strike)
            failed = sum(writer.failures for writer in writers)
            await waiting.until(lambda failed=failed: sum(w.failures for w in writers) > failed, "it is felt", 20)  # type: ignore[misc]
            await asyncio.to_thread(mend)
        goal = max(writer.acknowledged for writer in writers) + 20
        await waiting.until(lambda: min(w.acknowledged for w in writers) > goal, "appends go on", 30)
        for writer in writers:
            writer.stop = True
        await asyncio.gather(*tasks)
        await _check(shard, writers)


async def test_no_driver_is_given_up_for_an_outage_longer_than_its_lease(
    own_server: PostgresServer, own_store: Open
) -> None:
    """Nobody can renew while the store is not answering; each has a whole lease from when it does (P13)."""
    async with _open_shard(own_store()) as shard:
        writers = await _begin(shard)
        tasks = [asyncio.create_task(writer.write()) for writer in writers]
        due = asyncio.create_task(shard.due(25))
        await waiting.until(lambda: min(w.acknowledged for w in writers) > 5, "appends", 30)
        begun = time.monotonic()
        await asyncio.to_thread(own_server.freeze)
        await waiting.until(lambda: time.monotonic() - begun > 3 * Settings().lease_ttl_s, "three leases long", 30)
        await asyncio.to_thread(own_server.thaw)
        goal = max(writer.acknowledged for writer in writers) + 5
        await waiting.until(lambda: min(w.acknowledged for w in writers) > goal, "appends go on", 30)
        assert not due.done(), due.result()
        due.cancel()
        for writer in writers:
            writer.stop = True
        await asyncio.gather(*tasks)
        await _check(shard, writers)


async def test_what_happened_unseen_in_an_outage_is_known_once_it_is_over(
    own_server: PostgresServer, own_store: Open
) -> None:
    """A commit that the server finds in its socket when it thaws, when everybody who asked has given up (I7, P7)."""
    store = own_store()
    async with _open_shard(store) as shard:
        await asyncio.to_thread(own_server.freeze)
        asked = [asyncio.create_task(shard.submit(create(name, f"thread-of-{name}"))) for name in RUNS]
        done, _ = await asyncio.wait(asked, timeout=40)
        assert len(done) == len(RUNS)
        assert all(isinstance(task.exception(), StoreUnavailable) for task in done)
        await asyncio.to_thread(own_server.thaw)
        await waiting.until(lambda: _is_there(shard), "the store answers", 20)
        for name in RUNS:
            record = await shard.record(name)
            stored = await asyncio.to_thread(store.read_run, name)
            assert record == stored
        stored_runs = [head.run_id for head in await shard.unfinished()]
        assert sorted(shard._watchlist.others(())) == sorted(stored_runs), "each is watched, and will be started"


async def _is_there(shard: Shard) -> bool:
    try:
        await shard.submit(Attach(run_id="nobody"))
    except StoreError:
        return False
    return True
