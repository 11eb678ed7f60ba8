"""A PostgreSQL server as far as the store can tell: the production `PostgresStore` runs on it, without a server.

`postgres_tables.py` says what each statement does. Here is what may happen around one, and what whoever tests decides:

    before     others' commits come between what one decided on, what it looks at, and what it writes
    fate       it is done and answered; or there is no space; or the session breaks, and it is not done, or done
               unheard, or done later
    sessions   are ended by another (`pg_terminate_backend`), or all at once by a restart: what they had under way is
               undone, what they had committed stays

A statement that a broken session left under way happens when it is called back, unless the session was ended before.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, cast

import psycopg

from runtime.stores import postgres_schema as sql
from runtime.stores.postgres import PostgresStore
from runtime.stores.postgres_connection import Address, Session
from runtime.stores.postgres_function import CALL
from runtime.stores.postgres_loss import RAISE
from runtime.testing.postgres_rows import Query, Rows, Values
from runtime.testing.postgres_tables import Tables

WRITES = frozenset({CALL, sql.TAKE_SHARD, sql.DROP_END})


class Fate(Enum):
    """What becomes of one statement."""

    ANSWERED = auto()
    NO_SPACE = auto()
    UNDONE = auto()
    UNHEARD = auto()
    LATE = auto()


class ModelServer:
    """One server with one store. What is a Callable here is the hook of whoever tests."""

    def __init__(self, shards: int = 1) -> None:
        self.tables = Tables(shards)
        self.tables.server = lambda: (f"model {self.timeline}", self.clock_ms())
        self.timeline = 1
        self.clock_ms: Callable[[], int] = lambda: 0
        self.down = False
        self.sessions: list[ModelSession] = []
        self.before: Callable[[], None] = lambda: None
        self.fate: Callable[[str], Fate] = lambda _statement: Fate.ANSWERED
        self.later: Callable[[Callable[[], None]], None] = lambda _happen: None
        self.raised: Callable[[], None] = lambda: None  # told of each generation
        self.committed: Callable[[Any], None] = lambda _note: None  # gets its session's note on a group that is written

    def address(self, *, calm: bool = False) -> Address:
        """Return what leads here; `calm`: nothing happens to the statements of these sessions."""
        return _ModelAddress(self, calm=calm)

    def store(self, *, calm: bool = False) -> PostgresStore:
        """Return the production store as another process would open it."""
        return PostgresStore(self.address(calm=calm), shards=len(self.tables.shards))

    def restart(self) -> None:
        """End every session; what was under way never happens."""
        for session in [session for session in self.sessions if not session.calm]:
            self._end(session)

    def go_back(self, earlier: Tables, *, failover: bool) -> None:
        """Be what it was when `earlier` was copied: a standby that is promoted, or a data folder that was put back."""
        self.restart()
        self.tables = earlier
        self.timeline += failover

    def connect(self, name: str, *, calm: bool) -> ModelSession:
        """Open a session. Raises OperationalError while the server is down."""
        if self.down and not calm:
            raise psycopg.OperationalError("the model is down")
        session = ModelSession(self, name, calm=calm)
        self.sessions.append(session)
        return session

    def run(self, session: ModelSession, statement: str, values: Values) -> Rows:
        """Do what a session is asked. Raises psycopg.Error, as a server or the way to it would."""
        if session.calm:
            return self._do(session, Query(statement, values, session), session.note)
        if statement == CALL:
            self.before()  # since whoever asks has decided
        fate = Fate.UNDONE if self.down or session.ended else self.fate(statement)
        if fate is Fate.NO_SPACE:
            raise psycopg.errors.DiskFull("the model has no space left")
        query = Query(statement, values, session, partial(self._others, session))
        if fate is Fate.LATE and statement in WRITES:
            self.later(partial(self._happen, session, query, session.note))
        if fate in (Fate.UNDONE, Fate.LATE):
            session.broken = True
            raise psycopg.OperationalError("the model does not answer")
        rows = self._do(session, query, session.note)
        if fate is Fate.UNHEARD:
            session.broken = True
            raise psycopg.OperationalError("the model's answer was lost")
        return rows

    def _others(self, session: ModelSession) -> None:
        self.before()
        if session.ended:
            raise psycopg.errors.AdminShutdown("terminating connection due to administrator command")

    def _happen(self, session: ModelSession, query: Query, note: Any) -> None:
        if session.ended:
            return
        try:
            self._do(session, query, note)
        except psycopg.Error:
            return  # and nobody is told

    def _do(self, session: ModelSession, query: Query, note: Any) -> Rows:
        if query.statement == sql.END_SESSIONS:
            return [(self._end_sessions(query.values[0], session),)]
        if query.statement == sql.NAME_SESSION:
            session.name = query.values[0]
            return [(session.name,)]
        rows = self.tables.answer(query)
        if query.statement == RAISE and rows[0][0]:
            self.raised()
        if query.statement == CALL and rows[0][1] and note is not None:
            self.committed(note)
        return rows

    def _end_sessions(self, prefix: str, by: ModelSession) -> int:
        ended = [each for each in self.sessions if each is not by and each.name.startswith(prefix)]
        for session in ended:
            self._end(session)
        return len(ended)

    def _end(self, session: ModelSession) -> None:
        session.ended = True
        self.sessions.remove(session)
        self.tables.locks.pop(session, None)


class ModelSession:
    """Stands in for a `Session`. `broken`: no answer comes any more, but what was asked may happen; `ended`: by the
    server, and nothing of it will."""

    def __init__(self, server: ModelServer, name: str, *, calm: bool) -> None:
        self.name = name
        self.calm = calm
        self.closed = False
        self.broken = False
        self.ended = False
        self.note: Any = None  # of the group that it is asked to write; the server hands it on
        self._server = server

    def execute(self, statement: str, values: Values = (), *, binary: bool = False) -> _Answer:
        """Run a statement. Raises psycopg.Error."""
        del binary
        if self.closed or self.broken:
            raise psycopg.OperationalError("the session is closed")
        _refuse_names(values)
        return _Answer(self._server.run(self, statement, values))

    def usable(self) -> bool:
        """Return whether it still stands."""
        return not (self.closed or self.broken or self.ended)

    def close(self) -> None:
        """Hang up."""
        self.closed = True


class _Answer:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> Rows:
        return self._rows


def _refuse_names(values: Values) -> None:
    """Raise what psycopg does for text that PostgreSQL cannot hold."""
    for value in values.values() if isinstance(values, dict) else values:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                if "\0" in text:
                    raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
                text.encode()


class _ModelAddress(Address):
    def __init__(self, server: ModelServer, *, calm: bool) -> None:
        super().__init__("postgresql://model/outlast")
        self._server = server
        self._calm = calm

    def connect(self, name: str, patience_s: float = 0.0, **settings: str | int) -> Session:
        """Return a session of the model. Raises psycopg.OperationalError."""
        del patience_s, settings
        return cast("Session", self._server.connect(name, calm=self._calm))


__all__ = ["WRITES", "Fate", "ModelServer", "ModelSession"]
