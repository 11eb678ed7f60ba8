"""A wall clock that is wrong, or was, has nothing removed before its time."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from unit.engine.ended_yard import LOG_S, TRANSCRIPT_S, ended, mark, one_more
from unit.engine.yard import Yard

from runtime.core.reap_ops import Forget, PruneLog
from runtime.core.record import Kept
from runtime.engine.pruning import Pruned, Pruner
from runtime.engine.wall_watch import HOLD_S
from runtime.ports import Clock, RunPage, RunQuery, ShardPort
from runtime.testing.sim_loop import elapse, play


class MovedClock:
    """The loop's clocks, the wall one moved by a test."""

    def __init__(self, real: Clock) -> None:
        self.moved_s = 0.0
        self._real = real

    def monotonic(self) -> float:
        return self._real.monotonic()

    def wall_ms(self) -> int:
        return self._real.wall_ms() + int(1000 * self.moved_s)


def moved(yard: Yard, *, by_s: float = 0.0) -> tuple[Pruner, MovedClock]:
    """Return a pruner whose clock can be moved, on a machine where the shard's is moved with it: that believes whatever
    it is told, and has made another run since."""
    acts = yard.acts
    clock = MovedClock(acts.stage.loop)
    clock.moved_s = by_s

    class Beside:
        def __getattr__(self, name: str) -> Any:
            return getattr(acts.shard, name)

        async def list_runs(self, query: RunQuery) -> RunPage:
            page = await acts.shard.list_runs(query)
            new = msgspec.structs.replace(page.runs[0][0], run_id="run-9", created_at=clock.wall_ms() + 1)
            return msgspec.structs.replace(page, runs=[(new, page.runs[0][1]), *page.runs])

        async def submit(self, op: Any) -> Any:
            named = isinstance(op, PruneLog | Forget)
            return await acts.shard.submit(msgspec.structs.replace(op, retention_ms=0) if named else op)

    shards = {0: cast("ShardPort", Beside())}
    return Pruner(acts.supervisor, shards, clock, yard.retention), clock


def test_a_supervisor_whose_clock_is_ahead_of_the_shards_removes_nothing_before_its_time() -> None:
    async def acts() -> None:
        yard = await ended()
        clock = MovedClock(yard.acts.stage.loop)
        clock.moved_s = TRANSCRIPT_S * 2
        pruner = Pruner(yard.acts.supervisor, {0: yard.acts.shard}, clock, yard.retention)
        assert await pruner.turn([]) == Pruned()
        assert yard.acts.stage.head().kept is Kept.LOG
        await elapse(LOG_S + 1.0)
        assert await pruner.turn([]) == Pruned(logs=1)
        await yard.close()

    play(1, acts())


def test_a_clock_that_jumps_ahead_has_nothing_given_up_for_an_hour() -> None:
    async def acts() -> None:
        yard = await ended((LOG_S, 0))
        pruner, clock = moved(yard)
        clock.moved_s = 86_400.0
        failures: list[str] = []
        assert await pruner.turn(failures, dry_run=True) == await pruner.turn(failures) == Pruned()
        assert ["86400 s ahead" in failure for failure in failures] == [True, True]
        await elapse(HOLD_S - 1.0)
        assert await pruner.turn([]) == Pruned()
        clock.moved_s = 0.0  # set right in time
        await elapse(2.0)
        clock.moved_s = 200.0  # and goes a little wrong
        assert yard.acts.stage.head().kept is Kept.LOG
        failures = []
        assert await pruner.turn(failures) == Pruned(logs=1)  # more than an hour has really passed
        assert failures == []
        await yard.close()

    play(1, acts())


def test_many_small_steps_ahead_are_a_jump() -> None:
    async def acts() -> None:
        yard = await ended((86_400, 0))
        pruner, clock = moved(yard)
        doubted = 0
        for _ in range(30):
            clock.moved_s += 100.0
            failures: list[str] = []
            await pruner.turn(failures)
            doubted += bool(failures)
        assert doubted == 27
        await yard.close()

    play(1, acts())


def test_a_machine_that_begins_with_a_clock_far_ahead_gives_up_nothing_for_an_hour() -> None:
    async def acts() -> None:
        yard = await ended((LOG_S, 0))
        pruner, _ = moved(yard, by_s=2 * 86_400.0)
        failures: list[str] = []
        assert await pruner.turn(failures) == Pruned()
        assert ["48 h behind the clock" in failure for failure in failures] == [True]
        await elapse(HOLD_S - 10.0)
        await one_more(yard)
        assert await pruner.turn([]) == Pruned()
        assert yard.acts.stage.head().kept is Kept.LOG
        await elapse(20.0)
        assert await pruner.turn([]) == Pruned(logs=2)
        await yard.close()

    play(1, acts())


def test_what_was_given_up_is_removed_to_its_end_whatever_the_clock_does() -> None:
    async def acts() -> None:
        yard = await ended((10_000, 0))
        await yard.acts.shard.submit(mark(yard))
        pruner, clock = moved(yard)
        clock.moved_s = 86_400.0
        assert await pruner.turn([]) == Pruned(logs=1)
        assert (yard.acts.stage.head().kept, yard.acts.stage.log()) == (Kept.TRANSCRIPT, [])
        await yard.close()

    play(1, acts())
