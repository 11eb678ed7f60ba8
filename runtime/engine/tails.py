"""What a shard holds of each log in memory, and how readers are served from it. Chunk path 4/6.

Before: `engine/committer.py` has made a batch durable. After: `serve_app/shared_read.py` gets a reply.

A log in memory is three stretches, oldest first:

    cold      only in the store: read on demand, sealed on the way
    sealed    immutable segments in the object store, held by their refs (P14)
    tail      the bytes of the newest committed batches

A chunk enters the tail only after its commit, so nothing a reader gets can be lost (I2). Memory is a cache: dropping
all of it costs readers a store read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from typing import Any, Protocol

from runtime.core.batch import Batch
from runtime.core.record import Head, RunSpec
from runtime.ports import ReadReply, Sealed

# One segment: large enough that a ref (2.5 KB of shard memory) is cheap, small enough to move in a few ms.
SEGMENT_BYTES = 256 << 10
# What one reply carries at most, so that a catch-up of a large log never builds a large message.
REPLY_SEGMENTS = 4
REPLY_BYTES = 1 << 20


class Segments(Protocol):
    """Where sealed segments go. May fail: the store still has the bytes."""

    def put(self, data: bytes) -> Any:
        """Keep `data`; return a ref that readers can resolve. Blocking."""


class NoSegments:
    """Keeps nothing: every read is inline."""

    def put(self, data: bytes) -> Any:  # noqa: ARG002 - the port's shape
        """Return None: there is no segment."""
        return None


class Tail:
    """One log's newest stretch, its sealed segments, and the readers that wait for more."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.head: Head | None = None
        self.spec: RunSpec | None = None
        self.sealed: list[Sealed] = []
        self.sealing = False
        self.used = 0.0
        self._batches: deque[tuple[int, int, bytes]] = deque()  # (seq, count, data), contiguous
        self._bytes = 0
        self._waiters: dict[asyncio.Future[None], None] = {}

    @property
    def version(self) -> int:
        """Return the version of the head that is known; -1 for none."""
        return -1 if self.head is None else self.head.version

    # --- what the committer tells ---

    @property
    def generation(self) -> int:
        """Return the generation of what is held (P10)."""
        return 0 if self.head is None else self.head.generation

    @property
    def log_gone(self) -> bool:
        """Return whether the log is not kept any more."""
        return self.head is not None and self.head.log_gone

    def adopt(self, head: Head) -> None:
        """Take a head as stored, unless a newer one is known; wake readers if the log's end moved.

        One of a later generation is newer, whatever its version: the store has gone back, and what was held of the log
        may be another log's by now (P10)."""
        known = self.head
        if known is not None and known.generation != head.generation:
            if known.generation < head.generation:
                self.head = head
                self._hold_nothing()
                self.wake()
            return
        if known is not None and known.version >= head.version:
            return
        self.head = head
        if head.log_gone:
            self._hold_nothing()
        if known is None or known.next_seq != head.next_seq or known.closed != head.closed:
            self.wake()

    def _hold_nothing(self) -> None:
        self.sealed = []
        self._batches.clear()
        self._bytes = 0

    def add(self, batch: Batch) -> None:
        """Take a committed batch; one that is here already changes nothing."""
        if self._batches and batch.seq < self._end:
            return
        if self._batches and self._end != batch.seq:
            self._batches.clear()
            self._bytes = 0
        self._batches.append((batch.seq, batch.count, batch.data))
        self._bytes += len(batch.data)

    @property
    def _end(self) -> int:
        seq, count, _ = self._batches[-1]
        return seq + count

    # --- sealing ---

    def to_seal(self) -> tuple[int, int, bytes] | None:
        """Return (start, end, data) of a stretch that is due to be sealed."""
        if self.sealing or self._bytes < SEGMENT_BYTES or len(self._batches) < 1:
            return None
        parts: list[bytes] = []
        size = 0
        start = end = self._batches[0][0]
        for seq, count, data in self._batches:
            parts.append(data)
            size += len(data)
            end = seq + count
            if size >= SEGMENT_BYTES:
                break
        return start, end, b"\n".join(parts)

    def seal(self, sealed: Sealed) -> None:
        """Replace a stretch by its segment. No segment lies within another, so their ends are in order too."""
        if self.log_gone:
            return
        if not any(known.start <= sealed.start and sealed.end <= known.end for known in self.sealed):
            self.sealed = [
                known for known in self.sealed if not (sealed.start <= known.start and known.end <= sealed.end)
            ]
            insort(self.sealed, sealed, key=lambda known: known.start)
        self.forget(sealed.end)

    def forget(self, end: int) -> None:
        """Drop the tail up to `end` from memory: it could not be sealed, and the store has it."""
        while self._batches and self._batches[0][0] + self._batches[0][1] <= end:
            _, _, data = self._batches.popleft()
            self._bytes -= len(data)

    def drop_sealed(self, after: int) -> None:
        """Forget the segment that holds `after`: a reader found it lost (P14)."""
        self.sealed = [known for known in self.sealed if not known.start <= after < known.end]

    # --- reading ---

    def nothing(self, shard_epoch: int, after: int) -> ReadReply:
        """Return the reply of a run that is unknown, or whose log is not kept any more."""
        known = self.head is not None
        return ReadReply(
            shard_epoch=shard_epoch,
            known=known,
            start=after,
            next=0,
            closed=known,
            generation=self.generation,
            gone=known,
        )

    def reply(self, shard_epoch: int, after: int) -> ReadReply | None:
        """Return what memory holds past `after`: segments, then tail; None if the stretch is cold."""
        head = self.head
        assert head is not None
        if after >= head.next_seq:
            return self._make(shard_epoch, after, head.next_seq, (), b"", after, 0)
        segments, at = self._segments_from(after)
        tail, tail_start, count, _ = self._tail_from(at) if len(segments) < REPLY_SEGMENTS else (b"", at, 0, 0)
        if not segments and not count:
            return None
        return self._make(shard_epoch, after, tail_start + count, segments, tail, tail_start, count)

    def inline_reply(self, shard_epoch: int, after: int, batches: list[Batch]) -> ReadReply:
        """Return a reply made from stored batches that cover `after`."""
        first = batches[0]
        data = b"\n".join(batch.data for batch in batches)
        data = skip(data, after - first.seq)
        end = batches[-1].next_seq
        return self._make(shard_epoch, after, end, (), data, after, end - after)

    def _make(
        self, epoch: int, after: int, end: int, segments: tuple[Sealed, ...], tail: bytes, start: int, count: int
    ) -> ReadReply:
        head = self.head
        assert head is not None
        return ReadReply(
            shard_epoch=epoch,
            known=True,
            start=after,
            next=end,
            closed=head.closed and end >= head.next_seq,
            segments=segments,
            tail_start=start,
            tail_count=count,
            tail=tail,
            generation=head.generation,
        )

    def _segments_from(self, after: int) -> tuple[tuple[Sealed, ...], int]:
        found: list[Sealed] = []
        at = after
        index = bisect_right(self.sealed, after, key=lambda known: known.start) - 1
        while 0 <= index < len(self.sealed) and len(found) < REPLY_SEGMENTS:
            sealed = self.sealed[index]
            if not sealed.start <= at < sealed.end:
                break
            found.append(sealed)
            at = sealed.end
            index += 1
        return tuple(found), at

    def _tail_from(self, after: int) -> tuple[bytes, int, int, int]:
        if not self._batches or not self._batches[0][0] <= after < self._end:
            return b"", after, 0, 0
        parts: list[bytes] = []
        size = 0
        end = after
        for seq, count, data in self._newest(after):
            parts.append(skip(data, after - seq) if seq < after else data)
            size += len(parts[-1])
            end = seq + count
            if size >= REPLY_BYTES:
                break
        return b"\n".join(parts), after, end - after, size

    def _newest(self, after: int) -> list[tuple[int, int, bytes]]:
        """Return the batches that reach past `after`, in order; a reader at the end costs one step, not a scan."""
        found = []
        for item in reversed(self._batches):
            if item[0] + item[1] <= after:
                break
            found.append(item)
        found.reverse()
        return found

    # --- waiting ---

    async def wait(self, timeout_s: float) -> None:
        """Park until the log's end moves, or `timeout_s`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return
        finally:
            del self._waiters[waiter]

    def wake(self) -> None:
        """Release every parked reader."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Release every parked reader with an error."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)

    @property
    def watched(self) -> bool:
        """Return whether a reader waits."""
        return bool(self._waiters)


def skip(data: bytes, count: int) -> bytes:
    """Return joined chunks without the first `count`."""
    if count <= 0:
        return data
    return data.split(b"\n", count)[count]
