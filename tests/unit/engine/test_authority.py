"""One latch, and no deed on an old answer (P3, P4)."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest
from unit.engine.stage import RUN, Stage, claim, create

from runtime.core.ops import Claimed, Done, Note, Op, Outcome, RequestCancel, RequestHandover, Superseded
from runtime.core.record import CancelReason, Launch
from runtime.engine.authority import Authority, repeat
from runtime.engine.shard import Shard
from runtime.errors import RunClaimLostError, RunNotFound, ShardSuperseded, StoreUnavailable
from runtime.ports import Pulse
from runtime.testing.sim_loop import elapse, play

T = TypeVar("T")
NOTE = Note(run_id=RUN, epoch=1, launch=Launch.KEYED)


class Silent:
    """A shard whose next answers are lost on the way, after it did what was asked."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.lost = 0
        self.asked = 0
        self.slow_s = 0.0

    async def submit(self, op: Op) -> Outcome:
        return self._answer(await self.shard.submit(op))

    async def pulse(self, run_id: str, epoch: int, tick: int) -> Pulse:
        await elapse(self.slow_s)
        return self._answer(await self.shard.pulse(run_id, epoch, tick))

    def _answer(self, value: T) -> T:
        self.asked += 1
        if self.lost:
            self.lost -= 1
            raise StoreUnavailable("lost")
        return value


async def opened(stage: Stage) -> tuple[Silent, Authority]:
    shard = await stage.open()
    await shard.submit(create())
    claimed = await shard.submit(claim())
    assert isinstance(claimed, Claimed)
    silent = Silent(shard)
    return silent, Authority(silent, claimed.head, stage.loop, 3.0)  # type: ignore[arg-type]


def test_a_call_without_an_answer_is_repeated() -> None:
    async def acts() -> None:
        log, authority = await opened(Stage())
        log.lost = 5
        assert isinstance(await authority.submit(NOTE), Done)
        assert log.asked == 6
        assert authority.head.launch is Launch.KEYED

    play(1, acts())


def test_the_first_refusal_latches_for_ever() -> None:
    async def acts() -> None:
        log, authority = await opened(Stage())
        await log.shard.submit(claim(1, "next"))
        with pytest.raises(RunClaimLostError):
            await authority.submit(NOTE)
        assert authority.orders.changed.is_set()
        asked = log.asked
        for call in (authority.submit(NOTE), authority.pulse(), authority.permit()):
            with pytest.raises(RunClaimLostError):
                await call
        assert log.asked == asked

    play(1, acts())


def test_a_pulse_brings_orders() -> None:
    async def acts() -> None:
        log, authority = await opened(Stage())
        await authority.pulse()
        assert not authority.orders.changed.is_set()
        await log.shard.submit(RequestHandover(run_id=RUN))
        await authority.pulse()
        assert (authority.orders.handover, authority.orders.cancel) == (True, False)
        await log.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        await authority.submit(NOTE)
        assert authority.orders.cancel
        assert authority.head.cancel_reason is CancelReason.USER

    play(1, acts())


def test_a_deed_may_start_on_a_young_answer_without_asking() -> None:
    async def acts() -> None:
        log, authority = await opened(Stage())
        await elapse(2.9)
        await authority.permit()
        assert log.asked == 0

    play(1, acts())


def test_a_deed_on_an_old_answer_asks_first_and_keeps_asking() -> None:
    async def acts() -> None:
        stage = Stage()
        log, authority = await opened(stage)
        await elapse(3600.0)
        log.lost = 8
        waiting = asyncio.create_task(authority.permit())
        await elapse(1.0)
        assert not waiting.done()
        await waiting
        assert log.asked == 9

    play(1, acts())


def test_whoever_slept_through_a_takeover_does_nothing() -> None:
    async def acts() -> None:
        log, authority = await opened(Stage())
        await elapse(3600.0)
        await log.shard.submit(claim(1, "next"))
        with pytest.raises(RunClaimLostError):
            await authority.permit()

    play(1, acts())


def test_an_answer_is_as_old_as_its_question() -> None:
    async def acts() -> None:
        stage = Stage(slow_s=0.0)
        log, authority = await opened(stage)
        log.slow_s = 2.0
        await elapse(2.0)
        await authority.pulse()
        await elapse(1.5)
        begun = stage.loop.time()
        await authority.permit()
        assert stage.loop.time() - begun == pytest.approx(2.0)

    play(1, acts())


def test_repeat_goes_on_through_outages_and_replaced_shards_and_stops_at_a_lost_claim() -> None:
    async def acts() -> None:
        errors: list[Exception] = [StoreUnavailable("x"), ShardSuperseded(0, 1, 2), StoreUnavailable("y")]

        async def call() -> str:
            if errors:
                raise errors.pop(0)
            return "answer"

        assert await repeat(call) == "answer"
        errors.append(RunClaimLostError(RUN, 1, 2))
        with pytest.raises(RunClaimLostError):
            await repeat(call)
        errors.append(RunNotFound(RUN))
        with pytest.raises(RunNotFound):
            await repeat(call)

    play(1, acts())


def test_a_stale_note_is_refused_by_the_shard_itself() -> None:
    async def acts() -> None:
        log, _ = await opened(Stage())
        await log.shard.submit(claim(1, "next"))
        assert isinstance(await log.shard.submit(NOTE), Superseded)

    play(1, acts())
