"""A shard in front of its store: what it tells readers, drivers and supervisor, and what it knows after trouble."""

from __future__ import annotations

import asyncio

import pytest
from unit.engine.stage import RUN, Stage, append, claim, create, finish, started

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.ops import (
    Append,
    Claimed,
    Created,
    Finish,
    Finished,
    RequestCancel,
    RequestHandover,
    Superseded,
)
from runtime.core.record import CancelReason, OnDisconnect, Status
from runtime.core.transcript import decode
from runtime.engine.claimed_log import pages
from runtime.errors import RunNotFound, StoreError, StoreFull, StoreRefused, StoreUnavailable
from runtime.ports import Pulse
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_loop import elapse, play

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
        assert [
            one.seq async for page in pages(shard, RUN, 0, claimed.head.next_seq, claimed.batches) for one in page
        ] == list(range(20))

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


def test_what_was_read_of_a_log_that_is_another_by_now_is_not_sealed() -> None:
    async def acts() -> None:
        stage = Stage()
        await (await started(stage)).submit(append(1, "A", "B"))
        shard = await stage.open(Segments())
        await shard.read(RUN, 1, 0.0)
        shard._adopt(stage.head().with_(generation=5))  # before the sealing of what was read has begun
        await elapse(1.0)
        assert shard._tails[RUN].sealed == []

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


# --- transcripts ---


def _said(words: str, seq: int) -> Batch:
    data = chunk.encode({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": words})
    return Batch(run_id=RUN, seq=seq, count=1, epoch=1, band=Band.LIVE, data=data)


def test_a_finish_stores_the_transcript_of_the_whole_log_read_in_pieces() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        batches = [_said(f"{at} ", at) for at in range(1, 61)]
        for one in batches[:-1]:
            await shard.submit(Append(batch=one))
        assert await shard.transcripts([RUN, "nobody"], 100) == {}
        assert isinstance(await shard.submit(Finish(batch=batches[-1], status=Status.COMPLETED)), Finished)
        told = decode((await shard.transcripts(["nobody", RUN], 100))[RUN])
        assert told.messages[0]["parts"] == [{"type": "text", "content": "".join(f"{at} " for at in range(1, 61))}]

    play(1, acts())


def test_a_finish_that_is_repeated_reads_its_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    pages = MemoryStore.read_batches

    def counted(store: MemoryStore, run_id: str, after: int, max_bytes: int) -> list[Batch]:
        read.append(after)
        return pages(store, run_id, after, max_bytes)

    async def acts() -> None:
        shard = await started(Stage())
        monkeypatch.setattr(MemoryStore, "read_batches", counted)
        outcomes = await asyncio.gather(*(shard.submit(finish(1)) for _ in range(3)))
        assert sorted(isinstance(one, Finished) and one.repeat for one in outcomes) == [False, True, True]
        assert isinstance(await shard.submit(finish(1)), Finished)
        assert isinstance(await shard.submit(finish(1, epoch=0)), Superseded)
        assert read == [0]

    play(1, acts())


@pytest.mark.parametrize("error", [StoreFull("full"), StoreUnavailable("away")])
def test_a_finish_waits_for_a_store_that_cannot_be_read_now(error: StoreError, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_store: MemoryStore, _run_id: str, _after: int, _max_bytes: int) -> list[Batch]:
        raise error

    async def acts() -> None:
        shard = await started(Stage())
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "read_batches", failing)
            with pytest.raises(type(error)):
                await shard.submit(finish(1))
        assert isinstance(await shard.submit(finish(1)), Finished)
        assert list(await shard.transcripts([RUN], 100)) == [RUN]

    play(1, acts())


def test_a_run_whose_stored_log_is_damaged_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_store: MemoryStore, _run_id: str, _after: int, _max_bytes: int) -> list[Batch]:
        raise StoreRefused("damaged")

    async def acts() -> None:
        shard = await started(Stage())
        monkeypatch.setattr(MemoryStore, "read_batches", damaged)
        assert isinstance(await shard.submit(finish(1)), Finished)

    play(1, acts())


def test_a_run_whose_log_cannot_be_folded_still_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def acts() -> None:
        shard = await started(Stage())
        odd = Batch(run_id=RUN, seq=1, count=1, epoch=1, band=Band.LIVE, data=b"[]")
        await shard.submit(Append(batch=odd))
        assert isinstance(await shard.submit(finish(2)), Finished)
        assert await shard.transcripts([RUN], 100) == {}

    play(1, acts())
    assert "has no transcript" in caplog.text
