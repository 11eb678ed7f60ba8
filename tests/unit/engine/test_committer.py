"""Group commit: what is one transaction, what is tried again, and what is told to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from unit.engine.stage import Stage, create, finish, rng

from runtime.core.ops import Attach, Created, Joined, Op, Outcome, ThreadBusy, UnknownRun
from runtime.engine.committer import MAX_BYTES, MAX_OPS, Committer
from runtime.errors import OutlastError, ShardSuperseded, StoreFull, StoreUnavailable
from runtime.testing.sim_loop import elapse, play
from runtime.testing.sim_store import StoreTrouble, WatchedStore


class Acts:
    """A committer, and what it told its shard."""

    def __init__(self, stage: Stage, *errors: Exception, after: bool = False) -> None:
        self.stage = stage
        store = WatchedStore(stage.memory, Planned(*errors, after=after), lambda *_: None)
        self.applied: list[Outcome] = []
        self.failed: list[OutlastError] = []
        epoch = stage.store.open_shard(0, "test")
        self.committer = Committer(
            store if errors else stage.store,
            0,
            epoch,
            clock=stage.loop,
            threads=stage.threads,
            applied=lambda _op, outcome: self.applied.append(outcome),
            failed=self.failed.append,
        )

    async def all(self, ops: Sequence[Op]) -> list[Outcome]:
        """Submit in this order, all but at once."""
        tasks = []
        for op in ops:
            tasks.append(asyncio.create_task(self.committer.submit(op)))
            await elapse(1e-9)
        return await asyncio.gather(*tasks)


class Planned(StoreTrouble):
    """Raises these in the next commits, before or after they happen."""

    def __init__(self, *errors: Exception, after: bool = False) -> None:
        super().__init__(rng(1))
        self._errors = list(errors)
        self._after = after

    def strike(self, share: float) -> None:
        if share or (self._errors and not self._after):
            raise self._errors.pop(0)

    def strike_after(self) -> None:
        if self._errors and self._after:
            raise self._errors.pop(0)


def test_what_gathers_while_one_transaction_runs_is_the_next_one() -> None:
    async def acts() -> None:
        acts = Acts(Stage(slow_s=1.0))
        first = asyncio.create_task(acts.committer.submit(create("run-0", "thread-0")))
        await elapse(0.000001)
        await acts.all([create(f"run-{at}", f"thread-{at}") for at in range(1, 9)])
        await first
        assert [len(ops) for ops, _ in acts.stage.commits] == [1, 8]

    play(1, acts())


def test_a_transaction_is_bounded() -> None:
    async def acts() -> None:
        acts = Acts(Stage(slow_s=1.0))
        await acts.all([Attach(run_id=f"run-{at}") for at in range(MAX_OPS + 10)])
        assert [len(ops) for ops, _ in acts.stage.commits] == [1, MAX_OPS, 9]

    play(1, acts())


def test_transcripts_count_for_a_transactions_bytes() -> None:
    async def acts() -> None:
        stage = Stage()
        long = msgspec.structs.replace(finish(1), transcript=b"x" * (MAX_BYTES // 2))
        await Acts(stage).all([Attach(run_id="nobody"), *[long] * 6])
        assert [len(ops) for ops, _ in stage.commits] == [1, 2, 2, 2]

    play(1, acts())


def test_a_refusal_is_an_answer_and_touches_no_other() -> None:
    async def acts() -> None:
        acts = Acts(Stage())
        outcomes = await acts.all([create("run-1"), create("run-2"), Attach(run_id="nobody"), create("run-3", "t3")])
        assert [type(outcome) for outcome in outcomes] == [Created, ThreadBusy, UnknownRun, Created]

    play(1, acts())


def test_memory_is_brought_up_before_anybody_is_answered() -> None:
    async def acts() -> None:
        acts = Acts(Stage(slow_s=1.0))

        async def one(op: Op) -> None:
            assert await acts.committer.submit(op) in acts.applied

        await asyncio.gather(*(one(create(f"run-{at}", f"t{at}")) for at in range(9)))

    for seed in range(5):
        play(seed, acts())


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_without_an_answer_is_tried_again_and_finds_itself(after: bool) -> None:
    async def acts() -> None:
        acts = Acts(Stage(), StoreUnavailable("gone"), after=after)
        outcome = await acts.committer.submit(create())
        assert isinstance(outcome, Joined if after else Created)
        assert [type(error) for error in acts.failed] == [StoreUnavailable]
        assert len(acts.stage.log()) == 1

    play(1, acts())


def test_after_three_tries_the_callers_are_told_and_the_next_ones_are_served() -> None:
    async def acts() -> None:
        acts = Acts(Stage(), *[StoreUnavailable("gone")] * 3)
        with pytest.raises(StoreUnavailable):
            await acts.committer.submit(create())
        assert len(acts.failed) == 3
        assert isinstance(await acts.committer.submit(create()), Created)

    play(1, acts())


def test_the_first_success_after_a_failure_says_that_what_failed_is_settled() -> None:
    async def acts() -> None:
        acts = Acts(Stage(), *[StoreUnavailable("gone")] * 3, after=True)
        recoveries: list[int] = []
        acts.committer.recovered = lambda: recoveries.append(len(acts.applied))
        with pytest.raises(StoreUnavailable):
            await acts.committer.submit(create())
        assert recoveries == []
        for at in range(3):
            await acts.committer.submit(create(f"run-{at}", f"t{at}"))
        assert recoveries == [0], "once, and before anybody hears of the success"

    play(1, acts())


def test_a_full_store_is_told_at_once() -> None:
    async def acts() -> None:
        acts = Acts(Stage(), StoreFull("no space left"))
        with pytest.raises(StoreFull):
            await acts.committer.submit(create())
        assert len(acts.failed) == 1
        assert isinstance(await acts.committer.submit(create()), Created)

    play(1, acts())


def test_a_defect_of_the_store_reaches_the_callers_as_unavailable() -> None:
    async def acts() -> None:
        acts = Acts(Stage(), *[ZeroDivisionError()] * 3)
        with pytest.raises(StoreUnavailable, match="ZeroDivisionError"):
            await acts.committer.submit(create())

    play(1, acts())


def test_a_superseded_incarnation_fails_what_is_pending_and_all_that_comes() -> None:
    async def acts() -> None:
        acts = Acts(Stage(slow_s=1.0))
        acts.stage.memory.open_shard(0, "successor")
        first = asyncio.create_task(acts.committer.submit(create()))
        await elapse(0.000001)
        ops = [create(f"run-{at}", f"thread-{at}") for at in range(2, 5)]
        answers = await asyncio.gather(first, *map(acts.committer.submit, ops), return_exceptions=True)
        assert {type(answer) for answer in answers} == {ShardSuperseded}
        with pytest.raises(ShardSuperseded):
            await acts.committer.submit(create())
        assert acts.stage.memory.list_unfinished(0) == []

    play(1, acts())


def test_an_incarnation_that_nobody_writes_through_learns_of_its_successor() -> None:
    async def acts() -> None:
        acts = Acts(Stage())
        await acts.committer.confirm()
        assert acts.failed == []
        await elapse(1.5)
        assert acts.committer.unconfirmed_s >= 1.5
        acts.stage.memory.open_shard(0, "successor")
        await acts.committer.confirm()
        with pytest.raises(ShardSuperseded):
            await acts.committer.submit(create())

    play(1, acts())


def test_a_caller_that_left_takes_nothing_from_the_others() -> None:
    async def acts() -> None:
        acts = Acts(Stage())
        leaving = asyncio.create_task(acts.committer.submit(create("run-1", "t1")))
        staying = asyncio.create_task(acts.committer.submit(create("run-2", "t2")))
        await elapse(0.0)
        leaving.cancel()
        assert isinstance(await staying, Created)
        assert len(acts.stage.memory.list_unfinished(0)) == 2

    play(1, acts())
