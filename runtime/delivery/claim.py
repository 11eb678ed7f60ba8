"""Take the right to drive one run on its record (P1, contract 5.2), and the latch that its loss closes (contract 5.4).

A claim is a compare-and-set on the record's epoch. Whoever loses the race is told `superseded` and has written nothing.
The latch is shared by everything that writes under the claim: the first refusal, wherever it comes from, closes it, and
the same error is raised by every later write without asking anybody. It never opens again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from runtime.delivery.errors import NotAcquired, RunClaimNotAcquiredError, RunDriverPipeOutsideClaimError
from runtime.delivery.locks import Lease, LockStore
from runtime.delivery.records import RunRecords, RunRow
from runtime.errors import RunClaimLostError, StoreError

log = logging.getLogger("outlast.delivery")

# A log that cannot fence is written to so often between two looks at the record's epoch (contract 5.1).
EPOCH_RECHECK_APPENDS = 32


class Latch:
    """Whether a claim still holds. `lost` is the first refusal; with it, nothing is asked any more."""

    def __init__(self, records: RunRecords, run_id: str, epoch: int, lease: Lease) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.lost: RunClaimLostError | None = None
        self.left = False  # the claim was given back; nobody has to be newer
        self._records = records
        self._lease = lease

    def lose(self, error: RunClaimLostError) -> RunClaimLostError:
        """Close the latch; return the error that closed it, which is the first."""
        if self.lost is None:
            self.lost = error
        return self.lost

    def raise_if_lost(self) -> None:
        """Raise RunClaimLostError if the claim is known to be lost, and RunDriverPipeOutsideClaimError if it was given
        back. Asks nobody."""
        if self.lost is None and self._lease.lost.is_set():
            self.lose(RunClaimLostError(self.run_id, self.epoch, None))
        if self.lost is not None:
            raise self.lost
        if self.left:
            raise RunDriverPipeOutsideClaimError(self.run_id)

    async def look(self) -> bool:
        """Look at the record's epoch, and raise RunClaimLostError if a newer one is there. Return False if the record
        could not be read: no answer is no refusal."""
        self.raise_if_lost()
        try:
            row = await self._records.get(self.run_id)
        except Exception as error:  # noqa: BLE001 - an application's store may raise anything
            log.warning("run %s: its epoch could not be read (%r); its driver goes on", self.run_id, error)
            return False
        if row is not None and row.driver_epoch > self.epoch:
            raise self.lose(RunClaimLostError(self.run_id, self.epoch, row.driver_epoch))
        self.raise_if_lost()
        return True


class RunClaim:
    """The right to drive one run, while the `async with` block of `claim_run` lasts."""

    def __init__(self, row: RunRow, lease: Lease, latch: Latch) -> None:
        self.run_id = row.run_id
        self.epoch = row.driver_epoch
        self.row = row  # as the claim left it
        self.lease = lease
        self.latch = latch


@asynccontextmanager
async def claim_run(records: RunRecords, run_id: str, *, locks: LockStore | None = None) -> AsyncIterator[RunClaim]:
    """Claim the run for the body. With `locks`, under the lock `run-driver:<run id>` for as long.

    Raises RunClaimNotAcquiredError, having written nothing; StoreError."""
    async with AsyncExitStack() as stack:
        lease = Lease() if locks is None else await stack.enter_async_context(locks.hold(f"run-driver:{run_id}"))
        row = await _advance(records, run_id)
        claim = RunClaim(row, lease, Latch(records, run_id, row.driver_epoch, lease))
        try:
            yield claim
        finally:
            claim.latch.left = True


async def _advance(records: RunRecords, run_id: str) -> RunRow:
    expected = _claimable(run_id, await records.get(run_id)).driver_epoch
    claimant = f"driver-{uuid.uuid4().hex}"
    try:
        row = await records.advance_epoch(run_id, expected, claimant)
    except StoreError:  # it may have been written: the same claim again gets the same answer (P1)
        row = await records.advance_epoch(run_id, expected, claimant)
    if row is None:
        _claimable(run_id, await records.get(run_id))
        raise RunClaimNotAcquiredError(run_id, NotAcquired.SUPERSEDED)
    return row


def _claimable(run_id: str, row: RunRow | None) -> RunRow:
    if row is None:
        raise RunClaimNotAcquiredError(run_id, NotAcquired.UNKNOWN)
    if row.status.terminal:
        raise RunClaimNotAcquiredError(run_id, NotAcquired.TERMINAL)
    return row
