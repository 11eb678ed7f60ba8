"""Read one run's log from its shard, and do not give up while the shard is being replaced.

A viewer never learns that a shard died: a read that fails is asked again, with a small backoff, for as long as the
reader lives (heartbeats go on meanwhile). Replies of a superseded incarnation are dropped (P11). Sealed segments are
fetched in at most SEGMENT_S each; one that does not come is read from the store instead (P14).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple, Protocol

from runtime.errors import StoreUnavailable
from runtime.ports import Cluster, ReadReply
from serve_app.asking import PASSING, pauses
from serve_app.frames import Piece

log = logging.getLogger("outlast.gateway")

SEGMENT_S = 0.5  # P14
# A shard answers a parked read at its end; one that is this late after it hangs, and is asked anew.
LATE_S = 5.0


class SegmentReader(Protocol):
    """Fetches sealed segments: Ray's object store in an instance, a dict in tests."""

    async def get(self, ref: Any) -> bytes | None:
        """Return a copy of the segment's bytes and keep no hold of `ref` (borrowed refs pin memory, P14); None, or
        any error, if it cannot be had. May be cancelled."""


class NoSegments:
    """Has no segments: every one is read from the store."""

    async def get(self, ref: Any) -> bytes | None:
        """Return None."""
        del ref
        return None


class LogGone(Exception):
    """The shard says that there is no such run or position (any more): only a new request can find out more."""


class Stretch(NamedTuple):
    """What one read brought: contiguous pieces up to `next`; `closed` means that the log ends there."""

    pieces: list[Piece]
    next: int
    closed: bool

    @property
    def size(self) -> int:
        """Return the bytes of all pieces."""
        return sum(len(piece.data) for piece in self.pieces)


class LogReader:
    """Reads the log of `run_id`. One per run and replica, so that the highest shard epoch is known to all."""

    def __init__(self, cluster: Cluster, segments: SegmentReader, run_id: str) -> None:
        self._cluster = cluster
        self._segments = segments
        self._run_id = run_id
        self._shard_epoch = 0
        self.generation: int | None = None  # of everything it has read
        self.gone = False  # what comes now is another log

    async def read(self, after: int, wait_s: float) -> Stretch:
        """Return what lies past `after`; with nothing there, wait up to `wait_s`. Returns when the shard has
        answered, however long that takes. Raises LogGone."""
        waits = pauses()
        while True:
            try:
                async with asyncio.timeout(wait_s + LATE_S):
                    return await self._read_once(after, wait_s)
            except PASSING as error:
                log.debug("run %s: reading past %d again: %r", self._run_id, after, error)
            await asyncio.sleep(next(waits))

    async def _read_once(self, after: int, wait_s: float) -> Stretch:
        reply = self._checked(await self._cluster.shard(self._run_id).read(self._run_id, after, wait_s), after)
        pieces: list[Piece] = []
        at = after
        for sealed in reply.segments:
            data = await self._segment(sealed.ref)
            if data is None:
                return await self._read_inline(pieces, at)
            pieces.append(_piece(sealed.start, sealed.end, data, at, reply.generation))
            at = sealed.end
        return _finish(pieces, reply, at)

    async def _read_inline(self, pieces: list[Piece], at: int) -> Stretch:
        shard = self._cluster.shard(self._run_id)
        reply = self._checked(await shard.read(self._run_id, at, 0, inline=True), at)
        return _finish(pieces, reply, at)

    def _checked(self, reply: ReadReply, after: int) -> ReadReply:
        if reply.shard_epoch < self._shard_epoch:
            raise StoreUnavailable(f"The answer is of shard epoch {reply.shard_epoch}, which was superseded.")
        self._shard_epoch = reply.shard_epoch
        if self.generation is None and reply.known:
            self.generation = reply.generation
        if not reply.known or reply.gone or reply.next < after or reply.generation != self.generation:
            self.gone = True
            raise LogGone(f"run {self._run_id} has no position {after} of generation {self.generation}")
        return reply

    async def _segment(self, ref: Any) -> bytes | None:
        try:
            async with asyncio.timeout(SEGMENT_S):
                return await self._segments.get(ref)
        except Exception as error:  # noqa: BLE001 - whatever the object store says, the store still has the bytes
            log.debug("run %s: a segment is read from the store: %r", self._run_id, error)
            return None


def _finish(pieces: list[Piece], reply: ReadReply, at: int) -> Stretch:
    if reply.tail_count:
        end = reply.tail_start + reply.tail_count
        pieces.append(_piece(reply.tail_start, end, reply.tail, at, reply.generation))
        at = end
    if at != reply.next:
        raise StoreUnavailable(f"The answer says that it reaches {reply.next}, and reaches {at}.")
    return Stretch(pieces, at, reply.closed)


def _piece(start: int, end: int, data: bytes, at: int, generation: int) -> Piece:
    """Return the piece without what lies before `at`. Raises StoreUnavailable on a gap: ask again (I3)."""
    if not start <= at < end:
        raise StoreUnavailable(f"The answer holds [{start}, {end}) where {at} was due.")
    if start < at:
        data = data.split(b"\n", at - start)[-1]
    return Piece(at, end, data, generation)
