"""One server for all tests that do it no harm; one of its own for each that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from postgres_server import PostgresServer

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


@pytest.fixture
def one_shard(server: PostgresServer) -> Iterator[Open]:
    """Yield what opens a store of one shard."""
    with opening(server.url, 1) as open_one:
        yield open_one


@pytest.fixture
def two_shards(server: PostgresServer) -> Iterator[Open]:
    """Yield what opens a store of two shards."""
    with opening(server.url, 2) as open_one:
        yield open_one


@pytest.fixture
def own_store(own_server: PostgresServer) -> Iterator[Open]:
    """Yield what opens a store of one shard on a server that the test may kill or freeze."""
    with opening(own_server.url, 1) as open_one:
        yield open_one


@contextmanager
def opening(url: str, shards: int) -> Iterator[Open]:
    """Make the store at `url`; yield what opens it, there or at another URL; close what was opened."""
    create_store(Address(url), DEPLOYMENT, shards)
    with ExitStack() as stack:

        def open_one(other_url: str = url) -> PostgresStore:
            return stack.enter_context(closing(PostgresStore(other_url, shards=shards, deployment_id=DEPLOYMENT)))

        yield open_one
