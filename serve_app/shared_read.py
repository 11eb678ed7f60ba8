"""One background read per replica and run, fanned out to all of its viewers. Chunk path 5/6.

Before: `runtime/engine/tails.py` answers the read. After: `frames.py` makes the bytes of the responses.

A `Channel` long-polls its shard from the log's tail and keeps the newest pieces in a ring of bounded size. It has no
queue per viewer: a viewer is a position, and takes from the ring whatever lies past it. One that is not covered by
the ring (it joined from far back, or its client is slow) reads for itself until it is; so a slow client costs the
others nothing, and memory is bounded per run, not per viewer.

The read belongs to the replica, never to a request: a client that leaves must not cancel it for the others. It ends
when the last viewer has left, or the log is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from runtime.ports import Cluster
from serve_app.background import Background
from serve_app.frames import Piece
from serve_app.log_reader import LogGone, LogReader, SegmentReader

log = logging.getLogger("outlast.gateway")

# Below the shard's 25 s (P11), so that the two never race for the end of a park.
WAIT_S = 20.0
# What a viewer may be behind before it has to read for itself. The frames of both formats come on top.
RING_BYTES = 1 << 20


class Waiting(Protocol):
    """A viewer, as its channel knows it."""

    def wake(self) -> None:
        """Something changed: more pieces, the end, or a failure."""


class Channel:
    """The newest pieces of one log, and who waits for more."""

    def __init__(self, reader: LogReader, background: Background, run_id: str) -> None:
        self.reader = reader
        self.closed_at: int | None = None  # the log's end, once known
        self.gone = False  # the log is no more: viewers are cut
        self.viewers: set[Waiting] = set()
        self._position: int | None = None  # how far the shared read has come
        self._background = background
        self._run_id = run_id
        self._task: asyncio.Task[None] | None = None
        self._ring: deque[Piece] = deque()  # contiguous
        self._bytes = 0

    def earlier_than(self, generation: int | None) -> bool:
        """Return whether this is known to be another log than that of `generation`: part of it was lost (P10)."""
        return None not in (generation, self.reader.generation) and self.reader.generation < generation  # type: ignore[operator]

    @property
    def running(self) -> bool:
        """Return whether the shared read has been started."""
        return self._task is not None

    def start(self, position: int, known: Piece | None = None) -> None:
        """Begin to read past `position`, unless it has begun or there is nothing to read. `known` is a piece that
        ends there, for viewers that need it."""
        if self._task is not None or self.closed_at is not None or self.gone:
            return
        self._position = position
        if known is not None:
            self._keep(known)
        self._task = self._background.spawn(self._read(position), f"read {self._run_id}")

    def stop(self) -> None:
        """End the shared read."""
        if self._task is not None:
            self._task.cancel()

    def since(self, position: int) -> list[Piece] | None:
        """Return the pieces past `position`, which may be inside the first; [] if that is the end so far; None if
        the ring does not reach back to it."""
        if self._position is None:
            return None
        if position >= self._position:
            return []
        found: list[Piece] = []
        for piece in reversed(self._ring):
            found.append(piece)
            if piece.start <= position:
                found.reverse()
                return found
        return None

    async def _read(self, position: int) -> None:
        try:
            while self.closed_at is None:
                stretch = await self.reader.read(position, WAIT_S)
                for piece in stretch.pieces:
                    self._keep(piece)
                self._position = position = stretch.next
                if stretch.closed:
                    self.closed_at = position
                if stretch.pieces or stretch.closed:
                    self._wake()
                else:
                    self._forget()
                # A store in this process may answer without ever giving way to the viewers.
                await asyncio.sleep(0)
        except LogGone as error:
            log.info("%s", error)
            self.gone = True
        except Exception:
            log.exception("run %s: the shared read failed; its viewers are cut and come back", self._run_id)
            self.gone = True
        self._wake()

    def _keep(self, piece: Piece) -> None:
        self._ring.append(piece)
        self._bytes += len(piece.data)
        while self._bytes > RING_BYTES and len(self._ring) > 1:
            self._bytes -= len(self._ring.popleft().data)

    def _forget(self) -> None:
        """Free the ring of a run that has been silent for WAIT_S: who is still behind reads for itself."""
        self._ring.clear()
        self._bytes = 0

    def _wake(self) -> None:
        for viewer in self.viewers:
            viewer.wake()


class Channels:
    """The channels of one replica: one for each run that has a viewer here."""

    def __init__(self, cluster: Cluster, segments: SegmentReader, background: Background) -> None:
        self._cluster = cluster
        self._segments = segments
        self._background = background
        self._channels: dict[str, Channel] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def join(self, run_id: str, viewer: Waiting, generation: int | None) -> Channel:
        """Return the run's channel, with `viewer` in it, whose log is of `generation`. Every join is ended by one
        `leave`."""
        channel = self._channels.get(run_id)
        if channel is None or channel.gone or channel.reader.gone or channel.earlier_than(generation):
            reader = LogReader(self._cluster, self._segments, run_id)
            channel = self._channels[run_id] = Channel(reader, self._background, run_id)
        channel.viewers.add(viewer)
        return channel

    def leave(self, run_id: str, viewer: Waiting, channel: Channel) -> None:
        """Take the viewer out; the last one ends the channel."""
        channel.viewers.discard(viewer)
        if not channel.viewers:
            channel.stop()
            if self._channels.get(run_id) is channel:
                del self._channels[run_id]
