"""Locks that cross hosts: advisory locks of a PostgreSQL server, which may be the one of Outlast's store.

Each lock that is held or waited for is one session of the server. The server lets go when the session ends, so the
lease is as good as the session: it is asked every `ping_s`, and `lost` is set when it does not answer in `patience_s`.
Between the end of a session and that moment two may hold one lock: a lock protects nothing (`locks.py`), fences do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from runtime.delivery.locks import Lease
from runtime.errors import StoreUnavailable

PING_S = 2.0
PATIENCE_S = 5.0

# Of our own namespace of advisory locks: a text cannot be one, a digest of 64 bits can.
_TAKE = "select pg_advisory_lock(hashtextextended(%s, 6420))"


class PostgresLocks:
    """A `LockStore` for every process that reaches the server at `url`."""

    def __init__(self, url: str, *, ping_s: float = PING_S, patience_s: float = PATIENCE_S) -> None:
        self._url = url
        self._ping_s = ping_s
        self._patience_s = patience_s

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[Lease]:
        """Hold the lock `key`. Raises StoreUnavailable if the server cannot be reached or ends the wait."""
        lease = Lease()
        session = await self._session()
        try:
            try:
                await session.execute(_TAKE, (key,))
            except psycopg.Error as error:
                raise _unavailable(error) from None
            watch = asyncio.create_task(self._watch(session, lease), name=f"lock {key}")
            try:
                yield lease
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        finally:
            await session.close()  # which lets go of the lock, or of the wait for it

    async def _session(self) -> psycopg.AsyncConnection[tuple[object, ...]]:
        try:
            return await psycopg.AsyncConnection.connect(
                self._url,
                autocommit=True,
                application_name="outlast lock",
                connect_timeout=int(self._patience_s) or 1,
                options="-c statement_timeout=0 -c lock_timeout=0",
            )
        except psycopg.Error as error:
            raise _unavailable(error) from None

    async def _watch(self, session: psycopg.AsyncConnection[tuple[object, ...]], lease: Lease) -> None:
        try:
            while True:
                await asyncio.sleep(self._ping_s)
                async with asyncio.timeout(self._patience_s):
                    await session.execute("select 1")
        except (psycopg.Error, TimeoutError):
            lease.lost.set()


def _unavailable(error: psycopg.Error) -> StoreUnavailable:
    """Return the error without libpq's words, which may quote the URL and the password in it."""
    return StoreUnavailable(f"The locks' PostgreSQL server does not answer ({error.sqlstate or type(error).__name__}).")
