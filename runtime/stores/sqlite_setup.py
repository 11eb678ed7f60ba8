"""Make a store file, bring an old one to this schema, and refuse one that is not ours (P12).

Only `create_store` makes or migrates: it is called by set-up code (`outlast serve` before it starts anything). A shard
opens with `open_checked` and refuses, saying what to do: a shard that finds its file missing after an accident must
not begin a new, empty history under the old address.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from runtime.core.record import Struct
from runtime.errors import StoreRefused
from runtime.stores import sqlite_schema as sql
from runtime.stores.sqlite_connection import connect, to_store_error

_SETUP_BUSY_MS = 5000


class Meta(Struct, frozen=True, kw_only=True):
    """What a store was set up as."""

    deployment_id: str
    schema_version: int
    shards: int


def create_store(path: Path, deployment_id: str, shards: int = 1) -> Meta:
    """Make the store, or check and migrate the one that is there; may be repeated, also after a crash in the middle.

    Raises StoreRefused for a foreign file, another deployment or shard count, or a newer schema; StoreFull;
    StoreUnavailable."""
    if shards != 1:
        raise StoreRefused(
            f"A SQLite store has exactly one shard, not {shards}. Set OUTLAST_SHARDS=1, or use another OUTLAST_STORE."
        )
    try:
        path.touch(mode=0o600)  # prompts and outputs lie in it; -wal and -shm get the same mode from SQLite
        connection = connect(path, _SETUP_BUSY_MS, create=True)
        try:
            _set_up(connection, path, deployment_id, shards)
        finally:
            connection.close()
        _sync_folder(path.parent)
    except sqlite3.Error as error:
        raise to_store_error(error, path) from error
    except OSError as error:
        raise StoreRefused(f"{path} cannot be made: {error}. Choose another OUTLAST_DATA_DIR.") from error
    return check_meta(path, shards=shards, deployment_id=deployment_id)


def check_meta(path: Path, *, shards: int, deployment_id: str | None) -> Meta:
    """Return what the store is, if this code may serve it as what it is asked to be. Raises StoreRefused."""
    if not path.exists():
        raise StoreRefused(
            f"There is no store at {path}. If it was moved, bring it back; `outlast serve` makes a new, empty one."
        )
    try:
        connection = connect(path, _SETUP_BUSY_MS)
        try:
            meta = _read_meta(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise to_store_error(error, path) from error
    if meta is None:
        raise StoreRefused(f"The store at {path} was not set up to its end. Run `outlast serve`, which does it.")
    _refuse_other(meta, path, shards, deployment_id)
    if meta.schema_version < sql.SCHEMA_VERSION:
        raise StoreRefused(
            f"The store at {path} has schema {meta.schema_version}, older than {sql.SCHEMA_VERSION}. "
            "Run `outlast serve`, which brings it up to date."
        )
    return meta


def _set_up(connection: sqlite3.Connection, path: Path, deployment_id: str, shards: int) -> None:
    if connection.execute(sql.COUNT_TABLES).fetchone() == (0,):
        connection.execute(sql.WRITE_PAGE_SIZE)
    found = _read_meta(connection, path)
    if connection.execute(sql.USE_WAL).fetchone() != ("wal",):
        raise StoreRefused(
            f"The file system of {path} cannot hold a SQLite WAL. Use a local disk for OUTLAST_DATA_DIR."
        )
    connection.execute(sql.BEGIN)
    try:
        found = _read_meta(connection, path)
        if found is not None:
            _refuse_other(found, path, shards, deployment_id)
        _migrate(connection, 0 if found is None else found.schema_version)
        if found is None:
            connection.execute(sql.WRITE_META, (deployment_id, sql.SCHEMA_VERSION, shards))
            connection.execute(sql.ADD_SUPERVISOR)
            connection.executemany(sql.ADD_SHARD, [(shard,) for shard in range(shards)])
            connection.execute(sql.WRITE_APPLICATION_ID)
        connection.execute(sql.COMMIT)
    finally:
        if connection.in_transaction:
            connection.execute(sql.ROLLBACK)


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    for migration in sql.MIGRATIONS:
        if migration.version <= version:
            continue
        for statement in migration.statements:
            connection.execute(statement)
        connection.execute(sql.WRITE_SCHEMA_VERSION, (migration.version,))


def _read_meta(connection: sqlite3.Connection, path: Path) -> Meta | None:
    """Return what the store is; None if set-up has not filled it. Raises StoreRefused for another application's."""
    (tables,) = connection.execute(sql.COUNT_TABLES).fetchone()
    (application_id,) = connection.execute(sql.READ_APPLICATION_ID).fetchone()
    if tables == 0 and application_id in (0, sql.APPLICATION_ID):
        return None
    if application_id != sql.APPLICATION_ID:
        raise StoreRefused(f"{path} is a SQLite file of something else. Choose another OUTLAST_DATA_DIR.")
    row = connection.execute(sql.READ_META).fetchone()
    return None if row is None else Meta(deployment_id=row[0], schema_version=row[1], shards=row[2])


def _refuse_other(meta: Meta, path: Path, shards: int, deployment_id: str | None) -> None:
    if meta.schema_version > sql.SCHEMA_VERSION:
        raise StoreRefused(
            f"The store at {path} has schema {meta.schema_version}; this Outlast knows {sql.SCHEMA_VERSION}. "
            "Install the version that made it or a newer one, or choose another OUTLAST_DATA_DIR."
        )
    if deployment_id is not None and meta.deployment_id != deployment_id:
        raise StoreRefused(
            f"The store at {path} belongs to deployment {meta.deployment_id}, not {deployment_id}. "
            "Each instance has its own OUTLAST_DATA_DIR."
        )
    if meta.shards != shards:
        raise StoreRefused(
            f"The store at {path} was made with OUTLAST_SHARDS={meta.shards}, not {shards}; that is fixed. Set it back."
        )


def _sync_folder(folder: Path) -> None:
    """Make the file's name durable too."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
