"""PostgresStore passes the kit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from postgres_server import PostgresServer

from runtime.stores.postgres import PostgresStore
from runtime.testing.store_kit import StoreKit

Open = Callable[..., PostgresStore]


class TestPostgresStore(StoreKit):
    server: PostgresServer

    @pytest.fixture
    def make_store(self, server: PostgresServer, one_shard: Open) -> Open:
        self.server = server
        return one_shard

    def raw_log(self, run_id: str) -> list[bytes]:
        sql = "SELECT data FROM outlast.batch JOIN outlast.run ON run = ordinal WHERE run_id = %s ORDER BY seq"
        return b"\n".join(bytes(data) for (data,) in self._rows(sql, run_id)).split(b"\n")

    def raw_status(self, run_id: str) -> str:
        ((status,),) = self._rows("SELECT status FROM outlast.run WHERE run_id = %s", run_id)
        return str(status)

    def _rows(self, sql: str, run_id: str) -> list[tuple[bytes]]:
        with self.server.admin() as admin:
            return admin.execute(sql, (run_id,)).fetchall()
