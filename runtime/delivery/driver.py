"""Drive runs into external logs: claim, wait until the log is ours, align, pipe (contract 5.5).

    driver = RunDriver(records=records, logs=streams.log, clock=SystemClock())
    row = await driver.start("run-1", "thread-1", source)          # a fresh run
    row = await driver.take_over("run-1", source)                  # one whose driver is lost
    row = await driver.ensure("run-1", source)                     # somebody came to read: drive it if that is due

`source(claim)` gives the run's chunks *from the beginning*, also on a takeover: what the log holds of them is dropped.
It is called once per claim and iterated once the log is known to be ours. The first producer of a run claims like every
other (I1): with an unclaimed one, a takeover would rest on quiet time alone.

Order of a drive: the record's epoch, then the log's (if it fences) or its quiet time (if it does not), then the log is
read, then the first write. A new, empty log of a run that nobody ever claimed has no older writer to wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from runtime.core.align import is_custom
from runtime.core.chunk import Event
from runtime.delivery.claim import EPOCH_RECHECK_APPENDS, RunClaim, claim_run
from runtime.delivery.durability import StreamDurability
from runtime.delivery.errors import RunDriverPipeOutsideClaimError
from runtime.delivery.fences import FencedLog, FencedRecords
from runtime.delivery.locks import LockStore
from runtime.delivery.pipe import Pipe, Stop
from runtime.delivery.quiet import FENCE_QUIET_MS, await_quiet
from runtime.delivery.records import RunPatch, RunRecords, RunRow
from runtime.delivery.replay import aligned
from runtime.ports import Clock

log = logging.getLogger("outlast.delivery")

Logs = Callable[[str], StreamDurability]


class DriverClaim:
    """What a driver holds while it drives one run. `log` and `records` are fenced by one latch."""

    def __init__(self, driver: RunDriver, claim: RunClaim, log: StreamDurability) -> None:
        self.run_id = claim.run_id
        self.thread_id = claim.row.thread_id
        self.epoch = claim.epoch
        self.lost = claim.lease.lost
        self.log = FencedLog(log, claim.latch, driver.epoch_recheck_appends)
        self.records = FencedRecords(driver.records, claim.latch)
        self._driver = driver
        self._latch = claim.latch
        self._stop = Stop()
        self._piped = False

    def stop(self) -> None:
        """End the run as aborted: a user asked for it. May come before the pipe, or while it runs."""
        self._stop.set()

    async def pipe(
        self, source: AsyncIterable[Event], *, is_out_of_band: Callable[[Event], bool] = is_custom
    ) -> RunRow:
        """Take `source`, which starts where the run started, to its ending; return the row as stored then.

        What the log holds is dropped from `source`; `is_out_of_band` knows the chunks that no replay produces (64 in a
        row are passed over). Once in a claim: with the run's ending, nothing more is written under it. Raises
        RunDriverPipeOutsideClaimError (a second pipe, too), LogNotQuietError, RunClaimLostError, StoreError, all before
        the first write; whatever happens from then on is in the row."""
        if self._piped:
            raise RunDriverPipeOutsideClaimError(self.run_id)
        self._piped = True
        await self._make_ready()
        watcher = asyncio.create_task(self._watch_lease())
        try:
            pipe = Pipe(self.run_id, self.thread_id, self.records, self.log, self._driver.clock.wall_ms)
            return await pipe.run(aligned(self.log, source, is_out_of_band), self._stop)
        finally:
            self._latch.left = True
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher

    async def _make_ready(self) -> None:
        """Return when no older driver's write is to be expected in the log any more."""
        self._latch.raise_if_lost()
        await self.log.claim(self.epoch)
        fresh = self.epoch == 1 and not await self.log.exists()
        if not self.log.fences and not fresh:
            await await_quiet(self.log, self._driver.fence_quiet_ms)
        self._latch.raise_if_lost()

    async def _watch_lease(self) -> None:
        await self.lost.wait()
        self._stop.set()


Source = Callable[[DriverClaim], AsyncIterable[Event]]


class RunDriver:
    """Drives runs whose chunks go to external logs. One per process and application is enough."""

    def __init__(
        self,
        *,
        records: RunRecords,
        logs: Logs,
        clock: Clock,
        locks: LockStore | None = None,
        fence_quiet_ms: int = FENCE_QUIET_MS,
        epoch_recheck_appends: int = EPOCH_RECHECK_APPENDS,
    ) -> None:
        """`logs` makes a handle on a run's log. `fence_quiet_ms` and `epoch_recheck_appends` are for logs that cannot
        fence: how long a log must not grow before a successor writes, and how often the record's epoch is looked at."""
        self.records = records
        self.clock = clock
        self.fence_quiet_ms = fence_quiet_ms
        self.epoch_recheck_appends = epoch_recheck_appends
        self._logs = logs
        self._locks = locks
        self._driving: set[str] = set()

    @asynccontextmanager
    async def claim(self, run_id: str) -> AsyncIterator[DriverClaim]:
        """Claim the run for the body; `pipe` works within it alone. Raises RunClaimNotAcquiredError, StoreError."""
        async with claim_run(self.records, run_id, locks=self._locks) as claim:
            yield DriverClaim(self, claim, self._logs(run_id))

    async def start(self, run_id: str, thread_id: str, source: Source) -> RunRow:
        """Create the run and drive it to its end; one that is there is driven on. Raises as `take_over` does."""
        await self.records.create_or_resume(run_id, thread_id, self.clock.wall_ms())
        return await self.take_over(run_id, source)

    async def take_over(self, run_id: str, source: Source) -> RunRow:
        """Claim the run and drive it to its end. Raises RunClaimNotAcquiredError and what `DriverClaim.pipe` raises.

        Its `detached_since` is cleared first: somebody is here for it."""
        async with self.claim(run_id) as claim:
            self._driving.add(run_id)
            try:
                await self._attend(claim)
                return await claim.pipe(source(claim))
            finally:
                self._driving.discard(run_id)

    async def ensure(self, run_id: str, source: Source) -> RunRow | None:
        """Drive the run if that is due: it is known, has not ended, nobody cancelled it, and this driver is not at it.

        Return the row that it ended with, or None. Raises nothing: reading does not fail because driving did."""
        try:
            row = await self.records.get(run_id)
            if row is None or row.status.terminal or row.cancel_requested or run_id in self._driving:
                return None
            return await self.take_over(run_id, source)
        except Exception as error:  # noqa: BLE001 - an application's store, log or source may raise anything
            log.warning("run %s is not driven from here: %r", run_id, error)
            return None

    async def _attend(self, claim: DriverClaim) -> None:
        try:
            await claim.records.update(claim.run_id, RunPatch(detached_since=None))
        except Exception:  # as above; the drive goes on
            log.exception("run %s: detachedSince could not be cleared", claim.run_id)
