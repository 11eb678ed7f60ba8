"""One append in flight per run; what gathers meanwhile is the next batch (P8). Chunk path 2/6.

Before: `engine/driver.py` translated and aligned a line. After: `engine/committer.py` stores the batch.

A batch holds one band and whole lines only (`core/batch.py`). A retry is the same batch byte for byte (P7), which is
why nothing is added to a batch once it was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import cast

from runtime.core.batch import Band, Batch, pack_ends
from runtime.core.checkpoint import Checkpoint
from runtime.core.open_items import OpenItems
from runtime.core.ops import Append, Appended, LogFull, Refusal
from runtime.core.refusing import to_error
from runtime.engine.authority import Authority
from runtime.engine.checkpointing import Mark
from runtime.errors import LogClosedError, OutlastError

log = logging.getLogger("outlast.driver")

# Bounds of one batch: a commit of 4,096 chunks costs 0.6 ms, and more saves nothing.
MAX_CHUNKS = 4096
MAX_BYTES = 1 << 20
# What may wait in memory before the reader of the journal is held back.
MAX_PENDING = 20_000
MAX_PENDING_BYTES = 16 << 20


@dataclass(slots=True)
class _Piece:
    """Chunks of whole journal lines, or one live chunk with its key and whoever waits for its position."""

    band: Band
    chunks: list[bytes]
    ends: list[int]
    key: str | None = None
    stored: asyncio.Future[int] | None = None
    mark: Mark | None = None  # of where its last line ends


@dataclass(slots=True)
class Progress:
    """How far the log has come under this epoch."""

    next_seq: int
    stored: int = 0  # chunks this epoch stored
    keys: dict[str, int] = field(default_factory=dict)  # position after each live chunk with a key


class Appender:
    """Appends for one epoch. `run` is its loop; everything else hands it work."""

    def __init__(self, authority: Authority, progress: Progress, open_items: OpenItems, max_log_bytes: int) -> None:
        self.progress = progress
        self.full = False
        self._authority = authority
        self._open = open_items
        self._max_log_bytes = max_log_bytes
        self._pieces: deque[_Piece] = deque()
        self._flying: list[_Piece] = []  # of the append that is in flight
        self._pending = 0
        self._pending_bytes = 0
        self._sealed = False
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._room.set()
        self._idle.set()
        self._ended: OutlastError | None = None

    def put_journal(self, chunks: list[bytes], ends: list[int], mark: Mark | None = None) -> None:
        """Take the new chunks of whole lines, `mark` being of the end of the last. Ask `room` before reading on."""
        if chunks:
            self._put(_Piece(Band.JOURNAL, chunks, ends, mark=mark))

    async def room(self) -> None:
        """Wait until there is room for more. Raises what ended the appender."""
        await self._room.wait()
        self.raise_if_ended()

    async def put_live(self, chunk: bytes, key: str | None) -> int:
        """Store one live chunk and return the position after it; the same key again gets the first answer (P8).

        Raises LogClosedError after the finish, RunClaimLostError if superseded."""
        if key is not None and key in self.progress.keys:
            return self.progress.keys[key]
        for piece in (*self._flying, *self._pieces):
            if key is not None and piece.key == key and piece.stored is not None:
                return await asyncio.shield(piece.stored)
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._put(_Piece(Band.LIVE, [chunk], [], key, stored))
        return await asyncio.shield(stored)

    async def drain(self) -> None:
        """Wait until everything handed in is stored. Raises what ended the appender."""
        await self._idle.wait()
        self.raise_if_ended()

    async def seal(self) -> None:
        """Take nothing more, and wait until what was taken is stored: only then does the finish know its place.

        Whoever comes later gets LogClosedError. Raises what ended the appender."""
        self._sealed = True
        await self.drain()

    def close(self, error: OutlastError) -> None:
        """Answer everybody who still waits: nothing more is stored under this epoch."""
        self._end(error)

    def raise_if_ended(self) -> None:
        """Raise what ended the appender, if anything did."""
        if self._ended is not None:
            raise self._ended

    async def run(self) -> None:
        """Append until cancelled, superseded, or the log is full or closed; the cause is then raised by every call."""
        try:
            while True:
                await self._work.wait()
                while self._pieces:
                    self._flying = self._take()
                    await self._append(self._flying)
                    self._flying = []
                self._work.clear()
                self._idle.set()
        except OutlastError as error:
            self._end(error)
        except Exception as error:
            log.exception("run %s: the appender failed", self._authority.run_id)
            self._end(OutlastError(f"The log could not be appended to: {error!r}"))

    def _put(self, piece: _Piece) -> None:
        self.raise_if_ended()
        if self._sealed:
            raise LogClosedError(self._authority.run_id)
        self._pieces.append(piece)
        self._pending += len(piece.chunks)
        self._pending_bytes += sum(map(len, piece.chunks))
        self._idle.clear()
        self._work.set()
        if self._pending >= MAX_PENDING or self._pending_bytes >= MAX_PENDING_BYTES:
            self._room.clear()

    def _take(self) -> list[_Piece]:
        taken = [self._pieces.popleft()]
        count = len(taken[0].chunks)
        size = sum(map(len, taken[0].chunks))
        while taken[0].band is Band.JOURNAL and self._pieces and self._pieces[0].band is Band.JOURNAL:
            if taken[-1].mark is not None:
                break  # a checkpoint is of the end of its append
            piece = self._pieces[0]
            piece_size = sum(map(len, piece.chunks))
            if count + len(piece.chunks) > MAX_CHUNKS or size + piece_size > MAX_BYTES:
                break
            count += len(piece.chunks)
            size += piece_size
            taken.append(self._pieces.popleft())
        return taken

    async def _append(self, pieces: list[_Piece]) -> None:
        chunks = [chunk for piece in pieces for chunk in piece.chunks]
        batch = Batch(
            run_id=self._authority.run_id,
            seq=self.progress.next_seq,
            count=len(chunks),
            epoch=self._authority.epoch,
            band=pieces[0].band,
            data=b"\n".join(chunks),
            ends=pack_ends([end for piece in pieces for end in piece.ends]),
            key=pieces[0].key,
        )
        checkpoint = self._checkpoint(pieces[-1].mark, batch, chunks)
        op = Append(batch=batch, max_log_bytes=self._max_log_bytes, checkpoint=checkpoint)
        outcome = await self._authority.submit(op)
        match outcome:
            case Appended():
                self._stored(pieces, chunks, outcome)
            case LogFull():
                self.full = True
                raise to_error(outcome)
            case _:
                raise to_error(cast("Refusal", outcome))

    def _checkpoint(self, mark: Mark | None, batch: Batch, chunks: list[bytes]) -> Checkpoint | None:
        if mark is None:
            return None
        then_open = self._open.copy()
        then_open.feed(chunks)
        return mark.at(batch, then_open.state())

    def _stored(self, pieces: list[_Piece], chunks: list[bytes], outcome: Appended) -> None:
        self._pending -= len(chunks)
        self._pending_bytes -= sum(map(len, chunks))
        if self._pending < MAX_PENDING and self._pending_bytes < MAX_PENDING_BYTES:
            self._room.set()
        if outcome.seq == self.progress.next_seq:
            self._open.feed(chunks)
            self.progress.next_seq = outcome.next_seq
            self.progress.stored += len(chunks)
        for piece in pieces:
            if piece.key is not None:
                self.progress.keys[piece.key] = outcome.next_seq
            if piece.stored is not None and not piece.stored.done():
                piece.stored.set_result(outcome.next_seq)

    def _end(self, error: OutlastError) -> None:
        if self._ended is None:
            self._ended = error
        for piece in (*self._flying, *self._pieces):
            if piece.stored is not None and not piece.stored.done():
                piece.stored.set_exception(error)
                piece.stored.exception()  # whoever waits gets it; nobody waiting is no failure of ours
        self._flying = []
        self._pieces.clear()
        self._room.set()
        self._idle.set()
