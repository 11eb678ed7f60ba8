"""Make a store in a database, bring an old one to this schema, and refuse one that is not ours (P12).

Only `create_store` makes or migrates: it is called by set-up code (`outlast serve` before it starts anything), under a
lock of the database, so that of two starters one waits and then finds everything there. A shard opens with `check_meta`
and refuses, saying what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from runtime.core.record import Struct
from runtime.errors import StoreRefused, StoreUnavailable
from runtime.stores import postgres_schema as sql
from runtime.stores.postgres_connection import LEAST_VERSION, Address, Session
from runtime.stores.postgres_loss import NOTE_HISTORY

SETUP_MS = 30_000  # a migration may take its time, and the second of two starters waits for the first


class Meta(Struct, frozen=True, kw_only=True):
    """What a store was set up as."""

    deployment_id: str
    schema_version: int
    shards: int


def create_store(address: Address, deployment_id: str, shards: int, *, adopt: bool = False) -> Meta:
    """Make the store, or check and migrate the one that is there; may be repeated, also after a crash in the middle.
    `adopt`: one that is there may be of any deployment, and `deployment_id` is for a new one.

    Raises StoreRefused for another deployment or shard count, a newer schema, a server that does not answer or is too
    old, or missing rights; StoreFull."""
    with set_up_session(address) as session, session.transaction():
        session.execute(sql.TAKE_SETUP_LOCK)
        found = read_meta(session)
        if found is not None:
            refuse_other(found, address, shards, None if adopt else deployment_id)
            deployment_id = found.deployment_id
        else:
            _make_schema(session)
        _migrate(session, 0 if found is None else found.schema_version)
        if found is None:
            session.execute(sql.WRITE_META, (deployment_id, sql.SCHEMA_VERSION, shards))
            session.execute(sql.ADD_SHARDS, (shards,))
            session.execute(sql.ADD_SUPERVISOR)
        elif found.schema_version < sql.SCHEMA_VERSION:
            session.execute(sql.WRITE_SCHEMA_VERSION, (sql.SCHEMA_VERSION,))
        session.execute(NOTE_HISTORY)
    return Meta(deployment_id=deployment_id, schema_version=sql.SCHEMA_VERSION, shards=shards)


def find_store(address: Address) -> Meta | None:
    """Return what store the database holds, or None. Raises StoreRefused if that cannot be found out."""
    with set_up_session(address) as session:
        return read_meta(session)


def check_meta(session: Session, address: Address, *, shards: int, deployment_id: str | None) -> Meta:
    """Return what the store is, if this code may serve it as what it is asked to be.

    Raises StoreRefused, psycopg.Error."""
    meta = read_meta(session)
    if meta is None:
        raise StoreRefused(
            f"There is no store at {address}. If the database was replaced, bring it back; `outlast serve` makes a "
            "new, empty store."
        )
    refuse_other(meta, address, shards, deployment_id)
    if meta.schema_version < sql.SCHEMA_VERSION:
        raise StoreRefused(
            f"The store at {address} has schema {meta.schema_version}, older than {sql.SCHEMA_VERSION}. "
            "Run `outlast serve`, which brings it up to date."
        )
    return meta


def read_meta(session: Session) -> Meta | None:
    """Return what the store is; None if set-up was not here. Raises psycopg.Error."""
    if session.execute(sql.FIND_META).fetchone() == (None,):
        return None
    row = session.execute(sql.READ_META).fetchone()
    return None if row is None else Meta(deployment_id=row[0], schema_version=row[1], shards=row[2])


def refuse_other(meta: Meta, address: Address, shards: int, deployment_id: str | None) -> None:
    """Raise StoreRefused for a store of a newer schema, another deployment or another number of shards."""
    if meta.schema_version > sql.SCHEMA_VERSION:
        raise StoreRefused(
            f"The store at {address} has schema {meta.schema_version}; this Outlast knows {sql.SCHEMA_VERSION}. "
            "Install the version that made it or a newer one, or use another database."
        )
    if deployment_id is not None and meta.deployment_id != deployment_id:
        raise StoreRefused(
            f"The store at {address} belongs to deployment {meta.deployment_id}, not {deployment_id}. "
            "Each deployment has a database of its own."
        )
    if meta.shards != shards:
        raise StoreRefused(
            f"The store at {address} was made with OUTLAST_SHARDS={meta.shards}, not {shards}; that is fixed. "
            "Set it back."
        )


@contextmanager
def set_up_session(address: Address, patience_s: float = SETUP_MS / 1000) -> Iterator[Session]:
    """Yield a session for set-up, which waits longer. Every failure of the server's is StoreRefused or StoreFull:
    whoever sets up is a person's command, and the person must know."""
    patient = {"statement_timeout": SETUP_MS, "lock_timeout": SETUP_MS, "idle_in_transaction_session_timeout": SETUP_MS}
    try:
        session = address.connect("outlast set-up", patience_s, **patient)
    except psycopg.Error as error:
        raise StoreRefused(
            f"The PostgreSQL server of the store, {address}, cannot be used: {address.said(error)}. Start it, or mend "
            "OUTLAST_STORE; user and database must be there: CREATE ROLE outlast LOGIN; CREATE DATABASE outlast OWNER "
            "outlast."
        ) from None
    try:
        if session.info.server_version < LEAST_VERSION:
            raise StoreRefused(f"The server of {address} is too old: PostgreSQL 14 or newer is needed.")
        yield session
    except psycopg.Error as error:
        raised = address.store_error(error)
        if isinstance(raised, StoreUnavailable):
            raise StoreRefused(f"{raised.message} Nothing was changed; try again.") from error
        raise raised from error
    finally:
        session.close()


def _make_schema(session: Session) -> None:
    if session.execute(sql.FIND_SCHEMA).fetchone() == (True,):
        return
    try:
        session.execute(sql.MAKE_SCHEMA)
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreRefused(
            f"The database user may not make the schema `outlast`: {str(error).strip()}. As its owner: GRANT CREATE ON "
            "DATABASE ... TO ...; or CREATE SCHEMA outlast AUTHORIZATION ..."
        ) from error


def _migrate(session: Session, version: int) -> None:
    for migration in sql.MIGRATIONS:
        if migration.version > version:
            for statement in migration.statements:
                session.execute(statement)
