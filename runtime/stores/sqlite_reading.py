"""What can be asked of the SQLite store beside its write transactions.

Each question is one statement on a connection of its own, so it sees one commit and none half, and neither waits for
the writer nor holds it up. Connections are kept in a pool: never more of them than there were questions at once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.core import checkpoint as checkpoints
from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.reap_ops import ReapStage
from runtime.core.record import Head, RunSpec, Status
from runtime.errors import StoreUnavailable
from runtime.ports import RunPage, RunQuery
from runtime.stores import sqlite_schema as sql
from runtime.stores.codec import decode_head, decode_spec
from runtime.stores.paging import decode_cursor, encode_cursor, page_limit
from runtime.stores.sqlite_connection import connect_reader, to_store_error
from runtime.stores.sqlite_view import batch_of


class SqliteReading:
    """The reading half of a Store over the file at `path`. Any number of OS threads may ask at once."""

    def __init__(self, path: Path, busy_ms: int) -> None:
        self.path = path
        self._busy_ms = busy_ms
        self._idle: list[sqlite3.Connection] = []  # its append and pop are atomic
        self._closed = False

    def read_run(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """Return the record, or None."""
        with self._reading() as connection:
            row = connection.execute(sql.READ_RECORD, (run_id,)).fetchone()
        return None if row is None else _record(row)

    def read_batches(self, run_id: str, after: int, max_bytes: int) -> list[Batch]:
        """Return the batches that hold positions past `after`, until `max_bytes` are reached, at least one."""
        found: list[Batch] = []
        size = 0
        with self._reading() as connection:
            cursor = connection.execute(sql.LIST_BATCHES, {"run_id": run_id, "after": after})
            for row in cursor:
                batch = batch_of(run_id, row)
                if batch.next_seq <= after:
                    continue
                found.append(batch)
                size += len(batch.data)
                if size >= max_bytes:
                    break
            cursor.close()  # ends the read, so that it holds back no checkpoint
        return found

    def read_checkpoint(self, run_id: str) -> Checkpoint | None:
        """Return the run's newest checkpoint, or None."""
        with self._reading() as connection:
            row = connection.execute(sql.READ_CHECKPOINT, (run_id,)).fetchone()
        return None if row is None else checkpoints.decode(row[0])

    def read_stderr(self, run_id: str) -> bytes | None:
        """Return the stderr tail stored with the finish, or None."""
        with self._reading() as connection:
            row = connection.execute(sql.READ_STDERR, (run_id,)).fetchone()
        return None if row is None else bytes(row[0])

    def read_transcript(self, run_id: str) -> bytes | None:
        """Return the transcript stored with the finish, or None."""
        with self._reading() as connection:
            row = connection.execute(sql.READ_TRANSCRIPT, (run_id,)).fetchone()
        return None if row is None else bytes(row[0])

    def read_transcripts(self, run_ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        """Return the transcripts of runs, in this order, until `max_bytes` are reached, at least one."""
        found: dict[str, bytes] = {}
        with self._reading() as connection:
            for run_id in run_ids:
                row = connection.execute(sql.READ_TRANSCRIPT, (run_id,)).fetchone()
                if row is not None:
                    found[run_id] = bytes(row[0])
                    max_bytes -= len(row[0])
                    if max_bytes <= 0:
                        break
        return found

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
        with self._reading() as connection:
            rows = connection.execute(statement, values).fetchall()
        more = encode_cursor(rows[limit - 1][0]) if len(rows) > limit else None
        return RunPage(runs=[_record(row) for row in rows[:limit]], next=more)

    def list_unfinished(self, shard: int) -> list[Head]:  # noqa: ARG002 - there is one shard
        """Return every run that is not terminal, oldest first."""
        with self._reading() as connection:
            return [decode_head(row[0]) for row in connection.execute(sql.LIST_UNFINISHED).fetchall()]

    def list_changed(self, shard: int, known: Mapping[str, int]) -> list[Head]:
        """Return the unfinished runs that are newer than their versions in `known`."""
        return [head for head in self.list_unfinished(shard) if head.version > known.get(head.run_id, -1)]

    def list_destroy_pending(self, shard: int) -> list[Head]:  # noqa: ARG002 - there is one shard
        """Return every ended run whose sandbox is not known to be destroyed."""
        with self._reading() as connection:
            return [decode_head(row[0]) for row in connection.execute(sql.LIST_DESTROY_PENDING).fetchall()]

    def list_reapable(self, shard: int, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:  # noqa: ARG002
        """Return the runs whose `stage` is due, longest due first."""
        with self._reading() as connection:
            rows = connection.execute(sql.LIST_REAPABLE, (stage.value, before_ms, limit)).fetchall()
        return [decode_head(row[0]) for row in rows]

    def find_active(self, owner: str, thread_id: str) -> Head | None:
        """Return the run of the thread that is `running` and not queued."""
        with self._reading() as connection:
            row = connection.execute(sql.READ_HOLDER, (owner, thread_id)).fetchone()
        head = None if row is None else decode_head(row[1])
        return head if head is not None and head.status is Status.RUNNING else None

    def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """Return the thread's runs, oldest first."""
        with self._reading() as connection:
            return [_record(row) for row in connection.execute(sql.LIST_THREAD, (owner, thread_id)).fetchall()]

    def facts(self) -> dict[str, Any]:
        """Return what the file says of itself. Raises StoreUnavailable if it is gone from its place."""
        with self._reading() as connection:
            (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
            (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
            (runs,) = connection.execute(sql.COUNT_RUNS).fetchone()
        try:
            space = os.statvfs(self.path.parent)
            wal = self.path.with_name(self.path.name + "-wal")
            return {
                "store": "sqlite",
                "path": str(self.path),
                "sqlite": sqlite3.sqlite_version,
                "durable": journal == "wal" and synchronous >= 2,  # noqa: PLR2004 - 2 is FULL, 3 is EXTRA
                "runs": runs,
                "bytes": self.path.stat().st_size,
                "walBytes": wal.stat().st_size if wal.exists() else 0,
                "freeBytes": space.f_bavail * space.f_frsize,
            }
        except OSError as error:
            raise StoreUnavailable(f"{self.path} is gone from its place: {error}") from error

    def close_readers(self) -> None:
        """Close every connection; those in use are closed when their question is answered. Idempotent."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise StoreUnavailable(f"{self.path} was closed by this process.")
        connection: sqlite3.Connection | None = None
        try:
            connection = self._idle.pop() if self._idle else connect_reader(self.path, self._busy_ms)
            yield connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise to_store_error(error, self.path) from error
            raise
        self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)


def _record(row: tuple[Any, ...]) -> tuple[Head, RunSpec]:
    return decode_head(row[1]), decode_spec(row[2])
