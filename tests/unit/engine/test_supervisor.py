"""Every run that needs a driver has one, and nobody decides who is not the newest supervisor (I7, P6)."""

from __future__ import annotations

import asyncio

import pytest
from unit.engine.fleet_by_hand import Acts, watching
from unit.engine.stage import RUN, append, claim, create, finish

from runtime.core.ops import Finished, Note, RequestCancel, RequestHandover
from runtime.core.record import CancelReason, ClaimReason, Status
from runtime.engine.concluding import DriveEnd
from runtime.engine.fleet import DriverDied
from runtime.engine.placing import Place
from runtime.errors import RunEnded, RunNotFound
from runtime.testing.sim_loop import elapse, play


def test_a_new_supervisor_looks_after_every_run_at_once_whatever_holds_one_up() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.supervisor.close()
        for number in range(20):
            await acts.shard.submit(create(f"run-{number}", f"thread-{number}"))
            await acts.shard.submit(claim(0, f"driver-{number}", run_id=f"run-{number}"))
        acts.fleet.lost_in = {"run-0"}
        await acts.another("second")
        await elapse(0.5)
        assert sorted(handle.run_id for handle in acts.fleet.made) == sorted(f"run-{n}" for n in range(1, 20))
        assert {handle.reason for handle in acts.fleet.made} == {ClaimReason.RESTART}
        await elapse(3.0)
        assert "run-0" in {handle.run_id for handle in acts.fleet.made}  # by its lease

    play(1, acts())


def test_a_new_run_gets_a_driver_at_once_and_one() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        await acts.supervisor.start(RUN)
        await acts.supervisor.ensure(RUN)
        await elapse(1.0)
        assert acts.made == [(0, "start")]
        assert acts.watching == {RUN: "actor-1"}

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
        await elapse(1.0)  # it has looked after all that was there when it opened
        await acts.shard.submit(create())
        await elapse(11.0)
        assert acts.made == [(0, "start")]

    play(1, acts())


@pytest.mark.parametrize("dies", [True, False])
def test_a_driver_that_handed_over_was_not_lost_however_that_is_learnt(dies: bool) -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await acts.shard.submit(Note(run_id=RUN, epoch=1, handed_over=True))
        if dies:
            first.die()
        await elapse(0.5 if dies else 5.0)  # or its lease runs out
        assert acts.made == [(0, "start"), (1, "drain")]

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
        assert list(acts.watching) == ["run-2"]

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


def test_two_who_wait_for_the_receipt_of_a_silent_driver_make_one_successor() -> None:
    """The gateway's word and the shard's `due` come at the same time, and both wait."""

    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        first.receipt = False
        await acts.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        waiting = asyncio.create_task(acts.supervisor.cancel(RUN))
        await elapse(0.5)
        await asyncio.gather(waiting, acts.supervisor.cancel(RUN))
        await elapse(0.2)
        assert acts.made == [(0, "start"), (1, "cancel")]
        assert not acts.fleet.made[-1].killed

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
        await acts.supervisor.knows_all.wait()  # else the run may be found at the opening, too
        acts.fleet.fail = [error]
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(after_s)
        assert acts.made == [(0, "start")]
        assert acts.watching == {RUN: "actor-1"}

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
        assert watching(successor) == {RUN: "actor-1", "run-2": "actor-2"}

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
        first.kill()
        successor = await acts.fleet.create(RUN, 1, ClaimReason.OPERATOR, Place())
        first.end.set_result(DriveEnd("superseded"))
        await elapse(0.5)
        assert acts.watching == {RUN: successor.actor_id}
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
