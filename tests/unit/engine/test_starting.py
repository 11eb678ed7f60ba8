"""Making a driver: a place, a name, a deadline; and what must not wait for it."""

from __future__ import annotations

import asyncio

from unit.engine.fleet_by_hand import Acts, Handle
from unit.engine.stage import RUN, create
from unit.engine.test_placing import node

from runtime.core.ops import Note, RequestCancel
from runtime.core.record import CancelReason, ClaimReason, Status
from runtime.engine.placing import Place
from runtime.engine.starting import STARTS_AT_ONCE
from runtime.testing.sim_loop import elapse, play


def test_drivers_are_spread_over_the_nodes() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        acts.fleet.seen = [node("a"), node("b"), node("c")]
        for number in range(6):
            await acts.shard.submit(create(f"run-{number}", f"thread-{number}"))
            await acts.supervisor.start(f"run-{number}")
        await elapse(0.5)
        assert sorted(handle.node_id or "" for handle in acts.fleet.made) == ["a", "a", "b", "b", "c", "c"]

    play(1, acts())


def test_a_node_that_ray_believes_in_and_that_does_not_answer_gets_no_driver() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        acts.fleet.seen = [node("a"), node("b")]
        acts.fleet.silent = {"a"}
        await acts.begun()
        assert acts.fleet.made[0].node_id == "b"

    play(1, acts())


def test_a_kept_sandbox_is_gone_before_the_threads_next_run_has_a_driver() -> None:
    """P18: it holds the workspace."""

    async def acts() -> None:
        acts = await Acts.open(bound=True)
        key = await kept(acts)
        acts.fleet.asleep = asyncio.Event()
        await acts.another_run("run-2")
        await elapse(1.0)
        assert key not in acts.stage.world.boxes
        assert (acts.stage.head().destroy_pending, acts.stage.head().sandbox_kept_until) == (False, None)
        acts.fleet.asleep.set()
        await elapse(0.5)
        assert [handle.run_id for handle in acts.fleet.made] == [RUN, "run-2"]

    play(1, acts())


def test_a_run_of_another_thread_ends_no_keeping() -> None:
    async def acts() -> None:
        acts = await Acts.open(bound=True)
        key = await kept(acts)
        await acts.shard.submit(create("run-2", "thread-2"))
        await acts.supervisor.start("run-2")
        await elapse(1.0)
        assert key in acts.stage.world.boxes
        assert acts.stage.head().sandbox_kept_until is not None

    play(1, acts())


def test_a_kept_sandbox_that_cannot_be_destroyed_now_is_pending_and_holds_up_no_start() -> None:
    async def acts() -> None:
        acts = await Acts.open(bound=True)
        await kept(acts)
        acts.stage.world.weather.unreachable = True
        await acts.another_run("run-2")
        await elapse(15.0)
        assert acts.stage.head().to_give_back
        assert acts.fleet.made[-1].run_id == "run-2"

    play(1, acts())


async def kept(acts: Acts) -> str:
    """Let a run complete that keeps its sandbox; return its key."""
    key = f"sim/{RUN}"
    await acts.begun()
    await acts.stage.world.create(key, "driver")
    await acts.shard.submit(Note(run_id=RUN, epoch=1, sandbox_key=key))
    await acts.finished(keep_s=3600)
    assert acts.stage.head().sandbox_kept_until is not None
    return key


def test_a_node_that_falls_silent_under_a_start_is_not_waited_for() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        acts.fleet.seen = [node("a"), node("b")]
        acts.fleet.starts = False
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(0.1)
        acts.fleet.silent = {"a"}
        acts.fleet.starts = True
        await elapse(3.0)
        assert [(handle.place.node_id, handle.killed) for handle in acts.fleet.made] == [("a", True), ("b", False)]
        assert acts.stage.head().attempts_without_progress == 1

    play(1, acts())


def test_a_node_that_misses_one_question_keeps_its_start() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        acts.fleet.seen = [node("a"), node("b")]
        acts.fleet.starts = False
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(0.5)
        acts.fleet.silent = {"a"}
        await elapse(1.0)
        acts.fleet.silent = set()
        await elapse(10.0)
        assert [handle.killed for handle in acts.fleet.made] == [False]

    play(1, acts())


def test_starts_that_hang_use_up_no_attempt_and_are_tried_again() -> None:
    async def acts() -> None:
        acts = await Acts.open(attempts=2)
        acts.fleet.starts = False
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(200.0)
        assert len(acts.fleet.made) > 3
        assert acts.stage.head().attempts_without_progress == 1
        assert acts.supervisor.watching[RUN].waits_for == "it hangs"
        acts.fleet.starts = True
        while acts.watching == {RUN: None}:
            await elapse(0.1)
        assert acts.watching == {RUN: acts.fleet.made[-1].actor_id}
        assert acts.supervisor.watching[RUN].waits_for == ""
        assert acts.supervisor.tally.not_started > 3

    play(1, acts())


def test_a_run_that_no_node_has_room_for_is_told_at_once() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        acts.fleet.seen = [node("a", slots=0)]
        acts.fleet.starts = False
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(0.1)
        assert acts.supervisor.watching[RUN].waits_for == "no node has room for a run actor (a 0 of 0)"
        assert acts.fleet.made[0].place == Place()

    play(1, acts())


async def _hang(acts: Acts, runs: int) -> None:
    """Let the starts of so many runs hang."""
    acts.fleet.starts = False
    for number in range(runs):
        await acts.shard.submit(create(f"hung-{number}", f"hung-thread-{number}"))
        await acts.supervisor.start(f"hung-{number}")
    await elapse(0.5)


def test_a_cancel_does_not_wait_behind_starts_that_hang() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        first.receipt = False
        await _hang(acts, STARTS_AT_ONCE)
        await acts.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        asked_at = acts.stage.loop.time()
        await acts.supervisor.cancel(RUN)
        await elapse(0.1)
        assert acts.made[-1] == (1, "cancel")
        assert acts.stage.loop.time() - asked_at < 1.2

    play(1, acts())


def test_a_start_does_not_wait_until_those_that_hang_are_given_up() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await _hang(acts, STARTS_AT_ONCE)
        acts.fleet.starts = True
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(5.0)
        assert acts.fleet.made[-1].run_id == RUN

    play(1, acts())


def test_a_cancel_of_a_run_that_waits_for_room_gets_a_driver_of_its_own() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        acts.fleet.seen = [node("a", slots=0)]
        acts.fleet.starts = False
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(0.5)
        acts.fleet.starts = True
        await acts.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        await acts.supervisor.cancel(RUN)
        await elapse(0.2)
        assert acts.made == [(0, "start"), (0, "cancel")]
        assert acts.fleet.made[-1].node_id == "a", "it takes no room"

    play(1, acts())


def test_a_supervisor_that_slept_before_its_create_kills_no_driver_of_a_later_epoch() -> None:
    """P5: it decided on epoch 2 and slept; another decided on the same, and its driver has claimed."""

    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        sleeping = acts.fleet.asleep = asyncio.Event()
        await acts.supervisor.takeover(RUN)
        await elapse(0.1)
        acts.fleet.asleep = None
        successor = await acts.another("successor")
        await successor.takeover(RUN)
        await elapse(0.5)
        await acts.claimed(1)
        rightful = acts.fleet.living[RUN]
        sleeping.set()
        await elapse(0.5)
        assert not rightful.killed
        assert acts.made == [(0, "start"), (1, "operator")]

    play(1, acts())


def test_a_holder_of_the_name_that_never_claims_is_replaced_by_its_lease() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        leftover = Handle(acts.fleet, RUN, 0, ClaimReason.START)
        leftover.actor_id = "leftover"
        await acts.shard.submit(create())
        acts.fleet.living[RUN] = leftover
        await acts.supervisor.start(RUN)
        await elapse(0.5)
        assert acts.watching == {RUN: "leftover"}
        killed_before = leftover.killed
        await elapse(12.0)
        assert (killed_before, leftover.killed) == (False, True)
        assert acts.made == [(0, "start")]

    play(1, acts())


def test_drivers_that_die_before_they_claim_end_no_run() -> None:
    async def acts() -> None:
        acts = await Acts.open(attempts=2)
        await acts.begun()
        for made in range(1, 8):
            acts.fleet.made[-1].die()
            while len(acts.fleet.made) == made:
                await elapse(0.1)
        await acts.claimed(1)
        assert acts.stage.head().status is Status.RUNNING
        assert acts.supervisor.tally.exhausted == 0

    play(1, acts())


def test_the_reason_outlives_a_driver_that_died_before_it_claimed() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        await acts.supervisor.takeover(RUN)
        await elapse(0.5)
        acts.fleet.made[-1].die()
        await elapse(1.0)
        assert [reason for _, reason in acts.made] == ["start", "operator", "operator"]

    play(1, acts())
