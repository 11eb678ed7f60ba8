"""Locks that cross hosts: advisory locks of a real server pass the kit, and a session's end is a lock's loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from postgres_server import PostgresServer
from waiting import until

from runtime.delivery.locks import LockStore
from runtime.delivery.postgres_locks import PostgresLocks
from runtime.errors import StoreUnavailable
from runtime.testing.lock_store_kit import LockStoreKit

SESSIONS = "from pg_stat_activity where application_name = 'outlast lock'"


class TestPostgresLocks(LockStoreKit):
    @pytest.fixture(autouse=True)
    def _server(self, shared_server: PostgresServer) -> None:
        self.url = shared_server.url

    async def make(self) -> Callable[[], LockStore]:
        return lambda: PostgresLocks(self.url)


async def test_a_lease_is_lost_with_its_session_and_the_next_one_gets_the_lock(shared_server: PostgresServer) -> None:
    locks = PostgresLocks(shared_server.url, ping_s=0.05)
    async with asyncio.timeout(30), locks.hold("a") as lease:
        assert not lease.lost.is_set()
        with psycopg.connect(shared_server.url, autocommit=True) as other:
            other.execute(f"select pg_terminate_backend(pid) {SESSIONS}")
        await lease.lost.wait()
        async with locks.hold("a") as second:
            assert not second.lost.is_set()
    with psycopg.connect(shared_server.url, autocommit=True) as other:
        held = "select 1 from pg_locks where locktype = 'advisory'"
        await until(lambda: other.execute(held).fetchone() is None, "no lock that anybody holds")


async def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    with pytest.raises(StoreUnavailable) as told:
        async with PostgresLocks("postgresql://u:secret@127.0.0.1:1/db").hold("a"):
            pass
    assert "secret" not in str(told.value)
