"""The ports of run records: who drives which run, and how it ended (contract 4.1, 4.2); and both in memory.

    RunStore     the contract's: rows that anybody may read and change. `own_runs.py` is one over Outlast's own runs
    RunRecords   one that can be driven by, too: a RunStore with a claim and a fence

Beside an external log stands a record, in whatever database the application has. Two methods decide safety, and both
check and write in one step there (an `UPDATE ... WHERE`, a conditional put, a lock held over both):

    advance_epoch   the claim: a compare-and-set on the epoch
    update          with `if_epoch`: nothing is written once a newer claim was taken

So an older driver can end no run, however late it wakes up, even where the log itself can be written by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from runtime.core.record import Status, Struct


class RowError(Struct, frozen=True, kw_only=True):
    """Why a run failed."""

    message: str
    code: str | None = None


class RunRow(Struct, frozen=True, kw_only=True):
    """One run, as the application keeps it. Times are UTC ms; None is: not set."""

    run_id: str
    thread_id: str
    started_at: int
    status: Status = Status.RUNNING
    finished_at: int | None = None
    error: RowError | None = None
    usage: dict[str, Any] | None = None
    sandbox_key: str | None = None
    detached_since: int | None = None
    cancel_requested: bool | None = None
    driver_epoch: int = 0
    claimant: str | None = None  # who holds `driver_epoch`


class RunPatch(Struct, frozen=True, kw_only=True):
    """A change: what is not named stays, what is None is cleared. The epoch is not among it: claims alone move it."""

    status: Status | UnsetType = UNSET
    finished_at: int | UnsetType | None = UNSET
    error: RowError | UnsetType | None = UNSET
    usage: dict[str, Any] | UnsetType | None = UNSET
    sandbox_key: str | UnsetType | None = UNSET
    detached_since: int | UnsetType | None = UNSET
    cancel_requested: bool | UnsetType | None = UNSET

    def named(self) -> dict[str, Any]:
        """Return the fields that it names, and what becomes of each."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}

    def apply(self, row: RunRow) -> RunRow:
        """Return `row` with this change."""
        return msgspec.structs.replace(row, **self.named())


class RunStore(Protocol):
    """The runs of one application. Every method may raise StoreError on the database's account."""

    async def create_or_resume(self, run_id: str, thread_id: str, started_at: int) -> RunRow:
        """Return the run's row: a new one, `running`, or the one that is there, unchanged. Revives nothing.

        Raises InputInvalid where runs are made in another way only, for one that is not there."""

    async def get(self, run_id: str) -> RunRow | None:
        """Return the row, or None."""

    async def update(self, run_id: str, patch: RunPatch) -> bool:
        """Apply `patch`; return False, and change nothing, for an unknown run.

        Raises InputInvalid, having changed nothing, for a field that is not the caller's to change."""

    async def find_active(self, thread_id: str) -> RunRow | None:
        """Return the newest `running` run of the thread, or None."""

    async def list_by_thread(self, thread_id: str) -> list[RunRow]:
        """Return the thread's runs, oldest first; none for an unknown thread."""

    async def list_reclaimable(self, now: int, ttl_ms: int) -> list[RunRow]:
        """Return the `running` runs that have been detached for `ttl_ms` or longer at `now`; the longest come first."""


class RunRecords(RunStore, Protocol):
    """A RunStore that keeps an older driver from writing."""

    async def advance_epoch(self, run_id: str, expected_epoch: int, claimant: str) -> RunRow | None:
        """Raise the epoch by one if it is `expected_epoch` and the run is not terminal; return the new row, or None.

        One step. The same (expected, claimant) again returns the row that its first call made, since the answer of
        that may have been lost."""

    async def update(self, run_id: str, patch: RunPatch, if_epoch: int | None = None) -> bool:
        """Apply `patch`; return False, and change nothing, for an unknown run. With `if_epoch`, in the same step:
        also if the row's epoch is another."""


class MemoryRunRecords:
    """Rows in this process: for one process, and for tests."""

    def __init__(self) -> None:
        self._rows: dict[str, RunRow] = {}

    async def create_or_resume(self, run_id: str, thread_id: str, started_at: int) -> RunRow:
        """Return the run's row, made if it is not there."""
        return self._rows.setdefault(run_id, RunRow(run_id=run_id, thread_id=thread_id, started_at=started_at))

    async def get(self, run_id: str) -> RunRow | None:
        """Return the row, or None."""
        return self._rows.get(run_id)

    async def advance_epoch(self, run_id: str, expected_epoch: int, claimant: str) -> RunRow | None:
        """Claim; see the port."""
        row = self._rows.get(run_id)
        if row is None:
            return None
        if row.driver_epoch == expected_epoch + 1 and row.claimant == claimant:
            return row
        if row.driver_epoch != expected_epoch or row.status.terminal:
            return None
        row = msgspec.structs.replace(row, driver_epoch=expected_epoch + 1, claimant=claimant)
        self._rows[run_id] = row
        return row

    async def update(self, run_id: str, patch: RunPatch, if_epoch: int | None = None) -> bool:
        """Change a row; see the port."""
        row = self._rows.get(run_id)
        if row is None or (if_epoch is not None and row.driver_epoch != if_epoch):
            return False
        self._rows[run_id] = patch.apply(row)
        return True

    async def find_active(self, thread_id: str) -> RunRow | None:
        """Return the newest `running` run of the thread, or None."""
        rows = [row for row in self._rows.values() if row.thread_id == thread_id and row.status is Status.RUNNING]
        return max(rows, key=lambda row: row.started_at, default=None)

    async def list_by_thread(self, thread_id: str) -> list[RunRow]:
        """Return the thread's runs, oldest first."""
        rows = [row for row in self._rows.values() if row.thread_id == thread_id]
        return sorted(rows, key=lambda row: row.started_at)

    async def list_reclaimable(self, now: int, ttl_ms: int) -> list[RunRow]:
        """Return the `running` runs that have been detached for `ttl_ms` or longer at `now`; the longest come first."""
        return reclaimable(self._rows.values(), now, ttl_ms)


def reclaimable(rows: Iterable[RunRow], now: int, ttl_ms: int) -> list[RunRow]:
    """Return those of `rows` that are `running` and were detached by `now` - `ttl_ms`, that very moment included."""
    due = [(row.detached_since, row) for row in rows if row.status is Status.RUNNING and row.detached_since is not None]
    return [row for since, row in sorted(due, key=lambda pair: pair[0]) if since <= now - ttl_ms]
