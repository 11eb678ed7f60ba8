"""What a shard's writer remembers of what it stored: a guess, and never more than that.

Only the shard that made a run writes it, nearly always, so what it last wrote is what is there. Each commit says which
versions it relied on and writes nothing if one is older than what is stored (`postgres_function.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.core.decision import SupervisorRow
from runtime.core.record import Head, RunSpec
from runtime.stores.codec import decode_head

if TYPE_CHECKING:
    from runtime.stores.postgres_view import PostgresView

MAX_ROWS = 10_000
MAX_SPECS = 64  # of runs that were created and not claimed yet; a spec may be as large as a request body


class Stored:
    """One row of `run`; decoded when it is first looked at."""

    __slots__ = ("_data", "_head", "shard", "version")

    def __init__(self, shard: int, version: int, data: bytes, head: Head | None = None) -> None:
        self.shard = shard
        self.version = version
        self._data = data
        self._head = head

    @property
    def looked_at(self) -> Head | None:
        """Return the head if it was decoded; None for one that nobody looked at, or that is damaged."""
        return self._head

    def head(self) -> Head:
        """Return the head. Raises StoreRefused if it is damaged."""
        if self._head is None:
            self._head = decode_head(self._data)
        return self._head


class Memory:
    """Rows by run, specs of runs that wait for their first claim, and who the supervisor is."""

    def __init__(self) -> None:
        self.rows: dict[str, Stored] = {}
        self.specs: dict[str, RunSpec] = {}
        self.supervisor: SupervisorRow | None = None

    def forget(self) -> None:
        """Believe nothing."""
        self.rows.clear()
        self.specs.clear()
        self.supervisor = None

    def keep(self, view: PostgresView, shard: int) -> None:
        """Take what a group has seen and written; what has ended, or is another shard's to write, is forgotten."""
        for run_id, row in view.seen.items():
            if row is not None and row.shard != shard:
                self.rows.pop(run_id, None)
        for run_id, head in view.written.items():
            seen = view.seen.get(run_id)
            if head.status.terminal or (seen is not None and seen.shard != shard):
                self.rows.pop(run_id, None)
            else:
                self.rows[run_id] = Stored(shard, head.version, b"", head)
            if head.driver_epoch:
                self.specs.pop(run_id, None)
        for run_id, spec in view.created.items():
            if not view.written[run_id].driver_epoch:
                self.specs[run_id] = spec
        self.supervisor = view.supervisor_row or self.supervisor
        if len(self.rows) > MAX_ROWS:
            self.rows.clear()
        while len(self.specs) > MAX_SPECS:
            del self.specs[next(iter(self.specs))]
