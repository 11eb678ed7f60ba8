"""The supervisor's way out: claim, finish, destroy (P2, P4)."""

from __future__ import annotations

import pytest
from unit.engine.stage import RUN, Stage, append, claim, claimant, create, finish

from runtime.core.ops import Finished, Note, RequestCancel
from runtime.core.record import CancelReason, ClaimReason, Launch, Status
from runtime.engine.ending import end_run
from runtime.engine.finishing import aborted, failed
from runtime.engine.shard import Shard
from runtime.errors import RunClaimLostError
from runtime.ports import Ending
from runtime.testing.sim_loop import play
from runtime.testing.sim_sandbox import SimProvider
from runtime.testing.sim_world import Box

EXHAUSTED = failed("takeover_exhausted", "8 drivers in a row")


async def ended(stage: Stage, shard: Shard, ending: Ending, run_id: str = RUN) -> Finished | None:
    return await end_run(
        shard,
        {"sim": SimProvider(stage.world, "supervisor")},
        claimant("supervisor"),
        stage.head(run_id),
        ClaimReason.DRIVER_LOST,
        ending,
        clock=stage.loop,
        lease_ttl_s=3.0,
    )


async def with_sandbox(stage: Stage) -> Shard:
    shard = await stage.open()
    await shard.submit(create())
    await shard.submit(claim())
    await shard.submit(Note(run_id=RUN, epoch=1, sandbox_key=f"sim/{RUN}", launch=Launch.INTENDED))
    await shard.submit(append(1, "A"))
    stage.world.boxes[f"sim/{RUN}"] = Box(f"sim/{RUN}")
    return shard


def test_its_finish_is_a_claim_in_the_history_and_the_sandbox_goes() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await with_sandbox(stage)
        assert isinstance(await ended(stage, shard, EXHAUSTED), Finished)
        head = stage.head()
        assert [(one.epoch, one.claimant.claimant) for one in head.claims] == [(1, "driver"), (2, "supervisor")]
        assert (head.status, head.closed, head.destroy_pending) == (Status.FAILED, True, False)
        assert stage.world.boxes == {}

    play(1, acts())


def test_a_recorded_cancel_makes_it_an_abort() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await with_sandbox(stage)
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.DETACHED_EXPIRED))
        await ended(stage, shard, EXHAUSTED)
        head = stage.head()
        assert head.error is not None
        assert (head.status, head.error.code) == (Status.ABORTED, "detached_expired")

    play(1, acts())


def test_a_queued_run_that_is_cancelled_ends_without_a_sandbox() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await with_sandbox(stage)
        await shard.submit(create("run-2", on_busy="enqueue"))
        await shard.submit(RequestCancel(run_id="run-2", reason=CancelReason.USER))
        outcome = await end_run(
            shard,
            {},
            claimant("supervisor"),
            stage.head("run-2"),
            ClaimReason.CANCEL,
            aborted(CancelReason.USER),
            clock=stage.loop,
            lease_ttl_s=3.0,
        )
        assert isinstance(outcome, Finished)
        assert stage.head("run-2").status is Status.ABORTED
        assert stage.head("run-2").destroy_pending is False
        assert stage.head().status is Status.RUNNING

    play(1, acts())


def test_a_run_that_somebody_else_has_is_left_alone() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await with_sandbox(stage)
        known = stage.head()
        await shard.submit(claim(1, "driver-2"))
        outcome = await end_run(
            shard,
            {"sim": SimProvider(stage.world, "supervisor")},
            claimant("supervisor"),
            known,
            ClaimReason.DRIVER_LOST,
            EXHAUSTED,
            clock=stage.loop,
            lease_ttl_s=3.0,
        )
        assert outcome is None
        assert stage.head().status is Status.RUNNING
        assert stage.world.boxes

    play(1, acts())


def test_a_run_that_has_ended_is_left_alone() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await with_sandbox(stage)
        await shard.submit(finish(2))
        assert await ended(stage, shard, EXHAUSTED) is None

    play(1, acts())


def test_a_sandbox_that_cannot_be_reached_stays_pending() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await with_sandbox(stage)
        stage.world.weather.unreachable = True
        assert isinstance(await ended(stage, shard, EXHAUSTED), Finished)
        assert stage.head().destroy_pending

    play(1, acts())


def test_whoever_is_superseded_between_claim_and_finish_destroys_nothing() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await with_sandbox(stage)
        submit = shard.submit

        class Between:
            """The shard, with a claim of somebody else before each finish."""

            def __getattr__(self, name: str) -> object:
                return getattr(shard, name)

            async def submit(self, op: object) -> object:
                if type(op).__name__ == "Finish":
                    await submit(claim(2, "driver-3"))
                return await submit(op)  # type: ignore[arg-type]

        with pytest.raises(RunClaimLostError):
            await ended(stage, Between(), EXHAUSTED)  # type: ignore[arg-type]
        assert stage.world.boxes

    play(1, acts())
