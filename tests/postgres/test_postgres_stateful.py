"""The PostgreSQL store does what the plain-dict model does, whatever Hypothesis asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings
from postgres_server import PostgresServer

from runtime.stores.postgres import PostgresStore
from runtime.stores.postgres_connection import Address
from runtime.stores.postgres_setup import create_store
from runtime.testing.store_stateful import state_machine_of

_servers: list[PostgresServer] = []


@pytest.fixture(autouse=True)
def _server(shared_server: PostgresServer) -> Iterator[None]:
    """Hand the server to the state machine, which is no function that a fixture could be given to."""
    _servers.append(shared_server)
    yield
    _servers.clear()


@contextmanager
def _postgres() -> Iterator[Callable[[], PostgresStore]]:
    server = _servers[0]
    server.empty()
    create_store(Address(server.url), "deployment", 1)
    made: list[PostgresStore] = []

    def make() -> PostgresStore:
        made.append(PostgresStore(server.url, shards=1))
        return made[-1]

    yield make
    for store in made:
        store.close()


TestPostgresStore = state_machine_of(_postgres).TestCase
TestPostgresStore.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
