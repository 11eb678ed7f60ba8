"""Every store does what the plain-dict model does, whatever Hypothesis asks of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings

from runtime.stores.memory import MemoryStore
from runtime.stores.postgres import PostgresStore
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.postgres_model import ModelServer
from runtime.testing.store_stateful import state_machine_of


@contextmanager
def _memory() -> Iterator[Callable[[], MemoryStore]]:
    rows = MemoryStore()
    yield lambda: rows


@contextmanager
def _sqlite() -> Iterator[Callable[[], SqliteStore]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        create_store(path, "deployment")
        made: list[SqliteStore] = []

        def make() -> SqliteStore:
            made.append(SqliteStore(path))
            return made[-1]

        yield make
        for store in made:
            store.close()


@contextmanager
def _postgres_model() -> Iterator[Callable[[], PostgresStore]]:
    yield ModelServer().store


TestMemoryStore = state_machine_of(_memory).TestCase
TestMemoryStore.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestSqliteStore = state_machine_of(_sqlite).TestCase
TestSqliteStore.settings = settings(
    max_examples=30, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TestPostgresStoreOnItsModel = state_machine_of(_postgres_model).TestCase
TestPostgresStoreOnItsModel.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
