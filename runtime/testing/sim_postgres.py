"""PostgreSQL in a history: the production `PostgresStore` in each shard's process, on one modelled server.

Worse than a store of one process in three ways: a commit is several statements, and those of other shards come in
between; a commit whose session broke may happen later; a restart of the server undoes what was under way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, cast

import psycopg

from runtime.core.ops import Op, Outcome
from runtime.errors import StoreError
from runtime.ports import Store
from runtime.stores.postgres import PostgresStore
from runtime.stores.postgres_connection import Session
from runtime.stores.postgres_view import PostgresView
from runtime.testing.postgres_model import WRITES, Fate, ModelServer
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_store import Crossing, StoreTrouble, WatchedStore
from runtime.testing.sim_turns import PROCESS

LATE_WITHIN_S = 3.0  # a statement that a broken session left under way happens within this


class SimPostgres:
    """The server of one history, and the store as the judge sees it (`truth`)."""

    def __init__(
        self, loop: SimLoop, shards: int, trouble: StoreTrouble, crossing: Crossing, write: Callable[[str], None]
    ) -> None:
        self.late = 0  # statements that are under way
        self._opened: list[tuple[str, PostgresStore]] = []  # by which process
        self.server = ModelServer(shards)
        self.server.before = crossing.cross
        self.server.fate = self._fate
        self.server.later = self._later
        self.truth: Store = self.server.store(calm=True)
        self._loop = loop
        self._rng = random.Random(loop.rng.random())
        self._trouble = trouble
        self._write = write  # a line of the trace
        self.server.clock_ms = loop.wall_ms
        self.went_back: Callable[[int, int], None] = lambda _generation, _supervisor: None
        self.server.raised = self._tell
        trouble.fell = self._fell
        trouble.rose = self._rose

    def open(self) -> Store:
        """Return the store as a process has it that just began. Raises StoreUnavailable."""
        store = _Noting(self.server.address(), shards=len(self.server.tables.shards))
        store.write = self._write
        self._opened.append((PROCESS.get(), store))
        return WatchedStore(store, self._trouble, None)

    def _fate(self, statement: str) -> Fate:
        if statement not in WRITES:
            return Fate.ANSWERED  # reads fail in `WatchedStore`
        chance = self._rng.random()
        if chance < self._trouble.before:
            return self._rng.choice([Fate.UNDONE, Fate.LATE, Fate.LATE, Fate.NO_SPACE])
        return Fate.UNHEARD if chance < self._trouble.before + self._trouble.after else Fate.ANSWERED

    def _later(self, happen: Callable[[], None]) -> None:
        self.late += 1

        def at_last() -> None:
            self.late -= 1
            self._write("postgres: a statement of a broken session comes late")
            happen()

        self._loop.call_later(LATE_WITHIN_S * self._rng.random() ** 2, at_last, context=Context())

    def lose_the_end(self, within_s: float) -> None:
        """Keep what is stored now, and be that again in a while: promote a standby, or put a copy back (P10).

        A copy that is put back while a shard is away could not be told from what was there: it is not done here."""
        earlier = self.server.tables.copy()

        def go_back() -> None:
            witnesses = self._witnesses()
            away = {store._witness.shard for store in witnesses} != set(self.server.tables.shards)  # noqa: SLF001
            failover = away or self._rng.randrange(2) == 0
            self._write(f"postgres: goes back, {'on another timeline' if failover else 'as a copy'}")
            generation = self.server.tables.generation
            self.server.go_back(earlier, failover=failover)
            self.went_back(generation, self.server.tables.supervisor[0])
            for store in [] if failover else witnesses:
                with suppress(StoreError):
                    store.check()  # somebody asks before any of them is killed

        self._loop.call_later(within_s, go_back, context=Context())

    def _witnesses(self) -> list[PostgresStore]:
        """Return the stores of the newest incarnations that run."""
        newest = self.server.tables.shards
        running = [store for process, store in self._opened if self._loop.runs(process)]
        return [store for store in running if newest.get(store._witness.shard) == store._witness.epoch]  # noqa: SLF001

    def _tell(self) -> None:
        tables = self.server.tables
        self._write(f"postgres: is of generation {tables.generation}")
        self.went_back(-1, tables.supervisor[0])

    def _fell(self) -> None:
        self._write("postgres: restarts")
        self.server.down = True
        self.server.restart()

    def _rose(self) -> None:
        self.server.down = False


class _Noting(PostgresStore):
    """Tells the server, with each group, what it answers: so the watch hears of it when it happens."""

    write: Callable[[str], None]

    def _write(
        self,
        session: Session,
        view: PostgresView,
        shard: int,
        shard_epoch: int,
        ops: Sequence[Op],
        outcomes: Sequence[Outcome],
    ) -> tuple[int, bool]:
        cast(Any, session).note = (shard, shard_epoch, ops, outcomes)
        try:
            epoch, written = super()._write(session, view, shard, shard_epoch, ops, outcomes)
        except psycopg.errors.UniqueViolation as error:
            self.write(f"postgres: log:{shard} meets another at {error}")
            raise
        if epoch == shard_epoch and not written:
            self.write(f"postgres: log:{shard} decided on what is no longer so")
        return epoch, written
