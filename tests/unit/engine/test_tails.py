"""Whatever a tail holds, has sealed, has dropped or never had: a reader gets exactly what follows (I3)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.batch import Band, Batch
from runtime.core.record import Head
from runtime.engine import tails
from runtime.engine.tails import Tail, skip
from runtime.errors import ShardSuperseded
from runtime.ports import ReadReply, Sealed
from runtime.testing.sim_loop import elapse, play

SEGMENT_BYTES, REPLY_BYTES = 60, 90


def head(next_seq: int, version: int, *, closed: bool, generation: int = 0) -> Head:
    fixed = {"run_id": "run", "thread_id": "thread", "owner": "", "digest": "", "created_at": 0}
    return Head(**fixed, next_seq=next_seq, version=version, closed=closed, generation=generation)  # type: ignore[arg-type]


class Acts:
    """A tail beside the log it is a cache of, and segments that can be lost."""

    def __init__(self) -> None:
        self.tail = Tail("run")
        self.log: list[Batch] = []
        self.segments: list[bytes] = []
        self.version = 0
        self.generation = 0
        self.tell()

    @property
    def end(self) -> int:
        return self.log[-1].next_seq if self.log else 0

    @property
    def chunks(self) -> list[bytes]:
        return [chunk for batch in self.log for chunk in batch.chunks()]

    def tell(self, *, closed: bool = False) -> None:
        self.version += 1
        self.tail.adopt(head(self.end, self.version, closed=closed, generation=self.generation))

    def append(self, count: int, *, seen: bool) -> None:
        """Commit a batch; `seen`: its answer came, so that the tail gets it."""
        chunks = [b"%d-%d-%s" % (self.generation, self.end + at, b"x" * (at % 5)) for at in range(count)]
        data = b"\n".join(chunks)
        batch = Batch(run_id="run", seq=self.end, count=count, epoch=1, band=Band.LIVE, data=data)
        self.log.append(batch)
        if seen:
            self.tail.add(batch)
        self.tell()

    def go_back(self, kept: int) -> None:
        """Have the store lose all but the first batches, and with them versions of the record (P10)."""
        del self.log[kept:]
        self.version = min(self.version, kept)
        self.generation += 1
        self.tell()

    def repeat(self, back: int) -> None:
        """Have a retry of an older batch answered."""
        if self.log:
            self.tail.add(self.log[max(0, len(self.log) - 1 - back)])

    def seal(self, *, kept: bool) -> None:
        due = self.tail.to_seal()
        if due is None:
            return
        start, end, data = due
        if kept:
            self._keep(start, end, data)
        else:
            self.tail.forget(end)

    def seal_cold(self, first: int, count: int) -> None:
        batches = self.log[first : first + count]
        if batches:
            self._keep(batches[0].seq, batches[-1].next_seq, b"\n".join(batch.data for batch in batches))

    def _keep(self, start: int, end: int, data: bytes) -> None:
        self.segments.append(data)
        self.tail.seal(Sealed(start=start, end=end, ref=len(self.segments) - 1))

    def read(self, after: int) -> tuple[ReadReply, list[bytes]]:
        """Read as a shard does, and unfold the reply as a gateway does."""
        reply = self.tail.reply(1, after)
        if reply is None:
            stored = [batch for batch in self.log if batch.next_seq > after][:3]
            reply = self.tail.inline_reply(1, after, stored)
        got: list[bytes] = []
        for sealed in reply.segments:
            got += self.segments[sealed.ref].split(b"\n")[after + len(got) - sealed.start :]
        if reply.tail_count:
            assert reply.tail_start == after + len(got)
            got += reply.tail.split(b"\n")
        assert reply.generation == self.generation
        assert reply.start == after
        assert reply.next == after + len(got)
        return reply, got

    def check(self) -> None:
        """Read the log from every offset to its end."""
        for start in range(self.end + 1):
            at, got = start, list[bytes]()
            while at < self.end:
                reply, more = self.read(at)
                assert more, f"nothing at {at} of {self.end}"
                assert reply.closed <= (reply.next == self.end)
                got += more
                at = reply.next
            assert got == self.chunks[start:]
        ends = [(known.start, known.end) for known in self.tail.sealed]
        assert ends == sorted(ends)
        assert [end for _, end in ends] == sorted(end for _, end in ends)


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12), st.booleans()),
    st.tuples(st.just("append"), st.integers(1, 12), st.just(True)),
    st.tuples(st.just("seal"), st.booleans()),
    st.tuples(st.just("cold"), st.integers(0, 20), st.integers(1, 6)),
    st.tuples(st.just("lost"), st.integers(0, 100)),
    st.tuples(st.just("repeat"), st.integers(0, 5)),
    st.tuples(st.just("back"), st.integers(0, 20)),
)


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=150, deadline=None)
def test_a_reader_from_any_offset_gets_exactly_what_follows(steps: list[tuple[object, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails, "SEGMENT_BYTES", SEGMENT_BYTES)
        patch.setattr(tails, "REPLY_BYTES", REPLY_BYTES)
        acts = Acts()
        for step in steps:
            match step:
                case ("append", int(count), bool(seen)):
                    acts.append(count, seen=seen)
                case ("seal", bool(kept)):
                    acts.seal(kept=kept)
                case ("cold", int(first), int(count)):
                    acts.seal_cold(first, count)
                case ("lost", int(after)):
                    acts.tail.drop_sealed(after)
                case ("back", int(kept)):
                    acts.go_back(kept)
                case ("repeat", int(back)):
                    acts.repeat(back)
        acts.check()
        acts.tell(closed=True)
        assert acts.read(acts.end)[0].closed


def test_a_head_of_an_earlier_generation_changes_nothing() -> None:
    acts = Acts()
    acts.append(3, seen=True)
    acts.go_back(0)
    acts.tail.adopt(head(3, 99, closed=True))
    known = acts.tail.head
    assert known is not None
    assert (known.next_seq, known.closed, known.generation) == (0, False, 1)


def test_no_segment_lies_within_another() -> None:
    tail = Tail("run")
    for start, end in ((4, 6), (0, 2), (3, 9), (5, 7), (3, 9), (8, 12)):
        tail.seal(Sealed(start=start, end=end, ref=None))
    assert [(known.start, known.end) for known in tail.sealed] == [(0, 2), (3, 9), (8, 12)]


def test_a_parked_reader_wakes_when_the_end_moves_and_not_before() -> None:
    async def acts() -> None:
        acts = Acts()
        parked = asyncio.create_task(acts.tail.wait(25.0))
        await elapse(1.0)
        acts.tell()
        await elapse(1.0)
        assert not parked.done()
        assert acts.tail.watched
        acts.append(1, seen=True)
        await parked
        assert not acts.tail.watched

    play(1, acts())


def test_a_parked_reader_wakes_when_the_log_closes() -> None:
    async def acts() -> None:
        acts = Acts()
        parked = asyncio.create_task(acts.tail.wait(25.0))
        await elapse(1.0)
        acts.tell(closed=True)
        await parked

    play(1, acts())


def test_a_parked_reader_gives_up_after_its_time() -> None:
    async def acts() -> None:
        acts = Acts()
        begun = asyncio.get_running_loop().time()
        await acts.tail.wait(7.0)
        assert asyncio.get_running_loop().time() == begun + 7.0

    play(1, acts())


def test_a_superseded_shard_fails_its_parked_readers() -> None:
    async def acts() -> None:
        acts = Acts()
        parked = asyncio.create_task(acts.tail.wait(25.0))
        await elapse(1.0)
        acts.tail.fail(ShardSuperseded(0, 1, 2))
        with pytest.raises(ShardSuperseded):
            await parked

    play(1, acts())


@pytest.mark.parametrize(("count", "left"), [(0, b"a\nb\nc"), (1, b"b\nc"), (2, b"c"), (-1, b"a\nb\nc")])
def test_skip_drops_whole_chunks(count: int, left: bytes) -> None:
    assert skip(b"a\nb\nc", count) == left
