"""The store that is a server: PostgreSQL, many shards on many nodes (P12).

Durability (I2, P10): `synchronous_commit` is on in every session of ours: a commit has reached the disk, and the
synchronous standbys if there are any, when it is answered. What the server itself must not do (`fsync=off`) `check`
tells.

Authority (I1, P11): each operation is decided by `core.machine` on what this shard remembers, and `write_group` writes
the whole group in one statement if the shard's epoch and everything that the decisions rest on is still so. If not, the
group is read and decided again. Since a commit is one statement, a client that freezes holds no lock; and whoever opens
the shard anew ends the sessions of the one before.

A commit without an answer may have happened, and may even happen yet: before anything else is written, the session that
it went through is ended, and everything that was remembered is forgotten (P7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from runtime.core.machine import decide
from runtime.core.ops import Op, Outcome
from runtime.errors import ShardSuperseded, StoreRefused, StoreUnavailable
from runtime.stores import postgres_schema as sql
from runtime.stores.defect import unstorable
from runtime.stores.postgres_connection import Address, Session, of_the_operation
from runtime.stores.postgres_function import CALL
from runtime.stores.postgres_loss import Witness, raise_generation
from runtime.stores.postgres_memory import Memory
from runtime.stores.postgres_reading import PostgresReading
from runtime.stores.postgres_setup import create_store
from runtime.stores.postgres_view import PostgresView

# Each turn that finds another's write lets that other go on, so more than a few are a sign of something else.
TURNS = 10
# Of a log that is removed, at once: a commit waits for no more than that.
DROP_BATCHES = 1024
DROP_BYTES = 8 << 20


class PostgresStore(PostgresReading):
    """A Store in the database at a URL or address, which `create_store` made.

    Raises StoreRefused for another deployment, shard count or schema; StoreUnavailable; InputInvalid for the URL."""

    def __init__(self, place: str | Address, *, shards: int, deployment_id: str | None = None) -> None:
        address = Address(place) if isinstance(place, str) else place
        super().__init__(address, shards=shards, deployment_id=deployment_id)
        self._write_lock = Lock()
        self._writer: Session | None = None
        self._name = ""  # of this incarnation's sessions, once the shard is open
        self._memory = Memory()

    def open_shard(self, shard: int, opener: str) -> int:
        """Take the shard; return its new epoch (P11). The sessions of every earlier incarnation have ended then.

        Raises StoreRefused for a shard that is not one of the store's, StoreUnavailable."""
        with self._write_lock:
            self._memory.forget()
            self._opened, self._superseded_by = False, None
            try:
                session = self._writing()
                everybody = f"outlast log:{shard} "
                session.execute(sql.END_SESSIONS, (everybody,))  # one that holds the row would hold us up
                row = session.execute(sql.TAKE_SHARD, (opener, shard)).fetchone()
                if row is None:
                    raise StoreRefused(
                        f"log:{shard} is not a shard of the store at {self.address}, which has {self.meta.shards}."
                    )
                (generation,) = _only(session.execute(sql.READ_GENERATION))
                self._witness = Witness(generation, shard, row[0])
                self._opened = True
                self._name = f"{everybody}epoch {row[0]}."
                session.execute(sql.END_SESSIONS, (everybody,))
                session.execute(sql.NAME_SESSION, (self._name,))
            except psycopg.Error as error:
                self._drop_writer()
                raise self.address.store_error(error) from error
            return int(row[0])

    def commit(self, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        """Decide and store `ops` in order in one transaction, durably (I1, I2, P7).

        Raises ShardSuperseded, StoreFull: nothing is written. StoreUnavailable: read back (P7)."""
        with self._write_lock:
            try:
                return self._commit(shard, shard_epoch, ops, now_ms)
            except StoreUnavailable as error:
                self._memory.forget()
                if self._superseded_by is None:
                    raise
                raise ShardSuperseded(shard, shard_epoch, self._superseded_by) from error
            except psycopg.Error as error:
                self._memory.forget()
                self._drop_writer()
                raise self.address.store_error(error) from error
            except BaseException:
                self._memory.forget()
                raise

    def raise_generation(self, now_ms: int, above: int = 0) -> int:
        """Say that acknowledged chunks are lost, and supersede everybody (P10); return the new generation."""
        try:
            return raise_generation(self.address, now_ms, above)
        except psycopg.Error as error:
            raise self.address.store_error(error) from error

    def drop_log(self, run_id: str) -> int:
        """Remove the end of a log that was given up; return how many positions are left."""
        with self._write_lock:
            try:
                return int(_only(self._writing().execute(sql.DROP_END, (run_id, DROP_BATCHES, DROP_BYTES)))[0])
            except psycopg.Error as error:
                self._drop_writer()
                raise self.address.store_error(error) from error

    def check(self) -> Mapping[str, Any]:
        """Return facts for `doctor` and `/readyz`."""
        return self.facts() | {
            "deploymentId": self.meta.deployment_id,
            "schemaVersion": self.meta.schema_version,
            "shards": self.meta.shards,
        }

    def close(self) -> None:
        """Release everything. Idempotent."""
        with self._write_lock:
            self.close_readers()
            self._drop_writer()

    # --- one group ---

    def _commit(self, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        failed: psycopg.Error | None = None
        for turn in range(TURNS):
            if turn:
                self._memory.forget()
            session = self._writing()
            view = PostgresView(session, self._memory, fresh=turn > 0, generation=self._witness.generation)
            outcomes = _decide_all(view, ops, now_ms)
            try:
                epoch, written = self._write(session, view, shard, shard_epoch, ops, outcomes)
            except psycopg.Error as error:
                # Another shard may have taken the same thread at the same moment; twice, and it is a defect.
                if _met_another(error) and not (failed is not None and of_the_operation(failed)):
                    failed = error
                    continue
                if of_the_operation(error):
                    return self._singly(shard, shard_epoch, ops, now_ms, error)
                raise
            failed = None
            if epoch != shard_epoch:
                raise ShardSuperseded(shard, shard_epoch, epoch)
            if written:
                self._memory.keep(view, shard)
                for head in view.known(shard):
                    self._witness.know(head)
                return outcomes
        raise StoreUnavailable(f"Others write the same runs at {self.address}; nothing was written. Try again.")

    def _write(
        self,
        session: Session,
        view: PostgresView,
        shard: int,
        shard_epoch: int,
        ops: Sequence[Op],  # noqa: ARG002 - for whoever watches this step, as the simulator does
        outcomes: Sequence[Outcome],  # noqa: ARG002 - the same
    ) -> tuple[int, bool]:
        """Return the shard's epoch, and whether the group was written. Raises psycopg.Error."""
        epoch, written = _only(session.execute(CALL, {**view.parameters(), "p_shard": shard, "p_epoch": shard_epoch}))
        return epoch, written

    def _singly(
        self, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int, error: psycopg.Error
    ) -> list[Outcome]:
        """Find the operation that hit a defect, by committing each alone: the others lose nothing but time (P7)."""
        if len(ops) == 1:
            return [unstorable(ops[0], error)]
        return [outcome for op in ops for outcome in self._commit(shard, shard_epoch, [op], now_ms)]

    # --- the writer's session ---

    def _writing(self) -> Session:
        if self._closed:
            raise StoreUnavailable(f"The store at {self.address} was closed by this process.")
        if self._writer is not None and self._writer.usable():
            return self._writer
        self._drop_writer()
        session = self.address.connect(self._name or "outlast writer")
        try:
            self._ours(session)
            if self._name:
                # What the session before was last asked may be under way: it must not happen after it was read back.
                session.execute(sql.END_SESSIONS, (self._name,))
        except BaseException:
            session.close()
            raise
        self._writer = session
        return session

    def _drop_writer(self) -> None:
        if self._writer is not None:
            with suppress(psycopg.Error):
                self._writer.close()
            self._writer = None


def _only(cursor: psycopg.Cursor[TupleRow]) -> TupleRow:
    row = cursor.fetchone()
    assert row is not None
    return row


def _met_another(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.errors.UniqueViolation | psycopg.errors.DeadlockDetected)


def _decide_all(view: PostgresView, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
    view.prefetch(ops)
    outcomes: list[Outcome] = []
    for op in ops:
        try:
            decision = decide(view, op, now_ms)
            view.apply(op, decision)
        except Exception as error:
            if isinstance(error, psycopg.Error) and not of_the_operation(error):
                raise
            outcomes.append(unstorable(op, error))
            continue
        outcomes.append(decision.outcome)
    return outcomes


__all__ = ["PostgresStore", "create_store"]
