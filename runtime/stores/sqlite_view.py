"""One write transaction of the SQLite store: what the machine sees through it, and how its decisions are written."""

from __future__ import annotations

import sqlite3
from typing import Any

from runtime.core import checkpoint as checkpoints
from runtime.core import reaping
from runtime.core.batch import Band, Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.decision import Decision, SupervisorRow
from runtime.core.owned import settled_change
from runtime.core.record import Head, RunSpec
from runtime.stores import sqlite_schema as sql
from runtime.stores.codec import decode_head, decode_spec, encode

Row = tuple[Any, ...]
_PAGES_PER_DECISION = 3  # one of the run, one of its batch, one of an index


class SqliteView:
    """A `View` of the transaction that is open on `connection`. Heads are read once and remembered: nobody else can
    change them before the transaction ends."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._heads: dict[str, Head] = {}
        self._ordinals: dict[str, int] = {}
        self._last: Head | None = None  # that was written
        self.written_bytes = 0  # about what the transaction adds to the WAL

    def head(self, run_id: str) -> Head | None:
        """Return the run's head."""
        return self._heads.get(run_id) or self._remember(self._execute(sql.READ_HEAD, (run_id,)).fetchone())

    def spec(self, run_id: str) -> RunSpec:
        """Return the spec of a run that exists."""
        return decode_spec(self._execute(sql.READ_SPEC, (run_id,)).fetchone()[0])

    def batch_at(self, run_id: str, seq: int) -> Batch | None:
        """Return the batch that starts at `seq`."""
        head = self._heads.get(run_id)
        if head is not None and seq >= head.next_seq:
            return None  # the head says so: the common case of an append costs no statement
        row = self._execute(sql.READ_BATCH_AT, (run_id, seq)).fetchone()
        return None if row is None else batch_of(run_id, row)

    def batch_by_key(self, run_id: str, key: str) -> Batch | None:
        """Return the live batch with this key."""
        row = self._execute(sql.READ_BATCH_BY_KEY, (run_id, key)).fetchone()
        return None if row is None else batch_of(run_id, row)

    def holder(self, owner: str, thread_id: str) -> Head | None:
        """Return the active run of the thread (not terminal, not queued)."""
        return self._remember(self._execute(sql.READ_HOLDER, (owner, thread_id)).fetchone())

    def oldest_queued(self, owner: str, thread_id: str) -> Head | None:
        """Return the run of the thread that has been queued longest."""
        return self._remember(self._execute(sql.READ_OLDEST_QUEUED, (owner, thread_id)).fetchone())

    def unfinished_runs(self, owner: str | None = None) -> int:
        """Return how many runs are not terminal, of all owners or of one."""
        counting = self._execute(sql.COUNT_UNFINISHED) if owner is None else self._execute(sql.COUNT_OWNED, (owner,))
        (count,) = counting.fetchone()
        return int(count)

    def owned_bytes(self, owner: str) -> int:
        """Return what the owner's logs hold."""
        (held,) = self._execute(sql.READ_OWNED, {"owner": owner}).fetchone()
        return int(held)

    def supervisor(self) -> SupervisorRow:
        """Return the current supervisor; epoch 0 before the first."""
        epoch, claimant = self._execute(sql.READ_SUPERVISOR).fetchone()
        return SupervisorRow(epoch=epoch, claimant=claimant)

    def generation(self) -> int:
        """Return the generation of new runs (P10)."""
        (generation,) = self._execute(sql.READ_GENERATION).fetchone()
        return int(generation)

    def last_written(self) -> tuple[int, int] | None:
        """Return (ordinal, version) of one record that is written; None if none is."""
        head = self._last
        return None if head is None else (self._ordinals[head.run_id], head.version)

    def apply(self, decision: Decision) -> None:
        """Write what the decision says. After an error a part of it may be written: begin the transaction again.

        Raises sqlite3.Error, and TypeError or ValueError for values that have no stored form."""
        self.written_bytes += _PAGES_PER_DECISION * sql.PAGE_BYTES
        for head in decision.heads:
            self._write_head(head)
        if decision.created is not None:
            self._create(*decision.created)
        if decision.batch is not None:
            self._add_batch(decision.batch)
        if decision.stderr is not None:
            ordinal = self._ordinals[decision.heads[0].run_id]
            self._execute(sql.WRITE_STDERR, (ordinal, decision.stderr))
        if decision.transcript is not None:
            self.written_bytes += len(decision.transcript)
            self._execute(sql.WRITE_TRANSCRIPT, (self._ordinals[decision.heads[0].run_id], decision.transcript))
        if decision.checkpoint is not None:
            self._write_checkpoint(decision.checkpoint)
        if decision.ended:
            self._execute(sql.REMOVE_CHECKPOINT, (self._ordinals[decision.heads[0].run_id],))
        if decision.forgotten:
            ordinal = self._ordinals[decision.heads[0].run_id]
            self._execute(sql.REMOVE_STDERR, (ordinal,))
            self._execute(sql.REMOVE_TRANSCRIPT, (ordinal,))
        if decision.supervisor is not None:
            self._execute(sql.WRITE_SUPERVISOR, (decision.supervisor.epoch, decision.supervisor.claimant))

    def _remember(self, row: Row | None) -> Head | None:
        if row is None:
            return None
        head = decode_head(row[1])
        self._heads[head.run_id] = head
        self._ordinals[head.run_id] = row[0]
        return head

    def _create(self, head: Head, spec: RunSpec) -> None:
        columns = (head.run_id, head.owner, head.thread_id, *_searched(head), head.created_at, head.version)
        ordinal = self._execute(sql.ADD_RUN, (*columns, encode(head))).lastrowid
        assert ordinal is not None
        stored = encode(spec)
        self._execute(sql.ADD_SPEC, (ordinal, stored))
        self.written_bytes += len(stored)
        self._heads[head.run_id] = self._last = head
        self._ordinals[head.run_id] = ordinal
        self._write_reap(ordinal, None, reaping.due(head))

    def _write_head(self, head: Head) -> None:
        before = self._heads[head.run_id]
        ordinal = self._ordinals[head.run_id]
        if before.status is head.status and before.queued is head.queued:
            self._execute(sql.WRITE_HEAD, (head.version, encode(head), ordinal))
        else:
            self._execute(sql.WRITE_MOVED_HEAD, (*_searched(head), head.version, encode(head), ordinal))
        if before.to_destroy != head.to_destroy:
            self._execute(sql.ADD_DESTROY_PENDING if head.to_destroy else sql.REMOVE_DESTROY_PENDING, (ordinal,))
        self._write_reap(ordinal, reaping.due(before), reaping.due(head))
        if change := settled_change(before, head):
            self._execute(sql.ADD_OWNED, (head.owner, change))
        self._heads[head.run_id] = self._last = head

    def _write_reap(self, ordinal: int, before: tuple[str, int] | None, due: tuple[str, int] | None) -> None:
        if due is None and before is not None:
            self._execute(sql.REMOVE_REAP, (ordinal,))
        elif due is not None and due != before:
            self._execute(sql.WRITE_REAP, (ordinal, *due))

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        data = checkpoints.encode(checkpoint)
        self.written_bytes += len(data)
        self._execute(sql.WRITE_CHECKPOINT, (self._ordinals[checkpoint.run_id], data))

    def _add_batch(self, batch: Batch) -> None:
        self.written_bytes += len(batch.data) + len(batch.ends)
        self._execute(
            sql.ADD_BATCH,
            (
                self._ordinals[batch.run_id],
                batch.seq,
                batch.count,
                batch.epoch,
                batch.band.value,
                batch.first_index,
                batch.key,
                batch.ends,
                batch.data,
            ),
        )


def _searched(head: Head) -> Row:
    return head.status.value, int(head.status.terminal), int(head.queued)


def batch_of(run_id: str, row: Row) -> Batch:
    """Return the batch of one row, in the order of columns that every statement on batches has."""
    seq, count, epoch, band, first_index, key, ends, data = row
    return Batch(
        run_id=run_id,
        seq=seq,
        count=count,
        epoch=epoch,
        band=Band(band),
        first_index=first_index,
        key=key,
        ends=ends,
        data=data,
    )
