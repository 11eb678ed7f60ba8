"""What can be asked of the PostgreSQL store beside its commits.

Each question is one statement on a session of its own, so it sees one commit and none half, and waits for no writer.
There are at most READERS sessions; whoever comes later waits for one. A session begins with the question whose store
that is: behind the same address, and under the feet of one that serves, there may be another by now (P12).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Any

import psycopg

from runtime.core import checkpoint as checkpoints
from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.reap_ops import ReapStage
from runtime.core.record import Head, RunSpec
from runtime.errors import StoreUnavailable
from runtime.ports import RunPage, RunQuery
from runtime.stores import postgres_schema as sql
from runtime.stores.codec import decode_head, decode_spec
from runtime.stores.paging import decode_cursor, encode_cursor, page_limit
from runtime.stores.postgres_connection import PATIENCE_S, Address, Session
from runtime.stores.postgres_durability import server_facts
from runtime.stores.postgres_loss import Witness, settle
from runtime.stores.postgres_setup import Meta, check_meta
from runtime.stores.postgres_view import batch_of

READERS = 4
READ_PATIENCE_S = 2 * PATIENCE_S  # a page of a log is some MB
WAIT_S = 5.0  # for a session that others use

Row = tuple[Any, ...]


class PostgresReading:
    """The reading half of a Store. Any number of OS threads may ask at once."""

    def __init__(self, address: Address, *, shards: int, deployment_id: str | None) -> None:
        """Raises StoreRefused, StoreUnavailable."""
        self.address = address
        self._shards = shards
        self._deployment_id = deployment_id  # None: of whatever deployment it is at the first look
        self._idle: list[Session] = []  # its append and pop are atomic
        self._places = BoundedSemaphore(READERS)
        self._closed = False
        self._witness = Witness()
        self._opened = False
        self._superseded_by: int | None = None  # a later generation, once it is known (P10)
        with self.reading() as session:
            self.meta = self._ours(session)

    def read_run(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """Return the record, or None."""
        rows = self._rows(sql.READ_RECORD, (run_id,))
        return _record(rows[0]) if rows else None

    def read_batches(self, run_id: str, after: int, max_bytes: int) -> list[Batch]:
        """Return the batches that hold positions past `after`, until `max_bytes` are reached, at least one."""
        values = {"run_id": run_id, "after": after, "max_bytes": max_bytes}
        return [batch_of(run_id, row) for row in self._rows(sql.LIST_BATCHES, values)]

    def read_checkpoint(self, run_id: str) -> Checkpoint | None:
        """Return the run's newest checkpoint, or None."""
        rows = self._rows(sql.READ_CHECKPOINT, (run_id,))
        return checkpoints.decode(bytes(rows[0][0])) if rows else None

    def read_stderr(self, run_id: str) -> bytes | None:
        """Return the stderr tail stored with the finish, or None."""
        rows = self._rows(sql.READ_STDERR, (run_id,))
        return bytes(rows[0][0]) if rows else None

    def read_transcript(self, run_id: str) -> bytes | None:
        """Return the transcript stored with the finish, or None."""
        rows = self._rows(sql.READ_TRANSCRIPT, (run_id,))
        return bytes(rows[0][0]) if rows else None

    def read_transcripts(self, run_ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        """Return the transcripts of runs, in this order, until `max_bytes` are reached, at least one."""
        rows = self._rows(sql.READ_TRANSCRIPTS, (list(run_ids), max(max_bytes, 1)))
        return {run_id: bytes(stored) for run_id, stored in rows}

    def list_runs(self, query: RunQuery) -> RunPage:
        """Return one page of runs, newest first. Raises InputInvalid `cursor_invalid`."""
        limit = page_limit(query.limit)
        statement = sql.list_runs(
            by_owner=query.owner is not None,
            by_status=query.status is not None,
            by_thread=query.thread_id is not None,
        )
        values = {
            "owner": query.owner,
            "below": decode_cursor(query.cursor),
            "status": query.status.value if query.status is not None else None,
            "thread_id": query.thread_id,
            "limit": limit + 1,
        }
        rows = self._rows(statement, values)
        more = encode_cursor(rows[limit - 1][0]) if len(rows) > limit else None
        return RunPage(runs=[_record(row) for row in rows[:limit]], next=more)

    def list_unfinished(self, shard: int) -> list[Head]:
        """Return every run of this shard that is not terminal, oldest first."""
        return self._known(shard, [decode_head(row[0]) for row in self._rows(sql.LIST_UNFINISHED, (shard,))])

    def _known(self, shard: int, heads: list[Head]) -> list[Head]:
        """Return `heads`, and know that they are stored (P10): those of another shard may be removed unheard."""
        if shard == self._witness.shard:
            for head in heads:
                self._witness.know(head)
        return heads

    def list_changed(self, shard: int, known: Mapping[str, int]) -> list[Head]:
        """Return the unfinished runs of this shard that are newer than their versions in `known`."""
        values = (list(known), list(known.values()), shard)
        return self._known(shard, [decode_head(row[0]) for row in self._rows(sql.LIST_CHANGED, values)])

    def list_destroy_pending(self, shard: int) -> list[Head]:
        """Return every ended run of this shard whose sandbox is not known to be destroyed."""
        return [decode_head(row[0]) for row in self._rows(sql.LIST_DESTROY_PENDING, (shard,))]

    def list_reapable(self, shard: int, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:
        """Return the runs of this shard whose `stage` is due, longest due first."""
        values = (shard, stage.value, before_ms, limit)
        return [decode_head(row[0]) for row in self._rows(sql.LIST_REAPABLE, values)]

    def find_active(self, owner: str, thread_id: str) -> Head | None:
        """Return the run of the thread that is `running` and not queued."""
        rows = self._rows(sql.FIND_ACTIVE, (owner, thread_id))
        return decode_head(rows[0][0]) if rows else None

    def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """Return the thread's runs, oldest first."""
        return [_record(row) for row in self._rows(sql.LIST_THREAD, (owner, thread_id))]

    def facts(self) -> dict[str, Any]:
        """Return what the server says of itself, and whether a commit there outlives a loss of power (P10)."""
        with self.reading() as session:
            row = session.execute(sql.COUNT_RUNS).fetchone()
            assert row is not None
            return {"store": "postgresql", "place": str(self.address), "runs": row[0], **server_facts(session)}

    def close_readers(self) -> None:
        """Close every session; those in use are closed when their question is answered. Idempotent."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _rows(self, statement: str, values: Any) -> list[Row]:
        with self.reading() as session:
            try:
                return session.execute(statement, values, binary=True).fetchall()
            except psycopg.DataError:
                return []  # a name that cannot be stored is not stored

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Yield a session that cannot write. Raises StoreError for what goes wrong in it."""
        if self._closed:
            raise StoreUnavailable(f"The store at {self.address} was closed by this process.")
        if not self._places.acquire(timeout=WAIT_S):
            raise StoreUnavailable(f"The store at {self.address} has had no session free for {WAIT_S:g} s.")
        session: Session | None = None
        try:
            session = self._take()
            yield session
        except BaseException as error:
            if session is not None:
                session.close()
            if isinstance(error, psycopg.Error):
                raise self.address.store_error(error) from error
            raise
        else:
            self._give_back(session)
        finally:
            self._places.release()

    def _take(self) -> Session:
        while self._idle:
            session = self._idle.pop()
            if session.usable():
                return session
            session.close()
        session = self.address.connect("outlast reader", READ_PATIENCE_S)
        try:
            session.execute(sql.READ_ONLY)
            self._ours(session)
        except BaseException:
            session.close()
            raise
        return session

    def _ours(self, session: Session) -> Meta:
        """Return what the store is, and have it be that for ever: nothing of it may be lost (P10).

        Raises StoreRefused, StoreUnavailable, psycopg.Error."""
        meta = check_meta(session, self.address, shards=self._shards, deployment_id=self._deployment_id)
        self._deployment_id = meta.deployment_id
        generation = settle(session, self.address, self._witness)
        if self._opened and generation != self._witness.generation:
            self._superseded_by = generation
            raise StoreUnavailable(
                f"The store at {self.address} is of generation {generation} now; this shard knows an earlier one."
            )
        return meta

    def _give_back(self, session: Session) -> None:
        if self._closed:
            session.close()
        else:
            self._idle.append(session)


def _record(row: Row) -> tuple[Head, RunSpec]:
    return decode_head(row[1]), decode_spec(row[2])
