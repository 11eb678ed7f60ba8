"""Every run that needs a driver has one, and nobody decides who is not the newest supervisor (I7, P6)."""

from __future__ import annotations

import asyncio

import pytest
from unit.engine.stage import RUN, Stage, claimant, create
from unit.engine.test_shard import append, claim, finish

from runtime.core.ops import Finished, RequestCancel, RequestHandover
from runtime.core.record import CancelReason, ClaimReason, Status
from runtime.engine.driver import DriveEnd
from runtime.engine.shard import Shard
from runtime.engine.supervisor import DriverDied, RunHandle, Supervisor
from runtime.errors import RunEnded, RunNotFound
from runtime.testing.sim_loop import elapse, play
from runtime.testing.sim_sandbox import SimProvider


class Handle:
    """A run actor that does what the test says: nothing by itself."""

    def __init__(self, fleet: Fleet, run_id: str, expected_epoch: int, reason: ClaimReason) -> None:
        self.actor_id = f"actor-{len(fleet.made) + 1}"
        self.run_id = run_id
        self.expected_epoch = expected_epoch
        self.reason = reason
        self.killed = False
        self.receipt = True
        self.cancelled = 0
        self.end: asyncio.Future[DriveEnd] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        pass

    async def ended(self) -> DriveEnd:
        return await asyncio.shield(self.end)

    async def cancel(self) -> bool:
        self.cancelled += 1
        if not self.receipt:
            await elapse(3600.0)
        return True

    def kill(self) -> None:
        self.killed = True

    def die(self) -> None:
        self.end.set_exception(DriverDied(self.actor_id))
        self.end.exception()


class Fleet:
    """Makes handles; `fail` makes the next ones fail."""

    def __init__(self) -> None:
        self.made: list[Handle] = []
        self.living: dict[str, Handle] = {}
        self.fail: list[Exception] = []

    async def create(self, run_id: str, expected_epoch: int, reason: ClaimReason) -> RunHandle:
        if self.fail:
            raise self.fail.pop(0)
        handle = Handle(self, run_id, expected_epoch, reason)
        self.made.append(handle)
        self.living[run_id] = handle
        return handle

    async def find(self, run_id: str) -> RunHandle | None:
        return self.living.get(run_id)


class Acts:
    stage: Stage
    shard: Shard
    fleet: Fleet
    supervisor: Supervisor

    @classmethod
    async def open(cls, *, attempts: int = 8) -> Acts:
        self = cls()
        self.stage = Stage(takeover_attempts=attempts)
        self.shard = await self.stage.open()
        self.fleet = Fleet()
        self.supervisor = await self.another("supervisor")
        return self

    async def another(self, name: str) -> Supervisor:
        supervisor = Supervisor(
            {0: self.shard},
            self.fleet,
            {"sim": SimProvider(self.stage.world, name)},
            claimant(name),
            settings=self.stage.settings,
            clock=self.stage.loop,
            shard_of=lambda _run_id: self.shard,
        )
        await supervisor.open()
        return supervisor

    async def begun(self) -> Handle:
        """Start a run; return its driver, which has claimed."""
        await self.shard.submit(create())
        await self.supervisor.start(RUN)
        await elapse(0.1)
        await self.claimed(0)
        return self.fleet.made[-1]

    async def claimed(self, expected: int) -> None:
        await self.shard.submit(claim(expected, f"driver-{expected + 1}"))

    @property
    def made(self) -> list[tuple[int, str]]:
        return [(handle.expected_epoch, handle.reason.value) for handle in self.fleet.made]


def test_a_new_run_gets_a_driver_at_once_and_one() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        await acts.supervisor.start(RUN)
        await acts.supervisor.ensure(RUN)
        await elapse(1.0)
        assert acts.made == [(0, "start")]
        assert acts.supervisor.watching == {RUN: "actor-1"}

    play(1, acts())


def test_a_driver_that_dies_is_replaced_at_once() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        first.die()
        await elapse(0.5)
        assert acts.made == [(0, "start"), (1, "driver_lost")]
        assert acts.supervisor.tally.takeovers == 1

    play(1, acts())


def test_a_driver_that_hangs_is_replaced_by_its_lease_and_killed() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await elapse(5.0)
        assert acts.made == [(0, "start"), (1, "lease_expired")]
        assert first.killed

    play(1, acts())


def test_a_run_whose_start_nobody_heard_of_is_found() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.shard.submit(create())
        await elapse(11.0)
        assert acts.made == [(0, "start")]

    play(1, acts())


def test_a_handover_is_followed_by_a_successor() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await acts.shard.submit(RequestHandover(run_id=RUN))
        first.end.set_result(DriveEnd("handed_over"))
        await elapse(0.5)
        assert acts.made == [(0, "start"), (1, "drain")]

    play(1, acts())


def test_a_run_that_finished_is_let_go_and_the_next_of_its_thread_started() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await acts.shard.submit(create("run-2", on_busy="enqueue"))
        assert isinstance(await acts.shard.submit(finish(1)), Finished)
        first.end.set_result(DriveEnd("finished", Status.COMPLETED, "run-2"))
        await elapse(1.0)
        assert [(handle.run_id, handle.reason.value) for handle in acts.fleet.made] == [
            (RUN, "start"),
            ("run-2", "start"),
        ]
        assert list(acts.supervisor.watching) == ["run-2"]

    play(1, acts())


def test_an_unqueued_run_is_started_although_its_predecessors_driver_died() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await acts.shard.submit(create("run-2", on_busy="enqueue"))
        await acts.shard.submit(finish(1))
        first.die()
        await elapse(3.0)
        assert [handle.run_id for handle in acts.fleet.made] == [RUN, "run-2"]

    play(1, acts())


def test_a_cancel_is_told_to_the_driver_and_its_receipt_is_enough() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await acts.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        await acts.supervisor.cancel(RUN)
        assert first.cancelled == 1
        assert acts.made == [(0, "start")]

    play(1, acts())


def test_a_cancel_without_a_receipt_makes_a_driver_that_ends_the_run() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        first.receipt = False
        await acts.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        await acts.supervisor.cancel(RUN)
        await elapse(0.2)
        assert acts.made == [(0, "start"), (1, "cancel")]
        assert first.killed

    play(1, acts())


def test_a_cancel_that_nobody_heard_of_is_found() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        first.receipt = False
        await acts.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        await elapse(3.0)
        assert (1, "cancel") in acts.made

    play(1, acts())


def test_a_queued_run_that_is_cancelled_is_ended_by_the_supervisor() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        await acts.shard.submit(create("run-2", on_busy="enqueue"))
        await acts.shard.submit(RequestCancel(run_id="run-2", reason=CancelReason.USER))
        await acts.supervisor.cancel("run-2")
        head = acts.stage.head("run-2")
        assert (head.status, head.claims[0].reason) == (Status.ABORTED, ClaimReason.CANCEL)
        assert acts.made == [(0, "start")]

    play(1, acts())


def test_a_person_may_replace_a_driver() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        assert await acts.supervisor.takeover(RUN) == 1
        await elapse(0.2)
        assert acts.made == [(0, "start"), (1, "operator")]
        with pytest.raises(RunNotFound):
            await acts.supervisor.takeover("nobody")
        await acts.claimed(1)
        await acts.shard.submit(finish(1, epoch=2))
        with pytest.raises(RunEnded):
            await acts.supervisor.takeover(RUN)

    play(1, acts())


def test_attempts_without_progress_come_slower_and_have_an_end() -> None:
    async def acts() -> None:
        acts = await Acts.open(attempts=4)
        await acts.begun()
        times = []
        for expected in range(1, 4):
            acts.fleet.made[-1].die()
            while len(acts.fleet.made) == expected:
                await elapse(0.01)
            times.append(acts.stage.loop.time())
            await acts.claimed(expected)
        acts.fleet.made[-1].die()
        await elapse(5.0)
        head = acts.stage.head()
        assert head.error is not None
        assert (head.status, head.error.code) == (Status.FAILED, "takeover_exhausted")
        assert len(acts.fleet.made) == 4
        assert times[2] - times[1] > times[1] - times[0]
        assert acts.supervisor.tally.exhausted == 1

    play(1, acts())


def test_a_cancel_does_not_wait_for_the_backoff() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        for expected in range(1, 6):
            acts.fleet.made[-1].die()
            while len(acts.fleet.made) == expected:
                await elapse(0.01)
            await acts.claimed(expected)
        acts.fleet.made[-1].receipt = False
        await acts.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        asked_at = acts.stage.loop.time()
        await acts.supervisor.cancel(RUN)
        await elapse(0.1)
        assert acts.made[-1] == (6, "cancel")
        assert acts.stage.loop.time() - asked_at < 1.2

    play(1, acts())


def test_progress_gives_all_attempts_back() -> None:
    async def acts() -> None:
        acts = await Acts.open(attempts=3)
        await acts.begun()
        for expected in range(1, 10):
            await acts.shard.submit(append(expected, "A", epoch=expected))
            acts.fleet.made[-1].die()
            await elapse(0.5)
            await acts.claimed(expected)
        assert acts.stage.head().status is Status.RUNNING

    play(1, acts())


@pytest.mark.parametrize(
    ("error", "after_s"), [(DriverDied("no worker"), 1.0), (RuntimeError("a defect of the cluster"), 12.0)]
)
def test_a_driver_that_cannot_be_made_is_tried_again(error: Exception, after_s: float) -> None:
    async def acts() -> None:
        acts = await Acts.open()
        acts.fleet.fail = [error]
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(after_s)
        assert acts.made == [(0, "start")]
        assert acts.supervisor.watching == {RUN: "actor-1"}

    play(1, acts())


def test_a_new_supervisor_watches_the_drivers_that_live_and_replaces_the_others() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        await acts.shard.submit(create("run-2", "thread-2"))
        await acts.shard.submit(claim(0, "gone", run_id="run-2"))
        await acts.supervisor.close()
        successor = await acts.another("successor")
        await elapse(1.0)
        assert [(handle.run_id, handle.reason.value) for handle in acts.fleet.made] == [
            (RUN, "start"),
            ("run-2", "restart"),
        ]
        assert successor.watching == {RUN: "actor-1", "run-2": "actor-2"}

    play(1, acts())


def test_a_superseded_supervisor_decides_nothing_and_kills_nobody() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await acts.another("successor")
        await acts.supervisor.takeover(RUN)
        await elapse(0.5)
        assert acts.supervisor.stale.is_set()
        assert not first.killed
        assert acts.made == [(0, "start")]
        assert acts.stage.head().attempts_without_progress == 1
        await acts.supervisor.takeover(RUN)
        await elapse(0.5)
        assert acts.made == [(0, "start")]

    play(1, acts())


def test_a_superseded_driver_is_no_reason_to_replace_its_living_successor() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await acts.claimed(1)
        successor = await acts.fleet.create(RUN, 1, ClaimReason.OPERATOR)
        first.end.set_result(DriveEnd("superseded"))
        await elapse(0.5)
        assert acts.supervisor.watching == {RUN: successor.actor_id}
        assert len(acts.fleet.made) == 2

    play(1, acts())


def test_decisions_whose_answers_are_lost_use_up_one_attempt() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.shard.submit(create())
        acts.stage.trouble.after = 1.0
        starting = asyncio.create_task(acts.supervisor.start(RUN))
        await elapse(8.0)
        acts.stage.trouble.after = 0.0
        await starting
        await elapse(3.0)
        assert acts.made == [(0, "start")]
        assert acts.stage.head().attempts_without_progress == 1

    play(1, acts())


def test_what_nobody_knows_is_nobodys_matter() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.supervisor.start("nobody")
        await acts.supervisor.ensure("nobody")
        await acts.supervisor.cancel("nobody")
        assert await acts.supervisor.claim_of("nobody") is None
        assert acts.made == []

    play(1, acts())
