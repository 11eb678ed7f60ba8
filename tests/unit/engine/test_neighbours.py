"""Two shards over one store: each learns what the other changed of its runs, and watches no run but its own (P12)."""

from __future__ import annotations

import asyncio

from unit.engine.stage import Stage, claim, create, finish

from runtime.core.ids import shard_of
from runtime.core.ops import Created, Finished, Note, RequestCancel
from runtime.core.record import CancelReason
from runtime.engine.neighbours import LOOK_S
from runtime.engine.shard import Shard
from runtime.ports import Due
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_loop import elapse, play
from runtime.testing.sim_store import SimThreads, WatchedStore

THREAD = "thread"


def run_on(shard: int, word: str) -> str:
    return next(name for at in range(100) if shard_of(name := f"{word}-{at}", 2) == shard)


FIRST, SECOND = run_on(0, "first"), run_on(1, "second")


async def neighbours(stage: Stage) -> tuple[Shard, Shard]:
    memory = MemoryStore(shards=2)
    store = WatchedStore(memory, stage.trouble, lambda *_: None)

    async def one(shard: int) -> Shard:
        threads = SimThreads(stage.loop.rng, 0.001)
        return await Shard.open(store, shard, "test", settings=stage.settings, clock=stage.loop, threads=threads)

    return await one(0), await one(1)


async def queued_behind(one: Shard, two: Shard) -> None:
    await one.submit(create(FIRST, THREAD))
    await one.submit(claim(0, run_id=FIRST))
    outcome = await two.submit(create(SECOND, THREAD, on_busy="enqueue"))
    assert isinstance(outcome, Created)
    assert outcome.head.queued


async def told(shard: Shard, within_s: float) -> list[Due]:
    found: list[Due] = []
    deadline = asyncio.get_running_loop().time() + within_s
    while (left := deadline - asyncio.get_running_loop().time()) > 0:
        found += await shard.due(left)
    return found


def test_a_run_un_queued_by_another_shard_is_told_by_its_own() -> None:
    async def acts() -> None:
        one, two = await neighbours(Stage(shards=2))
        await queued_behind(one, two)
        outcome = await one.submit(finish(1, run_id=FIRST))
        assert isinstance(outcome, Finished)
        assert outcome.unqueued is not None
        record = await two.record(SECOND)
        assert record is not None
        assert not record[0].queued, "asked for, it is read anew"
        due = await told(two, 2 * LOOK_S)
        assert [(each.head.run_id, each.why) for each in due] == [(SECOND, "unqueued")]

    play(1, acts())


def test_nobody_has_to_ask_for_it() -> None:
    async def acts() -> None:
        one, two = await neighbours(Stage(shards=2))
        await queued_behind(one, two)
        await one.submit(finish(1, run_id=FIRST))
        due = await told(two, 2 * LOOK_S)
        assert [(each.head.run_id, each.why) for each in due] == [(SECOND, "unqueued")]

    play(1, acts())


def test_the_shard_that_un_queued_it_does_not_watch_it() -> None:
    async def acts() -> None:
        stage = Stage(shards=2)
        one, two = await neighbours(stage)
        await queued_behind(one, two)
        await one.submit(finish(1, run_id=FIRST))
        assert await told(one, 3 * stage.settings.start_ttl_s) == []

    play(1, acts())


def test_a_cancel_by_another_shard_s_creation_is_told_if_nobody_acts_on_it() -> None:
    async def acts() -> None:
        stage = Stage(shards=2, lease_ttl_s=60.0)
        one, two = await neighbours(stage)
        await one.submit(create(FIRST, THREAD))
        await one.submit(claim(0, run_id=FIRST))
        await two.submit(create(SECOND, THREAD, on_busy="cancel-previous"))
        due = await told(one, 4 * LOOK_S)
        assert [(each.head.run_id, each.why) for each in due][:1] == [(FIRST, "cancel")]
        assert (await one.pulse(FIRST, 1, 1)).cancel_requested

    play(1, acts())


def test_a_shard_that_is_told_of_a_cancel_by_another_knows_it_at_once() -> None:
    async def acts() -> None:
        one, two = await neighbours(Stage(shards=2))
        await one.submit(create(FIRST, THREAD))
        await one.submit(claim(0, run_id=FIRST))
        await two.submit(create(SECOND, THREAD, on_busy="cancel-previous"))
        await one.submit(RequestCancel(run_id=FIRST, reason=CancelReason.USER))
        assert (await one.pulse(FIRST, 1, 1)).cancel_requested

    play(1, acts())


def test_what_a_commit_finds_changed_by_another_is_learnt_with_it() -> None:
    async def acts() -> None:
        one, two = await neighbours(Stage(shards=2))
        await one.submit(create(FIRST, THREAD))
        await one.submit(claim(0, run_id=FIRST))
        await two.submit(create(SECOND, THREAD, on_busy="cancel-previous"))
        await one.submit(Note(run_id=FIRST, epoch=1, progressed=True))
        assert (await one.pulse(FIRST, 1, 1)).cancel_requested

    play(1, acts())


def test_a_store_that_is_silent_is_asked_again() -> None:
    async def acts() -> None:
        stage = Stage(shards=2)
        one, two = await neighbours(stage)
        await queued_behind(one, two)
        await one.submit(finish(1, run_id=FIRST))
        stage.trouble.down = True
        await elapse(5.0)
        stage.trouble.down = False
        due = await told(two, 6.0)
        assert "unqueued" in [each.why for each in due if each.head.run_id == SECOND]

    play(1, acts())


def test_no_lease_runs_out_while_the_store_does_not_answer() -> None:
    """However short it is: nobody can renew then, and each has a whole one afterwards (P13)."""

    async def acts() -> None:
        stage = Stage(lease_ttl_s=0.5)
        shard = await stage.open()
        await shard.submit(create())
        await shard.submit(claim())
        due = asyncio.create_task(told(shard, 20.0))
        renewing = asyncio.create_task(_renew(shard))
        await elapse(1.0)
        stage.trouble.down = True
        await elapse(15.0)
        stage.trouble.down = False
        assert await due == []
        renewing.cancel()

    play(1, acts())


async def _renew(shard: Shard) -> None:
    tick = 0
    while True:
        tick += 1
        await shard.pulse("run-1", 1, tick)
        await elapse(0.1)
