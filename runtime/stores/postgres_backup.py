"""Back up and restore the PostgreSQL store (`backup_file.py` has the format).

A backup is one transaction that sees the database as it was at one moment, and only reads: nobody waits for it but a
restore. That is one transaction that empties the tables and fills them: before it commits, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import psycopg

from runtime.core import reaping
from runtime.core.generations import next_generation, raised
from runtime.core.ids import shard_of
from runtime.core.owned import settled_bytes
from runtime.errors import StoreRefused
from runtime.stores import postgres_schema as sql
from runtime.stores.backup_file import BackupHeader, Row, StoredBatch, StoredRun
from runtime.stores.codec import decode_head, encode
from runtime.stores.postgres_connection import Address, Session
from runtime.stores.postgres_setup import check_meta, create_store, set_up_session

PAGE_RUNS: Final = 8  # a transcript may have some MiB
PAGE_BYTES: Final = 4 << 20
PUT_BATCHES: Final = 1000  # with one round trip

_BEGIN_READING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# Before the transaction's moment: one that was begun before a TRUNCATE and reads after it would find nothing.
_KEEP_TABLES: Final = """LOCK TABLE outlast.run, outlast.spec, outlast.stderr, outlast.transcript, outlast.checkpoint,
    outlast.batch IN ACCESS SHARE MODE"""
_LIST_RUNS: Final = """SELECT r.ordinal, r.head, s.spec, e.tail, t.stored, c.stored
    FROM outlast.run AS r JOIN outlast.spec AS s ON s.run = r.ordinal
    LEFT JOIN outlast.stderr AS e ON e.run = r.ordinal LEFT JOIN outlast.transcript AS t ON t.run = r.ordinal
    LEFT JOIN outlast.checkpoint AS c ON c.run = r.ordinal
    WHERE r.ordinal > %s ORDER BY r.ordinal LIMIT %s"""
_LIST_LOG: Final = """SELECT seq, n, epoch, band, first_index, key, ends, data FROM outlast.batch
    WHERE run = %(run)s AND seq >= %(first)s AND seq <= outlast.page_end(%(run)s, %(first)s, %(bytes)s) ORDER BY seq"""

# Nobody writes from here on: whoever commits needs one of these rows.
_TAKE_SHARDS: Final = "SELECT shard FROM outlast.shard ORDER BY shard FOR UPDATE"
_LIST_SERVING: Final = """SELECT application_name FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND starts_with(application_name, 'outlast log:')
    ORDER BY application_name"""
_LIST_TABLES: Final = """SELECT 'outlast.' || quote_ident(tablename) FROM pg_tables
    WHERE schemaname = 'outlast' AND tablename NOT IN ('meta', 'shard', 'supervisor') ORDER BY tablename"""
_READ_GENERATION: Final = "SELECT generation FROM outlast.meta FOR UPDATE"
_PUT_RUN: Final = """INSERT INTO outlast.run (ordinal, run_id, owner, thread_id, shard, status, terminal, queued,
    to_destroy, reap_stage, reap_due, created_at, version, head)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %b)"""
_PUT_SPEC: Final = "INSERT INTO outlast.spec (run, spec) VALUES (%s, %b)"
_PUT_STDERR: Final = "INSERT INTO outlast.stderr (run, tail) VALUES (%s, %b)"
_PUT_TRANSCRIPT: Final = "INSERT INTO outlast.transcript (run, stored) VALUES (%s, %b)"
_PUT_CHECKPOINT: Final = "INSERT INTO outlast.checkpoint (run, stored) VALUES (%s, %b)"
_PUT_BATCH: Final = """INSERT INTO outlast.batch (run, seq, n, epoch, band, first_index, key, ends, data)
    VALUES (%s, %s, %s, %s, %s, %s, %b, %b, %b)"""
_ADD_OWNED: Final = """INSERT INTO outlast.owned AS o (owner, shard, bytes) VALUES (%s, %s, %s)
    ON CONFLICT (owner, shard) DO UPDATE SET bytes = o.bytes + excluded.bytes"""
# Never back: a sequence is in no transaction.
_CONTINUE_ORDINALS: Final = """SELECT setval('outlast.run_ordinal',
    greatest(%s, (SELECT last_value FROM outlast.run_ordinal)))"""
_RAISE_META: Final = "UPDATE outlast.meta SET generation = %s"
_RAISE_SHARDS: Final = "UPDATE outlast.shard SET epoch = greatest(epoch + 1, %s)"
_RAISE_SUPERVISOR: Final = "UPDATE outlast.supervisor SET epoch = greatest(epoch + 1, %s), claimant = ''"


def read_store(
    address: Address, shards: int, deployment_id: str | None, made_at: int, made_by: str
) -> tuple[BackupHeader, Iterator[Row]]:
    """Return what the store at `address` is, and everything in it as of one moment.

    Raises StoreRefused; the iterator too."""
    rows = _read(address, shards, deployment_id, made_at, made_by)
    header = next(rows)
    assert isinstance(header, BackupHeader)
    return header, rows  # type: ignore[return-value]  # after the header, rows


def _read(
    address: Address, shards: int, deployment_id: str | None, made_at: int, made_by: str
) -> Iterator[BackupHeader | Row]:
    with set_up_session(address) as session:
        check_meta(session, address, shards=shards, deployment_id=deployment_id)  # that there are tables
        session.execute(_BEGIN_READING)
        session.execute(_KEEP_TABLES)
        meta = check_meta(session, address, shards=shards, deployment_id=deployment_id)
        (generation,) = _only(session, sql.READ_GENERATION)
        yield BackupHeader(
            deployment_id=meta.deployment_id,
            generation=generation,
            store="postgresql",
            schema_version=meta.schema_version,
            shards=meta.shards,
            made_at=made_at,
            made_by=made_by,
        )
        last = -1
        while page := session.execute(_LIST_RUNS, (last, PAGE_RUNS), binary=True).fetchall():
            for ordinal, head, spec, stderr, transcript, checkpoint in page:
                yield StoredRun(
                    ordinal=ordinal, head=head, spec=spec, stderr=stderr, transcript=transcript, checkpoint=checkpoint
                )
                yield from _log(session, ordinal)
            last = page[-1][0]


def _log(session: Session, ordinal: int) -> Iterator[StoredBatch]:
    first = 0
    while page := session.execute(
        _LIST_LOG, {"run": ordinal, "first": first, "bytes": PAGE_BYTES}, binary=True
    ).fetchall():
        for seq, count, epoch, band, first_index, key, ends, data in page:
            yield StoredBatch(
                seq=seq, count=count, epoch=epoch, band=band, first_index=first_index, key=key, ends=ends, data=data
            )
        first = page[-1][0] + 1


def fill_store(
    address: Address, header: BackupHeader, shards: int, now_ms: int, rows: Iterable[Row], *, force: bool
) -> int:
    """Make the store, or with `force` empty it, and fill it with `rows` in a generation of its own (P10), which is
    returned.

    Raises StoreRefused, StoreFull, and what `rows` raises: then nothing was changed."""
    create_store(address, header.deployment_id, shards)
    with set_up_session(address) as session, session.transaction():
        session.execute(sql.TAKE_SETUP_LOCK)
        session.execute(_TAKE_SHARDS)
        (before,) = _only(session, _READ_GENERATION)
        _refuse(session, address, force=force)
        tables = [name for (name,) in session.execute(_LIST_TABLES)]
        session.execute(f"TRUNCATE {', '.join(tables)}")  # names, quoted by the server
        generation = next_generation(max(before, header.generation), now_ms)
        last = _Filler(session, shards, generation).fill(rows)
        if last:
            session.execute(_CONTINUE_ORDINALS, (last,))
        for statement in (_RAISE_META, _RAISE_SHARDS, _RAISE_SUPERVISOR):
            session.execute(statement, (generation,))
    return generation


def _refuse(session: Session, address: Address, *, force: bool) -> None:
    serving = [name for (name,) in session.execute(_LIST_SERVING)]
    if serving:
        raise StoreRefused(
            f"The store at {address} is being served ({', '.join(serving)}). Stop every instance on it first: "
            "`outlast stop`."
        )
    (runs,) = _only(session, sql.COUNT_RUNS)
    if runs and not force:
        raise StoreRefused(
            f"The store at {address} has {runs} run(s), which a restore replaces. Back it up first, then use --force."
        )


class _Filler:
    """Writes rows into empty tables, several with one round trip."""

    def __init__(self, session: Session, shards: int, generation: int) -> None:
        self._session = session
        self._shards = shards
        self._generation = generation
        self._ordinal = 0
        self._batches: list[tuple[Any, ...]] = []
        self._bytes = 0

    def fill(self, rows: Iterable[Row]) -> int:
        """Write all of them; return the last run's ordinal. Raises psycopg.Error, StoreRefused."""
        try:
            for row in rows:
                if isinstance(row, StoredRun):
                    self._add_run(row)
                else:
                    self._add_batch(row)
            self._flush()
        except (psycopg.IntegrityError, psycopg.DataError) as error:
            said = str(error).partition("\n")[0]
            raise StoreRefused(f"The backup holds what no store may hold ({said}). Nothing was changed.") from error
        return self._ordinal

    def _add_run(self, run: StoredRun) -> None:
        head = decode_head(run.head)
        stored = run.head
        if not head.status.terminal:
            head = raised(head, self._generation)
            stored = encode(head)
        due = reaping.due(head)
        stage, when = (None, None) if due is None else (due[0].value, due[1])
        shard = shard_of(head.run_id, self._shards)
        columns: tuple[Any, ...] = (run.ordinal, head.run_id, head.owner, head.thread_id, shard)
        status = (head.status.value, head.status.terminal, head.queued, head.to_destroy)
        self._session.execute(_PUT_RUN, (*columns, *status, stage, when, head.created_at, head.version, stored))
        self._session.execute(_PUT_SPEC, (run.ordinal, run.spec))
        for statement, value in (
            (_PUT_STDERR, run.stderr),
            (_PUT_TRANSCRIPT, run.transcript),
            (_PUT_CHECKPOINT, run.checkpoint),
        ):
            if value is not None:
                self._session.execute(statement, (run.ordinal, value))
        if settled := settled_bytes(head):
            self._session.execute(_ADD_OWNED, (head.owner, shard, settled))
        self._ordinal = run.ordinal

    def _add_batch(self, batch: StoredBatch) -> None:
        place = (self._ordinal, batch.seq, batch.count, batch.epoch, batch.band, batch.first_index)
        self._batches.append((*place, batch.key, batch.ends, batch.data))
        self._bytes += len(batch.data) + len(batch.ends)
        if self._bytes >= PAGE_BYTES or len(self._batches) >= PUT_BATCHES:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            with self._session.cursor() as cursor:
                cursor.executemany(_PUT_BATCH, self._batches)
        self._batches, self._bytes = [], 0


def _only(session: Session, statement: str) -> tuple[Any, ...]:
    row = session.execute(statement).fetchone()
    assert row is not None
    return row


__all__ = ["fill_store", "read_store"]
