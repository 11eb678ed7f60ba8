"""Outlast's own log behind the port of delivery logs: check and write are one transaction of its store (I1).

Anybody may read. Only who holds the claim may write: its `Authority` says so, and the shard checks its epoch with every
write, so no quiet time is needed and closing is fenced like the rest. What is appended is of the live band.

An own log ends with its terminal chunk, in the transaction that ends the run (I5). So an append whose last chunk is
terminal is the run's finish, and `close` of a log that has none yet ends the run as `agent_no_result`. A terminal
chunk in the middle of an append is stored like any other.

Deliberately not here: the lease, which whoever holds an `Authority` keeps alive (`engine/driver.py`); and viewers
(P20): a read through this port keeps no run from being detached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar, cast

from runtime.agent_ports import Ending
from runtime.core.batch import Band, Batch
from runtime.core.chunk import RUN_FINISHED, TERMINAL_TYPES, chunk_type, decode_chunk
from runtime.core.ids import START, Offset
from runtime.core.open_items import OpenItems
from runtime.core.ops import (
    AlreadyEnded,
    Append,
    Appended,
    Closed,
    Finished,
    MustAbort,
    Outcome,
    Refusal,
)
from runtime.core.record import RunError, Status
from runtime.core.refusing import to_error
from runtime.delivery.durability import Entry
from runtime.delivery.errors import LogGone, RunDriverPipeOutsideClaimError
from runtime.engine.authority import Authority, repeat
from runtime.engine.claimed_log import pages
from runtime.engine.finishing import aborted, build_finish, failed
from runtime.engine.tails import skip
from runtime.errors import OffsetGone, RunClaimLostError, RunNotFound, StoreError
from runtime.ports import LogPort

T = TypeVar("T")

PARK_S = 20.0
NOT_KEPT = "is not kept any more"


class OwnLog:
    """The log of one run, for reading."""

    def __init__(self, log: LogPort, run_id: str, offset: str | None = None) -> None:
        self.run_id = run_id
        self._log = log
        self._offset = offset

    @property
    def fences(self) -> bool:
        """Return True: the shard checks the epoch in the transaction that writes."""
        return True

    @property
    def resume_from(self) -> str | None:
        """Return the offset that the client came with."""
        return self._offset

    async def claim(self, epoch: int) -> None:  # noqa: ARG002 - the port's shape
        """Raise RunDriverPipeOutsideClaimError: a run of ours is claimed on its record (`ClaimRun`)."""
        raise RunDriverPipeOutsideClaimError(self.run_id)

    async def append(self, chunks: Sequence[bytes]) -> list[str]:  # noqa: ARG002 - the port's shape
        """Raise RunDriverPipeOutsideClaimError: a reader writes nothing."""
        raise RunDriverPipeOutsideClaimError(self.run_id)

    async def close(self) -> None:
        """Raise RunDriverPipeOutsideClaimError: a reader ends nothing."""
        raise RunDriverPipeOutsideClaimError(self.run_id)

    async def read(self, offset: str) -> AsyncGenerator[Entry, None]:
        """Yield what lies after `offset`; see the port. Raises RunNotFound."""
        parsed = Offset.parse(offset)
        at, generation = await self._place(parsed)
        while True:
            reply = await repeat(lambda at=at: self._log.read(self.run_id, at, PARK_S, inline=True))  # type: ignore[misc]
            if not reply.known:
                raise RunNotFound(self.run_id)
            if reply.gone:
                raise LogGone(self.run_id, NOT_KEPT)
            if generation is None:
                generation = reply.generation
            if not Offset(generation, at).leads_into(reply.generation, reply.next):
                raise OffsetGone(str(Offset(generation, at)), str(Offset(reply.generation, reply.next)))
            if reply.tail_count and reply.next > at:
                for chunk in skip(reply.tail, at - reply.tail_start).split(b"\n"):
                    at += 1
                    yield Entry(str(Offset(reply.generation, at)), chunk)
            if reply.closed and at == reply.next:
                return

    async def snapshot(self) -> list[Entry]:
        """Return everything stored now, page by page. Raises LogGone for a log that is not kept any more."""
        found = await repeat(lambda: self._log.record(self.run_id))
        if found is None:
            return []
        try:
            found_pages = pages(self._log, self.run_id, 0, found[0].next_seq)
            chunks = [chunk async for page in found_pages for batch in page for chunk in batch.chunks()]
        except StoreError:
            await self._refuse_if_gone()  # it has less than its record said
            raise
        await self._refuse_if_gone()
        generation = found[0].generation
        return [Entry(str(Offset(generation, position)), chunk) for position, chunk in enumerate(chunks, 1)]

    async def _refuse_if_gone(self) -> None:
        found = await repeat(lambda: self._log.record(self.run_id))
        if found is None or found[0].log_gone:
            raise LogGone(self.run_id, NOT_KEPT)

    async def exists(self) -> bool:
        """Return whether the run exists."""
        return await repeat(lambda: self._log.record(self.run_id)) is not None

    async def _place(self, offset: Offset | None) -> tuple[int, int | None]:
        """Return where to begin (the tail, without an offset), and of which generation that is: None for any (P10)."""
        if offset is not None:
            return offset.position, None if offset == START else offset.generation
        found = await repeat(lambda: self._log.record(self.run_id))
        if found is None:
            raise RunNotFound(self.run_id)
        return found[0].next_seq, found[0].generation


class ClaimedOwnLog(OwnLog):
    """The log of a run that this process drives under `authority`'s epoch."""

    def __init__(self, authority: Authority, *, max_log_bytes: int = 0, offset: str | None = None) -> None:
        super().__init__(authority.log, authority.run_id, offset)
        self._authority = authority
        self._max_log_bytes = max_log_bytes
        self._next_seq = authority.head.next_seq
        self._last: asyncio.Task[Any] | None = None

    async def claim(self, epoch: int) -> None:
        """Raise RunClaimLostError unless `epoch` is the one that is held: the claim was taken on the record."""
        if epoch != self._authority.epoch:
            raise RunClaimLostError(self.run_id, epoch, self._authority.epoch)
        await self._authority.permit()

    async def append(self, chunks: Sequence[bytes]) -> list[str]:
        """Store `chunks`, or end the run if the last of them is terminal; see the module.

        Raises RunClaimLostError, LogClosedError, RunEnded, OutlastError `log_limit`, and OutlastError `aborted` for
        another ending than that of a run that somebody has cancelled: then `close` it."""
        if not chunks:
            return []
        ends = chunk_type(chunks[-1]) in TERMINAL_TYPES
        positions = await self._in_turn(self._finish(list(chunks)) if ends else self._append(list(chunks)))
        return [str(Offset(self._authority.head.generation, position)) for position in positions]

    async def close(self) -> None:
        """End the run as `agent_no_result`, or as aborted if it was cancelled; one that has ended is left alone.

        Raises RunClaimLostError."""
        await self._in_turn(self._end())

    async def _in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` after every earlier write. A caller that is cancelled leaves its write to end by itself: half the
        system may know of it already, and the next one needs to know its place (P8)."""
        before = self._last

        async def turn() -> T:
            if before is not None:
                await asyncio.wait([before])
            return await work

        self._last = task = asyncio.create_task(turn(), name=f"run {self.run_id} append")
        task.add_done_callback(_hear)
        return await asyncio.shield(task)

    async def _append(self, chunks: list[bytes]) -> list[int]:
        batch = Batch(
            run_id=self.run_id,
            seq=self._next_seq,
            count=len(chunks),
            epoch=self._authority.epoch,
            band=Band.LIVE,
            data=b"\n".join(chunks),
        )
        outcome = await self._authority.submit(Append(batch=batch, max_log_bytes=self._max_log_bytes))
        if not isinstance(outcome, Appended):
            raise to_error(cast("Refusal", outcome))
        self._next_seq = outcome.next_seq
        return list(range(batch.seq + 1, outcome.next_seq + 1))

    async def _finish(self, chunks: list[bytes]) -> list[int]:
        """End the run with `chunks`. What the log has open is closed before the terminal chunk (P9)."""
        first = self._next_seq + 1
        outcome = await self._submit(_ending(chunks))
        if not isinstance(outcome, Finished):
            raise to_error(cast("Refusal", outcome))
        self._next_seq = outcome.head.next_seq
        return [*range(first, first + len(chunks) - 1), self._next_seq]

    async def _end(self) -> None:
        if self._authority.head.closed:
            return
        outcome = await self._submit(failed("agent_no_result", "The log was closed without a terminal chunk."))
        if isinstance(outcome, MustAbort):
            outcome = await self._submit(aborted(outcome.reason))
        if not isinstance(outcome, Finished | Closed | AlreadyEnded):
            raise to_error(cast("Refusal", outcome))

    async def _submit(self, ending: Ending) -> Outcome:
        found = await repeat(lambda: self._log.record(self.run_id))
        if found is None:
            raise RunNotFound(self.run_id)
        head, open_items = found[0], OpenItems()
        async for page in pages(self._log, self.run_id, 0, head.next_seq):
            for batch in page:
                open_items.feed(batch.chunks())
        epoch, pending = self._authority.epoch, head.sandbox_key is not None
        finish = build_finish(head, epoch, self._next_seq, ending, open_items, destroy_pending=pending)
        return await self._authority.submit(finish)


def _ending(chunks: list[bytes]) -> Ending:
    """Return what `chunks`, whose last is terminal, say of the run."""
    *before, terminal = chunks
    event = decode_chunk(terminal)
    if event["type"] == RUN_FINISHED:
        return Ending(status=Status.COMPLETED, chunks=tuple(before), terminal=terminal)
    error = RunError(message=str(event.get("message", "")), code=str(event.get("code", "agent_no_result")))
    return Ending(status=Status.FAILED, chunks=tuple(before), terminal=terminal, error=error)


def _hear(task: asyncio.Task[Any]) -> None:
    """Take note of how a write ended: one whose caller has left is no failure of ours."""
    if not task.cancelled():
        task.exception()
