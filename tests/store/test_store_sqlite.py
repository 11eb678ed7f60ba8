"""SqliteStore passes the kit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.store_kit import StoreKit


class TestSqliteStore(StoreKit):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[Callable[[], SqliteStore]]:
        self.path = tmp_path / "store.sqlite"
        create_store(self.path, "deployment")
        made: list[SqliteStore] = []

        def make() -> SqliteStore:
            made.append(SqliteStore(self.path))
            return made[-1]

        yield make
        for store in made:
            store.close()

    def raw_log(self, run_id: str) -> list[bytes]:
        sql = "SELECT data FROM batch JOIN run ON run = ordinal WHERE run_id = ? ORDER BY seq"
        return b"\n".join(data for (data,) in self._rows(sql, run_id)).split(b"\n")

    def raw_status(self, run_id: str) -> str:
        ((status,),) = self._rows("SELECT status FROM run WHERE run_id = ?", run_id)
        return str(status)

    def _rows(self, sql: str, run_id: str) -> list[tuple[bytes]]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(sql, (run_id,)).fetchall()
        finally:
            connection.close()
