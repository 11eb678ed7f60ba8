"""A shard in front of its store: what it tells readers, drivers and supervisor, and what it knows after trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from unit.engine.stage import RUN, Stage, claimant, create

from runtime.core.batch import Band, Batch, pack_ends
from runtime.core.ops import (
    Append,
    Appended,
    Claimed,
    ClaimRun,
    Create,
    Created,
    Finish,
    Finished,
    Note,
    Op,
    Outcome,
    RequestCancel,
    RequestHandover,
    Superseded,
)
from runtime.core.record import CancelReason, ClaimReason, OnDisconnect, RunError, Status
from runtime.engine.claimed_log import pages
from runtime.engine.shard import Shard
from runtime.errors import RunNotFound, ShardSuperseded, StoreError, StoreUnavailable
from runtime.ports import Pulse
from runtime.testing.sim_loop import elapse, play


def claim(expected: int = 0, name: str = "driver", run_id: str = RUN) -> ClaimRun:
    return ClaimRun(run_id=run_id, expected_epoch=expected, claimant=claimant(name), reason=ClaimReason.START)


def batch(seq: int, *texts: str, epoch: int = 1, band: Band = Band.JOURNAL, run_id: str = RUN) -> Batch:
    data = b"\n".join(b'{"type":"%s"}' % text.encode() for text in texts)
    ends = pack_ends(list(range(seq, seq + len(texts)))) if band is Band.JOURNAL else b""
    return Batch(run_id=run_id, seq=seq, count=len(texts), epoch=epoch, band=band, data=data, ends=ends)


def append(seq: int, *texts: str, epoch: int = 1) -> Append:
    return Append(batch=batch(seq, *texts, epoch=epoch))


def finish(seq: int, epoch: int = 1, status: Status = Status.COMPLETED, run_id: str = RUN) -> Finish:
    error = None if status is Status.COMPLETED else RunError(message="m", code="c")
    ending = batch(seq, "RUN_FINISHED", epoch=epoch, band=Band.LIVE, run_id=run_id)
    return Finish(batch=ending, status=status, error=error)


async def started(stage: Stage) -> Shard:
    shard = await stage.open()
    assert isinstance(await shard.submit(create()), Created)
    assert isinstance(await shard.submit(claim()), Claimed)
    return shard


# --- reading ---


def test_a_claim_answers_with_the_log_of_its_transaction() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        for at in range(1, 20):
            await shard.submit(append(at, "A" * 500))
        claimed = await shard.submit(claim(1, "next"))
        assert isinstance(claimed, Claimed)
        again = await shard.submit(claim(1, "next"))
        assert again == claimed
        await shard.submit(append(20, "B", epoch=2))
        assert claimed.batches
        assert [one.seq async for page in pages(shard, claimed) for one in page] == list(range(20))

    play(1, acts())


def test_a_reader_gets_what_is_there_then_parks_for_what_comes() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        reply = await shard.read(RUN, 0, 25.0)
        assert (reply.next, reply.closed, reply.tail_count) == (1, False, 1)
        parked = asyncio.create_task(shard.read(RUN, 1, 25.0))
        await elapse(5.0)
        assert not parked.done()
        await shard.submit(append(1, "A", "B"))
        reply = await parked
        assert (reply.next, reply.tail) == (3, b'{"type":"A"}\n{"type":"B"}')
        await shard.submit(finish(3))
        reply = await shard.read(RUN, 3, 25.0)
        assert (reply.next, reply.closed) == (4, True)
        reply = await shard.read(RUN, 4, 25.0)
        assert (reply.next, reply.closed, reply.tail_count) == (4, True, 0)

    play(1, acts())


def test_no_read_parks_longer_than_its_bound() -> None:
    async def acts() -> None:
        stage = Stage(slow_s=0.0)
        shard = await started(stage)
        begun = stage.loop.time()
        assert (await shard.read(RUN, 1, 3600.0)).next == 1
        assert stage.loop.time() - begun == pytest.approx(25.0)

    play(1, acts())


def test_an_unknown_run_is_unknown() -> None:
    async def acts() -> None:
        shard = await Stage().open()
        assert not (await shard.read("nobody", 0, 25.0)).known
        assert await shard.record("nobody") is None
        assert not await shard.attach("nobody", "viewer", 1)
        assert await shard.log("nobody") == []
        with pytest.raises(RunNotFound):
            await shard.pulse("nobody", 1, 1)

    play(1, acts())


def test_an_offset_past_the_end_is_told_by_next() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        assert (await shard.read(RUN, 7, 25.0)).next == 1

    play(1, acts())


def test_an_offset_past_the_end_of_memory_is_looked_up_first() -> None:
    """A frozen incarnation must not tell a reader of its successor that its offset is gone (P10)."""

    async def acts() -> None:
        stage = Stage()
        old = await started(stage)
        new = await stage.open()
        await new.submit(append(1, "A", "B"))
        reply = await old.read(RUN, 3, 0.0)
        assert (reply.next, reply.tail_count) == (3, 0)

    play(1, acts())


class Segments:
    """Keeps what is sealed."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.broken = False

    def put(self, data: bytes) -> int:
        if self.broken:
            raise OSError("no memory")
        self.kept.append(data)
        return len(self.kept) - 1


def test_what_is_read_from_the_store_is_sealed_on_the_way() -> None:
    async def acts() -> None:
        stage = Stage()
        await (await started(stage)).submit(append(1, "A", "B"))
        segments = Segments()
        shard = await stage.open(segments)
        cold = await shard.read(RUN, 1, 0.0)
        assert (cold.segments, cold.tail) == ((), b'{"type":"A"}\n{"type":"B"}')
        await elapse(1.0)
        warm = await shard.read(RUN, 2, 0.0)
        assert [(one.start, one.end) for one in warm.segments] == [(1, 3)]
        assert segments.kept == [cold.tail]
        lost = await shard.read(RUN, 2, 0.0, inline=True)
        assert (lost.segments, lost.tail, lost.next) == ((), b'{"type":"B"}', 3)

    play(1, acts())


def test_an_inline_read_at_the_end_parks_like_any_other() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        reply = await shard.read(RUN, 1, 2.0, inline=True)
        assert (reply.next, reply.tail_count, reply.closed) == (1, 0, False)
        parked = asyncio.create_task(shard.read(RUN, 1, 25.0, inline=True))
        await elapse(1.0)
        await shard.submit(append(1, "A"))
        assert (await parked).tail == b'{"type":"A"}'

    play(1, acts())


def test_an_object_store_that_keeps_nothing_costs_nothing_but_time() -> None:
    async def acts() -> None:
        stage = Stage()
        await (await started(stage)).submit(append(1, "A"))
        segments = Segments()
        segments.broken = True
        shard = await stage.open(segments)
        for _ in range(3):
            assert (await shard.read(RUN, 1, 0.0)).tail == b'{"type":"A"}'
            await elapse(1.0)

    play(1, acts())


# --- orders and intents ---


def test_every_pulse_tells_what_the_driver_must_know() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        assert await shard.pulse(RUN, 1, 1) == Pulse()
        await shard.submit(RequestHandover(run_id=RUN))
        assert await shard.pulse(RUN, 1, 2) == Pulse(handover=True)
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        assert await shard.pulse(RUN, 1, 3) == Pulse(handover=True, cancel_requested=True)
        await shard.submit(claim(1, "next"))
        assert await shard.pulse(RUN, 1, 4) == Pulse(superseded_by=2)
        assert await shard.pulse(RUN, 2, 1) == Pulse(cancel_requested=True)

    play(1, acts())


def test_cancel_previous_is_told_to_the_previous_driver() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        outcome = await shard.submit(create("run-2", on_busy="cancel-previous"))
        assert isinstance(outcome, Created)
        assert outcome.cancelled_previous == RUN
        assert (await shard.pulse(RUN, 1, 1)).cancel_requested

    play(1, acts())


def test_a_finish_lets_the_next_of_the_thread_be_due() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        await shard.submit(create("run-2", on_busy="enqueue"))
        ended = await shard.submit(finish(1))
        assert isinstance(ended, Finished)
        assert [(due.head.run_id, due.why) for due in await shard.due(0.0)] == [("run-2", "unqueued")]

    play(1, acts())


def test_a_driver_that_falls_silent_is_due() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        due = await shard.due(25.0)
        assert [(one.head.run_id, one.why, one.head.driver_epoch) for one in due] == [(RUN, "lease_expired", 1)]

    play(1, acts())


def test_an_attach_clears_the_stamp_and_the_last_viewers_leaving_sets_it() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        assert stage.head().detached_since is not None
        assert await shard.attach(RUN, "viewer", 1)
        assert stage.head().detached_since is None
        for number in range(2, 9):
            await shard.set_viewers("viewer", number, {RUN: 1})
            await elapse(1.0)
        assert stage.head().detached_since is None
        for number in range(9, 12):
            await shard.set_viewers("viewer", number, {})
            await elapse(1.0)
        assert stage.head().detached_since is not None
        await shard.set_viewers("viewer", 12, {RUN: 1})
        assert stage.head().detached_since is None

    play(1, acts())


@pytest.mark.parametrize("on_disconnect", list(OnDisconnect))
def test_a_disconnect_cancels_only_what_was_started_so(on_disconnect: OnDisconnect) -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await stage.open()
        await shard.submit(create(on_disconnect=on_disconnect))
        await shard.attach(RUN, "viewer", 1)
        for number in range(2, 40):
            await shard.set_viewers("viewer", number, {RUN: 1} if number < 8 else {})
            await elapse(1.0)
        assert stage.head().cancel_requested is (on_disconnect is OnDisconnect.CANCEL)
        assert stage.head().cancel_reason is (CancelReason.DISCONNECT if stage.head().cancel_requested else None)

    play(1, acts())


# --- trouble ---


class Lossy:
    """Loses the answer of every commit that holds one of `kinds`, until told to stop."""

    def __init__(self, stage: Stage, *kinds: type[Any]) -> None:
        self.active = True
        self._stage = stage
        self._kinds = kinds
        stage.store._watch = self._see
        self._lose = False
        stage.trouble.strike_after = self._strike_after  # type: ignore[method-assign]

    def _see(self, _epoch: int, ops: Sequence[Op], _outcomes: Sequence[Outcome]) -> None:
        self._lose = self.active and any(isinstance(op, self._kinds) for op in ops)

    def _strike_after(self) -> None:
        if self._lose:
            raise StoreUnavailable("the answer is lost")


def test_an_append_whose_answer_was_lost_once_reaches_its_readers() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        parked = asyncio.create_task(shard.read(RUN, 1, 25.0))
        lossy = Lossy(stage, Append)
        appending = asyncio.create_task(shard.submit(append(1, "A")))
        await elapse(0.02)
        lossy.active = False
        outcome = await appending
        assert isinstance(outcome, Appended)
        assert outcome.repeat
        assert (await parked).tail == b'{"type":"A"}'

    play(1, acts())


def test_after_a_lost_answer_the_shard_reads_back_before_it_answers() -> None:
    """Each of these happened, was never told, and nobody repeats it."""

    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        await shard.submit(create("run-2", on_busy="enqueue"))
        Lossy(stage, Append, Finish, RequestCancel, ClaimRun, Create)
        with pytest.raises(StoreError):
            await shard.submit(append(1, "A"))
        assert (await shard.read(RUN, 1, 0.0)).next == 2
        with pytest.raises(StoreError):
            await shard.submit(create("run-3", "thread-3"))
        assert await shard.record("run-3") is not None
        with pytest.raises(StoreError):
            await shard.submit(RequestCancel(run_id="run-3", reason=CancelReason.USER))
        with pytest.raises(StoreError):
            await shard.submit(claim(0, "third", run_id="run-3"))
        assert (await shard.pulse("run-3", 1, 1)).cancel_requested
        with pytest.raises(StoreError):
            await shard.submit(finish(2))
        assert (await shard.read(RUN, 2, 0.0)).closed
        told = [(due.head.run_id, due.why, due.head.driver_epoch) for due in await shard.due(0.0)]
        assert sorted(told) == [("run-2", "unqueued", 0), ("run-3", "cancel", 1)]

    play(1, acts())


def test_a_detach_that_was_not_stored_is_tried_again() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        await shard.attach(RUN, "viewer", 1)
        for number in range(2, 9):
            await shard.set_viewers("viewer", number, {RUN: 1})
            await elapse(1.0)
        stage.trouble.before = 1.0
        for number in range(9, 20):
            stage.trouble.before = float(number < 15)
            await shard.set_viewers("viewer", number, {})
            await elapse(1.0)
        assert stage.head().detached_since is not None

    play(1, acts())


def test_a_store_outage_makes_no_takeover() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        stage.trouble.down = True
        for _ in range(20):
            with pytest.raises(StoreError):
                await shard.submit(Note(run_id=RUN, epoch=1))
            await elapse(0.5)
        stage.trouble.down = False
        await elapse(1.0)
        assert await shard.due(0.0) == []

    play(1, acts())


def test_a_new_incarnation_serves_the_same_log_and_gives_fresh_leases() -> None:
    async def acts() -> None:
        stage = Stage()
        await (await started(stage)).submit(append(1, "A", "B"))
        shard = await stage.open()
        assert (await shard.read(RUN, 1, 0.0)).tail == b'{"type":"A"}\n{"type":"B"}'
        assert await shard.pulse(RUN, 1, 1) == Pulse()
        await elapse(2.9)
        assert await shard.due(0.0) == []
        assert isinstance(await shard.submit(append(3, "C")), Appended)

    play(1, acts())


def test_a_superseded_incarnation_fails_all_parked_and_later_calls() -> None:
    async def acts() -> None:
        stage = Stage()
        old = await started(stage)
        parked = [asyncio.create_task(old.read(RUN, 1, 25.0)), asyncio.create_task(old.due(25.0))]
        await elapse(0.1)
        await stage.open()
        await elapse(3.0)
        answers = await asyncio.gather(*parked, return_exceptions=True)
        assert {type(answer) for answer in answers} == {ShardSuperseded}
        for call in (old.read(RUN, 0, 0.0), old.pulse(RUN, 1, 1), old.due(0.0), old.submit(append(1, "A"))):
            with pytest.raises(ShardSuperseded):
                await call

    play(1, acts())


def test_a_superseded_driver_is_refused_and_counted() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        await shard.submit(claim(1, "next"))
        assert isinstance(await shard.submit(append(1, "A")), Superseded)
        stats = await shard.stats()
        assert (stats["appends_refused"], stats["appends"], stats["runs"], stats["epoch"]) == (1, 0, 1, 1)

    play(1, acts())


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.engine.shard.MAX_IDLE_TAILS", 4)

    async def acts() -> None:
        shard = await Stage().open()
        for number in range(40):
            run_id = f"run-{number}"
            await shard.submit(create(run_id, f"thread-{number}"))
            if number % 10:
                await shard.submit(claim(run_id=run_id))
                await shard.submit(finish(1, run_id=run_id))
        assert len(shard._tails) <= 4 + 2 * 4
        for number in range(40):
            reply = await shard.read(f"run-{number}", 0, 0.0)
            assert (reply.known, reply.closed) == (True, bool(number % 10))

    play(1, acts())


def test_close_releases_readers() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        parked = asyncio.create_task(shard.read(RUN, 1, 25.0))
        await elapse(1.0)
        await shard.close()
        assert (await parked).next == 1

    play(1, acts())
