"""Find out that a PostgreSQL server lacks what was acknowledged, and say so in it (P10).

Asked at the beginning of every session, and so after everything that can take a server's end from it: one must be
ended, and with it every session. Two signs, each enough:

    history   the server's identity and timeline, which `meta` holds. A standby that was promoted is on another
              timeline, and so is a server that was recovered to a point in time; a dump that was loaded is on another
              server. A planned change to a standby that lacked nothing looks the same.
    witness   what this process knows to be stored: its shard's epoch, and the newest versions of records that it has
              written or seen. A data folder that was put back is of the same history, and has not come so far. It is
              lost from its end on: the runs that were touched last are enough.

The raise is one statement, like a commit: it rests on what was read, and writes nothing if that has changed.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Final, NamedTuple

from runtime.core.generations import next_generation, raised
from runtime.core.record import Head
from runtime.errors import StoreUnavailable
from runtime.stores.codec import decode_head, encode
from runtime.stores.postgres_connection import Address, Session

log = logging.getLogger("outlast.store")

TURNS: Final = 10
MAX_KNOWN: Final = 1000  # runs of a witness

# A standby has no history of its own. The time is in ms.
_HISTORY: Final = """CASE WHEN pg_is_in_recovery() THEN NULL ELSE
    (SELECT system_identifier FROM pg_control_system()) || ' '
    || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END"""
READ_HISTORY: Final = f"""SELECT m.generation, m.history, {_HISTORY},
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    (SELECT epoch FROM outlast.shard WHERE shard = %s),
    (SELECT count(*) FROM unnest(%s::text[], %s::bigint[]) AS known(run_id, version)
        LEFT JOIN outlast.run AS r USING (run_id) WHERE coalesce(r.version, -1) < known.version)
    FROM outlast.meta AS m"""
# Set-up: where a new store, or one of an older schema, is.
NOTE_HISTORY: Final = f"UPDATE outlast.meta SET history = coalesce({_HISTORY}, '') WHERE history = ''"
LIST_OPEN: Final = "SELECT run_id, version, head FROM outlast.run WHERE NOT terminal ORDER BY run_id"

CREATE_RAISE: Final = """CREATE OR REPLACE FUNCTION outlast.raise_generation(
    seen_generation bigint, new_generation bigint, new_history text,
    seen_runs text[], seen_versions bigint[], new_heads bytea[]) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    there bigint;
    as_seen bigint;
BEGIN
    -- In the order of write_group; with every shard's row nobody else writes.
    PERFORM FROM outlast.shard ORDER BY shard FOR NO KEY UPDATE;
    PERFORM FROM outlast.supervisor FOR NO KEY UPDATE;
    PERFORM FROM outlast.run WHERE run_id = ANY(seen_runs) ORDER BY run_id FOR NO KEY UPDATE;
    PERFORM FROM outlast.meta WHERE generation = seen_generation FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT count(*), count(*) FILTER (WHERE r.version = seen.version) INTO there, as_seen
    FROM outlast.run AS r LEFT JOIN unnest(seen_runs, seen_versions) AS seen(run_id, version) USING (run_id)
    WHERE NOT r.terminal;
    IF there <> as_seen OR there <> cardinality(seen_runs) THEN
        RETURN false;
    END IF;
    UPDATE outlast.run AS r SET version = h.version + 1, head = h.head
    FROM unnest(seen_runs, seen_versions, new_heads) AS h(run_id, version, head) WHERE r.run_id = h.run_id;
    UPDATE outlast.shard SET epoch = greatest(epoch + 1, new_generation);
    UPDATE outlast.supervisor SET epoch = greatest(epoch + 1, new_generation), claimant = '';
    UPDATE outlast.meta SET generation = new_generation, history = coalesce(new_history, history);
    RETURN true;
END $body$"""
RAISE: Final = """SELECT outlast.raise_generation(%(seen_generation)s::bigint, %(generation)s::bigint,
    %(history)s::text, %(runs)s::text[], %(versions)s::bigint[], %(heads)b::bytea[])"""


class Witness:
    """What a process knows to be stored, as of `generation`: that shard `shard` had come to `epoch`, and runs of it to
    certain versions. No record is ever removed.

    Any number of OS threads may ask it, and tell it, at once."""

    def __init__(self, generation: int = 0, shard: int = -1, epoch: int = 0) -> None:
        self.generation = generation
        self.shard = shard
        self.epoch = epoch
        self._runs: dict[str, int] = {}  # touched last comes last

    def know(self, head: Head) -> None:
        """Take note of a record that was read, or whose write was answered."""
        self._runs[head.run_id] = max(head.version, self._runs.pop(head.run_id, -1))
        if len(self._runs) > MAX_KNOWN:
            self._runs.pop(next(iter(dict(self._runs))), None)

    def values(self) -> tuple[int, list[str], list[int]]:
        """Return the values for READ_HISTORY."""
        known = dict(self._runs)
        return self.shard, list(known), list(known.values())


class History(NamedTuple):
    """One row of READ_HISTORY. `missing`: so many of the runs that a witness knows have not come so far."""

    generation: int
    noted: str
    now: str | None
    now_ms: int
    epoch: int | None
    missing: int

    def lacks(self, witness: Witness) -> bool:
        """Return whether something is missing of what `witness` knows. A later generation has told of the loss."""
        if self.generation != witness.generation:
            return self.generation < witness.generation
        return witness.epoch > (self.epoch or 0) or self.missing > 0


def settle(session: Session, address: Address, witness: Witness) -> int:
    """Return the store's generation: a new one if it is found out here that acknowledged chunks are lost.

    Raises psycopg.Error, StoreUnavailable."""
    for _ in range(TURNS):
        history = _read(session, witness)
        if history.now is None:  # it may be promoted later, and its sessions would live on
            raise StoreUnavailable(f"The server at {address} is a standby.")
        moved = history.noted not in ("", history.now)
        if not (moved or history.lacks(witness)):
            return history.generation
        generation = _raise(address, history.generation, history.now, history.now_ms, witness.generation)
        if generation is not None:
            log.warning(
                "the store at %s is as it was earlier: chunks that clients have seen may be lost. Offsets of the logs "
                "that go on are of generation %d from now on, others are answered 410 offset_gone (P10).",
                address,
                generation,
            )
    raise _busy(address)


def raise_generation(address: Address, now_ms: int, above: int) -> int:
    """Supersede everybody, and return the new generation. Raises psycopg.Error, StoreUnavailable."""
    for _ in range(TURNS):
        with closing(address.connect("outlast raising")) as session:
            history = _read(session, Witness())
        generation = _raise(address, history.generation, history.now, now_ms, above)
        if generation is not None:
            return generation
    raise _busy(address)


def _read(session: Session, witness: Witness) -> History:
    row = session.execute(READ_HISTORY, witness.values()).fetchone()
    assert row is not None
    return History(*row)


def _raise(address: Address, seen: int, history: str | None, now_ms: int, above: int) -> int | None:
    """Raise the generation from the one that was `seen`; None if somebody writes meanwhile."""
    generation = next_generation(seen, now_ms, above)
    with closing(address.connect("outlast raising")) as session:
        rows = session.execute(LIST_OPEN).fetchall()
        heads = [encode(raised(decode_head(bytes(head)), generation)) for _, _, head in rows]
        values = {
            "seen_generation": seen,
            "generation": generation,
            "history": history,
            "runs": [run_id for run_id, _, _ in rows],
            "versions": [version for _, version, _ in rows],
            "heads": heads,
        }
        row = session.execute(RAISE, values).fetchone()
    assert row is not None
    return generation if row[0] else None


def _busy(address: Address) -> StoreUnavailable:
    return StoreUnavailable(f"Others write at {address} while its generation is to be raised. Try again.")
