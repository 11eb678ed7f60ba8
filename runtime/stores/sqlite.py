"""The embedded store: one SQLite file, one shard, one machine (P12).

Durability (I2, P10): WAL with `synchronous=FULL`: a commit has been fsynced when it returns. Checkpoints copy the WAL
into the file between transactions, by the writer, when the WAL has grown by CHECKPOINT_BYTES: SQLite's own would come
in the middle of a commit and make one in a thousand ten times slower (measured: p99 of 2 to 10 ms instead of 0.5).

Authority (I1, P11): `BEGIN IMMEDIATE`, then the shard's epoch, then each operation is decided against this very
transaction and written before the next one is decided. A refusal writes nothing and is no exception, so a group commit
needs no savepoints. An operation that fails on its own account (a defect: a constraint, a value without a stored form)
may leave half of its rows; then the transaction is rolled back and made again without it (`_commit`). The others lose
nothing but time, and it is answered `Unstorable`.

Readers have their own connections and see the last commit; the writer never blocks them, nor they it.

An older copy of the file that was put back is found out when the shard is opened, by the mark beside it
(`sqlite_mark.py`), and its generation raised before anything else is written (P10).
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from runtime.core.machine import decide
from runtime.core.ops import Op, Outcome
from runtime.errors import ShardSuperseded, StoreFull, StoreRefused, StoreUnavailable
from runtime.stores import sqlite_schema as sql
from runtime.stores.defect import unstorable
from runtime.stores.opener import end_predecessor, forget_opener, write_opener
from runtime.stores.sqlite_connection import connect, keep_freed_memory, of_the_operation, to_store_error
from runtime.stores.sqlite_dropping import drop_end
from runtime.stores.sqlite_loss import falls_short, raise_generation
from runtime.stores.sqlite_mark import Mark, Reached, read_mark
from runtime.stores.sqlite_reading import SqliteReading
from runtime.stores.sqlite_setup import check_meta, create_store
from runtime.stores.sqlite_view import SqliteView

log = logging.getLogger("outlast.store")

CHECKPOINT_BYTES = 4 << 20  # about 250 commits of one chunk; copying it takes 1 to 10 ms
BUSY_MS = 1000  # nobody else writes; whoever does is a person with a SQLite shell


class _DefectError(Exception):
    """Carries which operation of a group has to be left out."""

    def __init__(self, place: int, cause: Exception) -> None:
        super().__init__(place)
        self.place = place
        self.cause = cause


class SqliteStore(SqliteReading):
    """A Store in the file at `path`, which `create_store` made.

    Raises StoreRefused if the file is missing, foreign, of a newer schema, another deployment or shard count."""

    def __init__(
        self, path: Path, *, shards: int = 1, deployment_id: str | None = None, busy_ms: int = BUSY_MS
    ) -> None:
        super().__init__(path, busy_ms)
        self.meta = check_meta(path, shards=shards, deployment_id=deployment_id)
        self._inode = path.stat().st_ino
        self._epoch = 0
        self._write_lock = Lock()
        self._writer: sqlite3.Connection | None = None
        self._wal_bytes = 0
        self._generation = 0
        self._mark: Mark | None = None  # kept from the shard's opening on

    def open_shard(self, shard: int, opener: str) -> int:
        """Take the shard; return its new epoch (P11). The process that had the file is dead when this returns (P12).

        Raises StoreRefused for a shard other than 0, StoreUnavailable, StoreFull."""
        keep_freed_memory()
        with self._write_lock:
            end_predecessor(self.path)
            try:
                write_opener(self.path)
                connection = self._writing()
                with self._transaction(connection):
                    # Two successors at once: only one is here at a time, and it ends the other.
                    end_predecessor(self.path)
                    write_opener(self.path)
                    self._raise_if_lost(connection, shard)
                    if connection.execute(sql.TAKE_SHARD, (opener, shard)).rowcount != 1:
                        raise StoreRefused(f"A SQLite store has one shard, log:0; log:{shard} is not in {self.path}.")
                    (epoch,) = connection.execute(sql.READ_SHARD, (shard,)).fetchone()
                    (self._generation,) = connection.execute(sql.READ_GENERATION).fetchone()
            except OSError as error:
                failed = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreUnavailable
                raise failed(f"The opener's file beside {self.path} cannot be written: {error}") from error
            self._epoch = int(epoch)
            self._keep_mark()
            return self._epoch

    def _raise_if_lost(self, connection: sqlite3.Connection, shard: int) -> None:
        reached = read_mark(self.path)
        row = connection.execute(sql.READ_SHARD, (shard,)).fetchone()
        if row is not None and reached is not None and falls_short(connection, row[0], reached):
            generation = raise_generation(connection, time.time_ns() // 1_000_000, reached.generation)
            log.warning(
                "%s is an older copy of itself: chunks that clients have seen are lost. Offsets of the logs that go on "
                "are of generation %d from now on, others are answered 410 offset_gone (P10).",
                self.path,
                generation,
            )

    def _keep_mark(self) -> None:
        if self._mark is not None:
            self._mark.close()
        self._mark = Mark(self.path)
        self._mark.write(Reached(self._generation, self._epoch))

    def raise_generation(self, now_ms: int, above: int = 0) -> int:
        """Say that acknowledged chunks are lost, and supersede everybody (P10); return the new generation."""
        with self._write_lock:
            connection = self._writing()
            with self._transaction(connection):
                return raise_generation(connection, now_ms, above)

    def commit(self, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        """Decide and store `ops` in order in one transaction, durably (I1, I2, P7).

        Raises ShardSuperseded, StoreFull: nothing is written. StoreUnavailable: read back (P7)."""
        with self._write_lock:
            connection = self._writing()
            self._still_there()
            outcomes, view = self._commit(connection, shard, shard_epoch, ops, now_ms)
            if self._mark is not None and (last := view.last_written()) is not None:
                self._mark.write(Reached(self._generation, shard_epoch, *last))
            self._checkpoint(connection)
            return outcomes

    def drop_log(self, run_id: str) -> int:
        """Remove the end of a log that was given up; return how many positions are left."""
        with self._write_lock:
            connection = self._writing()
            self._still_there()
            with self._transaction(connection):
                dropped = drop_end(connection, run_id)
            self._wal_bytes += dropped.wal_bytes
            self._checkpoint(connection)
            return dropped.left

    def check(self) -> Mapping[str, Any]:
        """Return facts for `doctor` and `/readyz`. Raises StoreUnavailable, also if the file was replaced."""
        facts = self.facts()
        self._still_there()
        return facts | {
            "deploymentId": self.meta.deployment_id,
            "schemaVersion": self.meta.schema_version,
            "shards": self.meta.shards,
        }

    def _still_there(self) -> None:
        """Raise StoreUnavailable if the file has another name or none: what is written to it then is lost (I2)."""
        try:
            same = self.path.stat().st_ino == self._inode
        except OSError:
            same = False
        if not same:
            raise StoreUnavailable(
                f"{self.path} is not the file that was opened: it was moved, removed or replaced. Bring it back, or "
                "restart the instance."
            )

    def close(self) -> None:
        """Release everything, and the opener's file if no newer shard was opened. Idempotent."""
        with self._write_lock:
            self.close_readers()
            if self._mark is not None:
                self._mark.close()
                self._mark = None
            if self._writer is None:
                return
            with suppress(sqlite3.Error, OSError):
                rows = self._writer.execute(sql.READ_SHARD, (0,)).fetchall()
                if rows == [(self._epoch,)]:
                    forget_opener(self.path)
            self._drop_writer()

    def _commit(
        self, connection: sqlite3.Connection, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int
    ) -> tuple[list[Outcome], SqliteView]:
        left_out: dict[int, Outcome] = {}
        while True:  # each turn leaves out one operation more
            try:
                with self._transaction(connection):
                    row = connection.execute(sql.READ_SHARD, (shard,)).fetchone()
                    current = 0 if row is None else int(row[0])
                    if current != shard_epoch:
                        raise ShardSuperseded(shard, shard_epoch, current)
                    view = SqliteView(connection)
                    outcomes = _decide_all(view, ops, now_ms, left_out)
                self._wal_bytes += view.written_bytes
                return outcomes, view
            except _DefectError as defect:
                left_out[defect.place] = unstorable(ops[defect.place], defect.cause)

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Commit what is done inside, or nothing of it. Raises StoreError for what SQLite raises."""
        try:
            connection.execute(sql.BEGIN)
            yield
            connection.execute(sql.COMMIT)
        except BaseException as error:
            self._roll_back(connection)
            if isinstance(error, sqlite3.Error):
                raise to_store_error(error, self.path) from error
            raise

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute(sql.ROLLBACK)
        except sqlite3.Error:
            self._drop_writer()  # closing it rolls back; the next commit opens another

    def _writing(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreUnavailable(f"{self.path} was closed by this process.")
        if self._writer is None:
            try:
                self._writer = connect(self.path, self._busy_ms)
                self._writer.execute(sql.USE_WAL)
                self._writer.execute(sql.BOUND_WAL_FILE)
            except sqlite3.Error as error:
                self._drop_writer()
                raise to_store_error(error, self.path) from error
        return self._writer

    def _drop_writer(self) -> None:
        if self._writer is not None:
            with suppress(sqlite3.Error):
                self._writer.close()
            self._writer = None

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Copy the WAL into the file if it has grown enough. What fails here fails no commit: they are durable."""
        if self._wal_bytes < CHECKPOINT_BYTES:
            return
        self._wal_bytes = CHECKPOINT_BYTES // 2  # if a reader held it back, soon again
        with suppress(sqlite3.Error):
            _busy, frames, copied = connection.execute(sql.COPY_WAL).fetchone()
            if frames == copied:
                self._wal_bytes = 0  # the next commit begins the WAL anew


def _decide_all(view: SqliteView, ops: Sequence[Op], now_ms: int, left_out: Mapping[int, Outcome]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for place, op in enumerate(ops):
        if place in left_out:
            outcomes.append(left_out[place])
            continue
        try:
            decision = decide(view, op, now_ms)
            view.apply(decision)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not of_the_operation(error):
                raise
            raise _DefectError(place, error) from error
        outcomes.append(decision.outcome)
    return outcomes


__all__ = ["SqliteStore", "create_store"]
