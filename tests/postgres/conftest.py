"""One server for all tests that do it no harm; one of its own for each that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from postgres_server import PostgresServer, forget_template

from runtime.stores.postgres import PostgresStore
from runtime.stores.postgres_connection import Address
from runtime.stores.postgres_setup import create_store

DEPLOYMENT = "deployment"
Open = Callable[..., PostgresStore]


@pytest.fixture(scope="session")
def shared_server() -> Iterator[PostgresServer]:
    """Yield the server that is only ever asked."""
    server = PostgresServer()
    yield server
    server.close()
    forget_template()


@pytest.fixture
def server(shared_server: PostgresServer) -> PostgresServer:
    """Return that server with an empty database."""
    shared_server.empty()
    return shared_server


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """Yield a server that the test may kill or freeze."""
    server = PostgresServer()
    yield server
    server.close()


def opener(url: str, shards: int, made: list[PostgresStore]) -> Open:
    """Make the store at `url`; return what opens it, noting in `made` what it opened."""
    create_store(Address(url), DEPLOYMENT, shards)

    def open_one(other_url: str = url) -> PostgresStore:
        made.append(PostgresStore(other_url, shards=shards, deployment_id=DEPLOYMENT))
        return made[-1]

    return open_one


@pytest.fixture
def one_shard(server: PostgresServer) -> Iterator[Open]:
    """Yield what opens a store of one shard."""
    made: list[PostgresStore] = []
    yield opener(server.url, 1, made)
    for store in made:
        store.close()


@pytest.fixture
def two_shards(server: PostgresServer) -> Iterator[Open]:
    """Yield what opens a store of two shards."""
    made: list[PostgresStore] = []
    yield opener(server.url, 2, made)
    for store in made:
        store.close()
