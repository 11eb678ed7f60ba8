"""One append in flight, whole lines, one band to a batch, and what callers of live chunks are told."""

from __future__ import annotations

import asyncio

import pytest
from unit.engine.stage import RUN, Stage, claimant, create

from runtime.core.batch import Band, Batch, unpack_ends
from runtime.core.open_items import OpenItems
from runtime.core.ops import Append, Claimed, ClaimRun
from runtime.core.record import ClaimReason
from runtime.engine import appending
from runtime.engine.appending import Appender, Progress
from runtime.engine.authority import Authority
from runtime.engine.shard import Shard
from runtime.errors import LogClosedError, OutlastError, RunClaimLostError
from runtime.testing.sim_loop import elapse, play


class Acts:
    """An appender over a shard; make it with `open`."""

    stage: Stage
    shard: Shard
    appender: Appender
    running: asyncio.Task[None]

    @classmethod
    async def open(cls, *, slow_s: float = 0.001, max_log_bytes: int = 0) -> Acts:
        self = cls()
        self.stage = Stage(slow_s=slow_s)
        self.shard = await self.stage.open()
        await self.shard.submit(create())
        claimed = await self.claim(0)
        authority = Authority(self.shard, claimed.head, self.stage.loop, 3.0)
        self.appender = Appender(authority, Progress(next_seq=1), OpenItems(), max_log_bytes)
        self.running = asyncio.create_task(self.appender.run())
        return self

    async def claim(self, expected: int) -> Claimed:
        op = ClaimRun(run_id=RUN, expected_epoch=expected, claimant=claimant(f"c{expected}"), reason=ClaimReason.START)
        claimed = await self.shard.submit(op)
        assert isinstance(claimed, Claimed)
        return claimed

    @property
    def batches(self) -> list[Batch]:
        return self.stage.memory.read_batches(RUN, 1, 1 << 40)

    def line(self, end: int, *chunks: str) -> None:
        self.appender.put_journal([text(one) for one in chunks], [end] * len(chunks))


def text(word: str) -> bytes:
    return b'{"type":"%s"}' % word.encode()


def test_what_gathers_while_one_append_is_in_flight_is_the_next() -> None:
    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        acts.line(10, "A")
        await elapse(1e-6)
        acts.line(20, "B", "C")
        acts.line(30, "D")
        await acts.appender.drain()
        assert [(batch.seq, batch.count, unpack_ends(batch.ends)) for batch in acts.batches] == [
            (1, 1, [10]),
            (2, 3, [20, 20, 30]),
        ]
        assert acts.appender.progress == Progress(next_seq=5, stored=4)

    play(1, acts())


def test_a_batch_has_one_band_and_order_is_kept() -> None:
    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        acts.line(10, "A")
        await elapse(1e-6)
        acts.line(20, "B")
        first = asyncio.create_task(acts.appender.put_live(text("L1"), None))
        second = asyncio.create_task(acts.appender.put_live(text("L2"), "key"))
        await elapse(1e-6)
        acts.line(30, "C")
        await acts.appender.drain()
        bands = [(batch.band, batch.count) for batch in acts.batches]
        assert bands == [(Band.JOURNAL, 1), (Band.JOURNAL, 1), (Band.LIVE, 1), (Band.LIVE, 1), (Band.JOURNAL, 1)]
        assert sorted([await first, await second]) == [4, 5]

    play(1, acts())


def test_a_batch_is_bounded_but_no_line_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "MAX_CHUNKS", 4)

    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        acts.line(1, "A")
        await elapse(1e-6)
        acts.line(2, *"BCD")
        acts.line(3, *"EF")
        acts.line(4, *"GHIJKL")
        acts.line(5, "M")
        await acts.appender.drain()
        assert [unpack_ends(batch.ends) for batch in acts.batches] == [[1], [2] * 3, [3] * 2, [4] * 6, [5]]

    play(1, acts())


def test_a_reader_is_held_back_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "MAX_PENDING", 3)

    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        acts.line(1, "A", "B")
        await acts.appender.room()
        acts.line(2, "C")
        room = asyncio.create_task(acts.appender.room())
        await elapse(1e-6)
        assert not room.done()
        await room
        assert acts.appender.progress.stored >= 1

    play(1, acts())


def test_the_same_key_gets_the_first_place_whenever_it_comes() -> None:
    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        places = [asyncio.create_task(acts.appender.put_live(text("L"), "key")) for _ in range(5)]
        await elapse(0.5)
        places += [asyncio.create_task(acts.appender.put_live(text("L"), "key")) for _ in range(5)]
        assert set(await asyncio.gather(*places)) == {2}
        assert await acts.appender.put_live(text("other"), "key") == 2
        assert len(acts.batches) == 1

    for seed in range(5):
        play(seed, acts())


def test_a_key_that_another_epoch_stored_is_found_there() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        stored = Batch(run_id=RUN, seq=1, count=1, epoch=1, band=Band.LIVE, data=text("L"), key="key")
        await acts.shard.submit(Append(batch=stored))
        acts.appender.progress.next_seq = 2
        assert await acts.appender.put_live(text("L"), "key") == 2
        assert await acts.appender.put_live(text("M"), "more") == 3

    play(1, acts())


def test_a_caller_that_left_takes_nothing_back() -> None:
    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        leaving = asyncio.create_task(acts.appender.put_live(text("L"), "key"))
        await elapse(0.1)
        leaving.cancel()
        assert await acts.appender.put_live(text("L"), "key") == 2

    play(1, acts())


def test_sealing_waits_for_what_is_in_flight_and_takes_nothing_more() -> None:
    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        acts.line(1, "A")
        live = asyncio.create_task(acts.appender.put_live(text("L"), None))
        await elapse(1e-6)
        sealing = asyncio.create_task(acts.appender.seal())
        await elapse(1e-6)
        with pytest.raises(LogClosedError):
            await acts.appender.put_live(text("late"), "late")
        await sealing
        assert await live == 3
        assert acts.appender.progress.next_seq == 3

    play(1, acts())


def test_a_full_log_ends_the_appender_and_stores_nothing_of_the_batch() -> None:
    async def acts() -> None:
        acts = await Acts.open(max_log_bytes=200)
        acts.line(1, "A" * 300)
        with pytest.raises(OutlastError, match="bound of 200 bytes"):
            await acts.appender.drain()
        assert acts.appender.full
        assert acts.batches == []
        with pytest.raises(OutlastError, match="bound"):
            await acts.appender.room()

    play(1, acts())


def test_a_lost_claim_is_told_to_everybody_who_waits() -> None:
    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        acts.line(1, "A")
        waiting = [
            asyncio.create_task(acts.appender.put_live(text("L"), "key")),
            asyncio.create_task(acts.appender.put_live(text("M"), None)),
        ]
        await acts.claim(1)
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, int | RunClaimLostError)
        with pytest.raises(RunClaimLostError):
            await acts.appender.put_live(text("more"), None)
        with pytest.raises(RunClaimLostError):
            await acts.appender.drain()
        with pytest.raises(RunClaimLostError):
            await acts.appender.room()

    for seed in range(5):
        play(seed, acts())


def test_closing_answers_whoever_waits_for_what_is_in_flight() -> None:
    async def acts() -> None:
        acts = await Acts.open(slow_s=1.0)
        flying = asyncio.create_task(acts.appender.put_live(text("L"), None))
        await elapse(1e-6)
        pending = asyncio.create_task(acts.appender.put_live(text("M"), None))
        await elapse(1e-6)
        acts.running.cancel()
        acts.appender.close(LogClosedError(RUN))
        for waiting in (flying, pending):
            with pytest.raises(LogClosedError):
                await waiting

    play(1, acts())
