"""The production PostgresStore passes the kit on the model of its server: so the model answers as the server does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from runtime.stores.codec import decode_head
from runtime.stores.postgres import PostgresStore
from runtime.testing.postgres_model import ModelServer
from runtime.testing.store_kit import StoreKit


class TestPostgresStoreOnItsModel(StoreKit):
    @pytest.fixture
    def make_store(self) -> Iterator[Callable[[], PostgresStore]]:
        self.server = ModelServer()
        with ExitStack() as stack:
            yield lambda: stack.enter_context(closing(self.server.store()))

    def raw_log(self, run_id: str) -> list[bytes]:
        batches = self.server.tables.batches[run_id].values()
        return b"\n".join(data for *_, data in batches).split(b"\n")

    def raw_status(self, run_id: str) -> str:
        return decode_head(self.server.tables.runs[run_id].head).status.value
