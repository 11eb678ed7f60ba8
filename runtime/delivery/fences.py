"""A claim's log and record, as that claim may write them (contract 5.4). Both share the claim's latch.

The log that can fence does it itself; its refusal closes the latch. For one that cannot, the latch is asked before each
append, and the record every EPOCH_RECHECK_APPENDS appends: a driver that was superseded writes at most that many less
one more. Its `close` passes: nothing but the end of a driver lets this log's readers go, and they come back with their
offset if a successor goes on.

The record is always fenced in the step that writes it. What a superseded driver's status would have been is dropped,
and a line is logged: the record has, or gets, its successor's.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence

from msgspec import UNSET

from runtime.delivery.claim import EPOCH_RECHECK_APPENDS, Latch
from runtime.delivery.durability import Entry, StreamDurability
from runtime.delivery.errors import RunDriverPipeOutsideClaimError
from runtime.delivery.records import RunPatch, RunRecords, RunRow
from runtime.errors import RunClaimLostError

log = logging.getLogger("outlast.delivery")


class FencedLog:
    """`inner`, written under one claim. Reading passes."""

    def __init__(self, inner: StreamDurability, latch: Latch, recheck_appends: int = EPOCH_RECHECK_APPENDS) -> None:
        self.run_id = inner.run_id
        self._inner = inner
        self._latch = latch
        self._recheck_appends = recheck_appends
        self._unchecked = 0  # appends since the record was last looked at
        self._looked = False

    @property
    def fences(self) -> bool:
        """Return whether the log itself checks the epoch."""
        return self._inner.fences

    @property
    def resume_from(self) -> str | None:
        """Return the offset that the client came with."""
        return self._inner.resume_from

    async def claim(self, epoch: int) -> None:
        """Claim the log too. Raises RunClaimLostError, which closes the latch."""
        self._latch.raise_if_lost()
        try:
            await self._inner.claim(epoch)
        except RunClaimLostError as error:
            raise self._latch.lose(error) from None

    async def append(self, chunks: Sequence[bytes]) -> list[str]:
        """Append if the claim holds. Raises RunClaimLostError, always the same one, and what the log raises."""
        self._latch.raise_if_lost()
        if not self.fences and (not self._looked or self._unchecked >= self._recheck_appends):
            self._looked = await self._latch.look()
            self._unchecked = 0
        self._unchecked += 1
        try:
            return await self._inner.append(chunks)
        except RunClaimLostError as error:
            raise self._latch.lose(error) from None

    def read(self, offset: str) -> AsyncGenerator[Entry, None]:
        """Read; see the port."""
        return self._inner.read(offset)

    async def snapshot(self) -> list[Entry]:
        """Return everything stored now."""
        return await self._inner.snapshot()

    async def exists(self) -> bool:
        """Return whether somebody made the log."""
        return await self._inner.exists()

    async def close(self) -> None:
        """Close, whether the claim holds or not; a log that fences refuses it by itself (RunClaimLostError)."""
        await self._inner.close()


class FencedRecords:
    """`inner`, written under one claim: the status of its run moves only while the claim holds.

    Everything else passes: other runs, and fields that no ending depends on."""

    def __init__(self, inner: RunRecords, latch: Latch) -> None:
        self._inner = inner
        self._latch = latch

    async def create_or_resume(self, run_id: str, thread_id: str, started_at: int) -> RunRow:
        """Return the run's row, made if it is not there."""
        return await self._inner.create_or_resume(run_id, thread_id, started_at)

    async def get(self, run_id: str) -> RunRow | None:
        """Return the row, or None."""
        return await self._inner.get(run_id)

    async def advance_epoch(self, run_id: str, expected_epoch: int, claimant: str) -> RunRow | None:
        """Claim; see the port."""
        return await self._inner.advance_epoch(run_id, expected_epoch, claimant)

    async def update(self, run_id: str, patch: RunPatch, if_epoch: int | None = None) -> bool:
        """Change a row. Return False, having changed nothing, for a status of this run under a claim that is lost."""
        if run_id != self._latch.run_id or patch.status is UNSET:
            return await self._inner.update(run_id, patch, if_epoch)
        try:
            self._latch.raise_if_lost()
            if await self._inner.update(run_id, patch, self._latch.epoch):
                return True
            await self._latch.look()
        except (RunClaimLostError, RunDriverPipeOutsideClaimError) as error:
            log.warning("run %s: status %s was not stored: %s", run_id, patch.status, error)
        return False

    async def find_active(self, thread_id: str) -> RunRow | None:
        """Return the newest `running` run of the thread, or None."""
        return await self._inner.find_active(thread_id)

    async def list_by_thread(self, thread_id: str) -> list[RunRow]:
        """Return the thread's runs, oldest first."""
        return await self._inner.list_by_thread(thread_id)

    async def list_reclaimable(self, now: int, ttl_ms: int) -> list[RunRow]:
        """Return the `running` runs that have been detached for `ttl_ms` or longer at `now`."""
        return await self._inner.list_reclaimable(now, ttl_ms)
