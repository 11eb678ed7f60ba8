"""What a PostgreSQL server says of its own durability, and what of it breaks a promise (I2, P10).

`synchronous_commit` is not looked at: every session of ours turns it on. The rest is the server's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runtime.errors import StoreRefused
from runtime.stores.postgres_connection import Address, Session
from runtime.stores.postgres_setup import read_meta, set_up_session

EXAMINE_S: Final = 5.0

# A standby is whoever streams, a base backup excepted; whose name it has only a superuser is told.
READ_SERVER: Final = """SELECT current_setting('server_version'), current_setting('fsync')::boolean,
    current_setting('full_page_writes')::boolean, current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), pg_is_in_recovery(),
    (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'),
    pg_database_size(current_database())"""


def server_facts(session: Session) -> dict[str, Any]:
    """Return what the server says. Raises psycopg.Error."""
    row = session.execute(READ_SERVER).fetchone()
    assert row is not None
    version, fsync, full_pages, commit, wanted, in_recovery, standbys, size = row
    facts = {
        "server": version,
        "fsync": fsync,
        "fullPageWrites": full_pages,
        "synchronousCommit": commit,
        "synchronousStandbys": wanted,
        "standbys": standbys,
        "inRecovery": in_recovery,
        "bytes": size,
    }
    return {**facts, "durable": not gaps(facts)}


def gaps(facts: Mapping[str, Any]) -> list[str]:
    """Return, a sentence each, what lets the server lose chunks that clients have seen, and what to set."""
    found = []
    if not facts["fsync"]:
        found.append("fsync is off: a loss of power loses and damages what was acknowledged; set fsync = on")
    if not facts["fullPageWrites"]:
        found.append("full_page_writes is off: a loss of power can damage pages; set full_page_writes = on")
    if facts["standbys"] and not facts["synchronousStandbys"]:
        found.append(
            "standbys follow and none is synchronous: a failover loses what was acknowledged last; set "
            "synchronous_standby_names"
        )
    if facts["inRecovery"]:
        found.append("this server is a standby and takes no writes; name the primary (target_session_attrs=read-write)")
    return found


def examine(url: str, shards: int) -> tuple[bool, str]:
    """Return whether the store at `url` can be used as promised, and what a person should know of it."""
    address = Address(url)
    try:
        with set_up_session(address, EXAMINE_S) as session:
            facts, meta = server_facts(session), read_meta(session)
    except StoreRefused as error:
        return False, error.message
    if meta is None:
        state = "no store yet: `outlast serve` makes it"
    elif meta.shards != shards:
        return False, f"{address} was made with OUTLAST_SHARDS={meta.shards}, not {shards}; that is fixed"
    else:
        state = f"deployment {meta.deployment_id}, schema {meta.schema_version}, {meta.shards} shard(s)"
    missing = gaps(facts)
    return not missing, "; ".join([f"PostgreSQL {facts['server']} at {address}: {state}", *missing])
