"""Back up and restore the SQLite store (`backup_file.py` has the format).

A backup is one read transaction of another connection: the store as it was at one moment, while it is written. The
writer waits for nothing; only its WAL is not cut back meanwhile.

A restore makes a new file under a private name and puts it in place when it is whole. What was there is kept beside it,
under a name of its own for each restore: one that is kept may be the only copy of what came after the backup.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from runtime import process
from runtime.core import reaping
from runtime.core.generations import raised
from runtime.core.owned import settled_bytes
from runtime.errors import StoreRefused
from runtime.stores import sqlite_schema as sql
from runtime.stores.backup_file import BackupHeader, Row, StoredBatch, StoredRun
from runtime.stores.codec import decode_head, encode
from runtime.stores.opener import read_opener
from runtime.stores.sqlite_connection import connect, connect_reader, to_store_error
from runtime.stores.sqlite_setup import check_meta, create_store

_BUSY_MS = 5000
WAL: Final = "-wal"
BESIDE: Final = (WAL, "-shm")

_BEGIN_READING: Final = "BEGIN"
_LIST_RUNS: Final = """SELECT run.ordinal, run.head, spec.spec, stderr.tail, transcript.data, checkpoint.data
    FROM run JOIN spec ON spec.run = run.ordinal
    LEFT JOIN stderr ON stderr.run = run.ordinal LEFT JOIN transcript ON transcript.run = run.ordinal
    LEFT JOIN checkpoint ON checkpoint.run = run.ordinal ORDER BY run.ordinal"""
_LIST_LOG: Final = """SELECT seq, n, epoch, band, first_index, key, ends, data FROM batch WHERE run = ? ORDER BY seq"""
_PUT_RUN: Final = """INSERT INTO run
    (ordinal, run_id, owner, thread_id, status, terminal, queued, created_at, version, head)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_CHECK: Final = "PRAGMA integrity_check(1)"


def read_store(path: Path, deployment_id: str | None, made_at: int, made_by: str) -> tuple[BackupHeader, Iterator[Row]]:
    """Return what the store at `path` is, and everything in it as of one moment.

    Raises StoreRefused, StoreUnavailable; the iterator too."""
    rows = _read(path, deployment_id, made_at, made_by)
    header = next(rows)
    assert isinstance(header, BackupHeader)
    return header, rows  # type: ignore[return-value]  # after the header, rows


def _read(path: Path, deployment_id: str | None, made_at: int, made_by: str) -> Iterator[BackupHeader | Row]:
    meta = check_meta(path, shards=1, deployment_id=deployment_id)
    try:
        with closing(connect_reader(path, _BUSY_MS)) as connection:
            connection.execute(_BEGIN_READING)
            (generation,) = connection.execute(sql.READ_GENERATION).fetchone()  # the moment
            yield BackupHeader(
                deployment_id=meta.deployment_id,
                generation=generation,
                store="sqlite",
                schema_version=meta.schema_version,
                shards=meta.shards,
                made_at=made_at,
                made_by=made_by,
            )
            for ordinal, head, spec, stderr, transcript, checkpoint in connection.execute(_LIST_RUNS):
                yield StoredRun(
                    ordinal=ordinal, head=head, spec=spec, stderr=stderr, transcript=transcript, checkpoint=checkpoint
                )
                yield from _log(connection, ordinal)
    except sqlite3.Error as error:
        raise to_store_error(error, path) from error


def _log(connection: sqlite3.Connection, ordinal: int) -> Iterator[StoredBatch]:
    for seq, count, epoch, band, first_index, key, ends, data in connection.execute(_LIST_LOG, (ordinal,)):
        stored_key = None if key is None else key.encode("utf-8", "surrogatepass")
        yield StoredBatch(
            seq=seq,
            count=count,
            epoch=epoch,
            band=band,
            first_index=first_index,
            key=stored_key,
            ends=ends,
            data=data,
        )


def refuse_served(path: Path) -> None:
    """Raise StoreRefused if somebody has the store open."""
    opener = read_opener(path)
    if opener is not None and opener != process.current() and process.alive(opener):
        raise StoreRefused(
            f"{path} is being served, by process {opener.pid}. Stop the instance first: `outlast stop`; if its `serve` "
            "was killed, start it again and stop it."
        )


def holds(path: Path) -> tuple[int, int]:
    """Return how many runs the store at `path` has, and its generation; (0, 0) without one.

    Raises StoreRefused for one that cannot be read."""
    if not path.exists():
        return 0, 0
    try:
        with closing(connect(path, _BUSY_MS)) as connection:
            if connection.execute(sql.COUNT_TABLES).fetchone() == (0,):
                return 0, 0
            (runs,) = connection.execute(sql.COUNT_RUNS).fetchone()
            (generation,) = connection.execute(sql.READ_GENERATION).fetchone()
            return int(runs), int(generation)
    except sqlite3.Error as error:
        raise to_store_error(error, path) from error


def fill_store(path: Path, deployment_id: str, generation: int, rows: Iterable[Row]) -> None:
    """Make a new store at `path` with `rows` in it, as of `generation` (P10). A file that is there is removed.

    Raises StoreRefused, StoreFull, StoreUnavailable, and what `rows` raises: then nothing at `path` is to be used."""
    remove(path)
    create_store(path, deployment_id)
    try:
        with closing(connect(path, _BUSY_MS)) as connection:
            connection.execute(sql.BEGIN)
            _Filler(connection, generation).fill(rows)
            connection.execute(sql.RAISE_META, (generation,))
            connection.execute(sql.RAISE_SHARDS, (generation,))
            connection.execute(sql.RAISE_SUPERVISOR, (generation,))
            connection.execute(sql.COMMIT)
            (said,) = connection.execute(_CHECK).fetchone()
            if said != "ok":
                raise StoreRefused(f"What was restored is damaged ({said}): the disk of {path.parent} fails.")
    except sqlite3.IntegrityError as error:
        raise StoreRefused(f"The backup holds what no store may hold ({error}). Nothing was changed.") from error
    except sqlite3.Error as error:
        raise to_store_error(error, path) from error
    # The last connection has gone: all is in the file, and nothing in a WAL.


def put_in_place(made: Path, path: Path, generation: int) -> Path | None:
    """Let the store at `made` be the one at `path`, as of `generation`; return where the one before it is now, if there
    was one.

    May be repeated after a crash in the middle: there is no store at `path` then. Raises OSError, and StoreRefused if
    somebody has opened the store since it was asked."""
    refuse_served(path)
    kept = _keep(path, generation)
    made.rename(path)
    return kept


def _keep(path: Path, generation: int) -> Path | None:
    """Move the store away, with its WAL: a WAL beside another database would be taken for that one's.

    The WAL has both names before the database has the new one, so each moment of this can be the last."""
    wal, kept = _beside(path, WAL), None
    if path.exists():
        kept = _free_name(path, generation)
        if wal.exists():
            os.link(wal, _beside(kept, WAL))
        path.rename(kept)
    elif wal.exists():
        kept = _moved_with(path, wal)
        if kept is None:  # somebody took its database away
            wal.rename(_beside(_free_name(path, generation), WAL))
    for end in BESIDE:
        _beside(path, end).unlink(missing_ok=True)  # "-shm": whoever opens makes it again
    return kept


def _free_name(path: Path, generation: int) -> Path:
    kept = path.with_name(f"{path.name}.replaced-{generation}")
    while kept.exists() or _beside(kept, WAL).exists():
        generation += 1
        kept = path.with_name(f"{path.name}.replaced-{generation}")
    return kept


def _moved_with(path: Path, wal: Path) -> Path | None:
    """Return the store that was moved away from `path` with this WAL, by a restore that was interrupted."""
    for other in path.parent.glob(f"{path.name}.replaced-*{WAL}"):
        if other.samefile(wal):
            return other.with_name(other.name.removesuffix(WAL))
    return None


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def remove(path: Path) -> None:
    """Remove a store that is nobody's, with what lies beside it."""
    for end in ("", *BESIDE):
        _beside(path, end).unlink(missing_ok=True)


class _Filler:
    """Writes rows into an empty store, within one transaction."""

    def __init__(self, connection: sqlite3.Connection, generation: int) -> None:
        self._execute = connection.execute
        self._generation = generation
        self._ordinal = 0

    def fill(self, rows: Iterable[Row]) -> None:
        """Write all of them. Raises sqlite3.Error."""
        for row in rows:
            if isinstance(row, StoredRun):
                self._add_run(row)
            else:
                self._add_batch(row)

    def _add_run(self, run: StoredRun) -> None:
        head = decode_head(run.head)
        stored = run.head
        if not head.status.terminal:
            head = raised(head, self._generation)
            stored = encode(head)
        status = (head.status.value, int(head.status.terminal), int(head.queued))
        columns: tuple[Any, ...] = (run.ordinal, head.run_id, head.owner, head.thread_id, *status)
        self._execute(_PUT_RUN, (*columns, head.created_at, head.version, stored))
        self._ordinal = run.ordinal
        self._execute(sql.ADD_SPEC, (run.ordinal, run.spec))
        for statement, value in (
            (sql.WRITE_STDERR, run.stderr),
            (sql.WRITE_TRANSCRIPT, run.transcript),
            (sql.WRITE_CHECKPOINT, run.checkpoint),
        ):
            if value is not None:
                self._execute(statement, (run.ordinal, value))
        if head.to_destroy:
            self._execute(sql.ADD_DESTROY_PENDING, (run.ordinal,))
        if (due := reaping.due(head)) is not None:
            self._execute(sql.WRITE_REAP, (run.ordinal, *due))
        if settled := settled_bytes(head):
            self._execute(sql.ADD_OWNED, (head.owner, settled))

    def _add_batch(self, batch: StoredBatch) -> None:
        key = None if batch.key is None else batch.key.decode("utf-8", "surrogatepass")
        place = (self._ordinal, batch.seq, batch.count, batch.epoch, batch.band, batch.first_index)
        self._execute(sql.ADD_BATCH, (*place, key, batch.ends, batch.data))
