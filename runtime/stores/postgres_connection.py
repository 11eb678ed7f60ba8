"""Sessions with the PostgreSQL server: how they are made, how long they are waited for, and what their errors mean.

Nothing waits for ever. The server ends a statement after STATEMENT_MS, and a wait for a row and a transaction that
nobody goes on with after LOCK_MS. This side waits PATIENCE_S for an answer and hangs up then: a server that is
frozen shows in no other way, since its kernel goes on acknowledging what it is sent.

The password of the URL is in no error and no log: whatever libpq says is searched for it first.
"""

from __future__ import annotations

import select
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from runtime.errors import InputInvalid, StoreError, StoreFull, StoreRefused, StoreUnavailable

RV = TypeVar("RV")

SCHEMES: Final = ("postgresql://", "postgres://")
LEAST_VERSION: Final = 140000  # pg_terminate_backend that waits
PATIENCE_S: Final = 2.0  # below the shortest useful lease: an outage must be seen before drivers seem lost (P13)
CONNECT_S: Final = 2  # of each host that the URL names; libpq knows no shorter one
LOCK_MS: Final = 1000
STATEMENT_MS: Final = 5000
# Found by the kernel: a host that is gone, in about 5 s.
_TCP: Final = {
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}
_FULL: Final = frozenset({"53100"})
_DAMAGED: Final = ("XX001", "XX002")
_OF_THE_OPERATION: Final = ("22", "23", "54")  # bad values, constraints, limits
# What a person has to mend: rights, a wrong name or password, a schema that is not ours.
_REFUSED: Final = ("28", "3D", "42", "0A")
_TERMINATED: Final = 0  # polled without waiting


class Session(psycopg.Connection[TupleRow]):
    """A connection in autocommit mode that hangs up when an answer takes longer than `patience_s`."""

    patience_s: float = PATIENCE_S

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Raises OperationalError after `patience_s`: whether the server did what was asked is not known."""
        try:
            return super().wait(gen, interval, self.patience_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout:  # noqa: SLF001 - the one name it has
            self.close()
            raise psycopg.OperationalError(f"no answer within {self.patience_s:g} s") from None

    def usable(self) -> bool:
        """Return whether it still stands, idle: one that was ended has its end lying there to be read."""
        if self.closed:
            return False
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not poll.poll(_TERMINATED)


class Address:
    """Where the store is, from a URL. `str` of it is for people and holds no password."""

    def __init__(self, url: str) -> None:
        """Raises InputInvalid for a URL that libpq does not understand."""
        try:
            self._params: dict[str, Any] = dict(conninfo_to_dict(url))
        except psycopg.ProgrammingError:
            raise InputInvalid(  # libpq's own words quote the URL, with the password in it
                "OUTLAST_STORE is no URL that PostgreSQL's libpq understands. It reads "
                "postgresql://USER:PASSWORD@HOST:PORT/DATABASE; special characters in it are written as %XX.",
                code="setting_invalid",
                field="store",
            ) from None
        self._url = url

    def __str__(self) -> str:
        user, host, port = (self._params.get(name) for name in ("user", "host", "port"))
        place = f"{host or 'localhost'}{f':{port}' if port else ''}/{self._params.get('dbname') or user or ''}"
        return f"{user}@{place}" if user else place

    __repr__ = __str__

    def connect(self, name: str, patience_s: float = PATIENCE_S, **settings: str | int) -> Session:
        """Return a session that the server knows as `name`, with these settings of the server's.

        Raises psycopg.OperationalError."""
        wanted: dict[str, str | int] = {
            "lock_timeout": LOCK_MS,
            "idle_in_transaction_session_timeout": LOCK_MS,
            "statement_timeout": STATEMENT_MS,
            "synchronous_commit": "on",  # whatever the server's own default (P10)
            **settings,
        }
        options = " ".join(f"-c {key}={value}" for key, value in wanted.items())
        params = {"connect_timeout": CONNECT_S, **_TCP, **self._params, "application_name": name}
        params["options"] = f"{self._params.get('options') or ''} {options}".strip()
        # Prepared statements would cost a round trip more now and then, and gain little: the work is in functions.
        session = Session.connect(**params, autocommit=True, prepare_threshold=None)
        session.patience_s = patience_s
        return session

    def said(self, error: BaseException) -> str:
        """Return what went wrong, in one line without the password."""
        line = (str(error).strip() or type(error).__name__).partition("\n")[0]
        password = self._params.get("password")
        for secret in filter(None, (self._url, password)):
            line = line.replace(str(secret), "***")
        return line

    def store_error(self, error: psycopg.Error) -> StoreError:
        """Return what the error means: full, refused (a person must act), or unavailable (it may come back)."""
        state, said = error.sqlstate or "", self.said(error)
        if state in _FULL:
            return StoreFull(f"No space is left at {self}: {said}. Nothing of the last transaction was kept.")
        if state.startswith(_DAMAGED):
            return StoreRefused(f"The store at {self} is damaged: {said}. Restore the database from a backup.")
        if state.startswith(_REFUSED):
            return StoreRefused(f"The store at {self} cannot be used: {said}.")
        return StoreUnavailable(f"The store at {self} does not answer: {said}.")


def of_the_operation(error: psycopg.Error) -> bool:
    """Return whether a statement failed for what it was asked to write, not because of the store."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.DataError)  # psycopg's own: a value without a form
    return error.sqlstate.startswith(_OF_THE_OPERATION)
