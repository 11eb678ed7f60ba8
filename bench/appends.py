"""How many appends a second one shard stores, on SQLite and on PostgreSQL beside it: 1, 10 and 100 runs at once.

Through the production shard in this process (its group commit, its OS threads), without Ray or HTTP. Each run has one
append of one small chunk in flight, as a driver has (P8), and sends the next when it is answered: durable, so both
stores wait for the disk. The clock runs over SECONDS of it, after a tenth of that.

The PostgreSQL server is one of the tests' own (`tests/postgres_server.py`) on this machine, with `fsync` on and its
data on the same disk as the SQLite file. Without its programs the rows of PostgreSQL are left out.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import beside  # noqa: F401 - for the next
from postgres_server import PostgresServer, programs
from rows import Figure, Figures

from runtime.core.ops import Appended
from runtime.engine.clock import StoreThreads, SystemClock
from runtime.engine.shard import Shard
from runtime.ports import Store
from runtime.settings import Settings
from runtime.stores.postgres import PostgresStore
from runtime.stores.postgres_connection import Address
from runtime.stores.postgres_setup import create_store as create_postgres
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.sample_ops import append, claim, create, live

RUNS = (1, 10, 100)
SECONDS, QUICK_SECONDS = 5.0, 1.0
DURABLE = {"fsync": "on", "full_page_writes": "on"}


def rows_of(store: str) -> tuple[str, ...]:
    """Return the names of a store's rows."""
    return tuple(f"append_per_s_{store}_{runs}" for runs in RUNS)


async def sqlite(quick: bool) -> Figures:
    """Measure SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        create_store(path, "bench")
        with closing(SqliteStore(path)) as store:
            return await _measure("sqlite", store, quick)


async def postgres(quick: bool) -> Figures:
    """Measure PostgreSQL."""
    with _server() as url:
        create_postgres(Address(url), "bench", 1)
        with closing(PostgresStore(url, shards=1)) as store:
            return await _measure("postgres", store, quick)


def no_postgres() -> str | None:
    """Return why PostgreSQL cannot be measured here, or None."""
    return None if programs() else "PostgreSQL's server is not installed (or name its folder in OUTLAST_TEST_POSTGRES)"


@contextmanager
def _server() -> Iterator[str]:
    server = PostgresServer(**DURABLE)
    try:
        yield server.url
    finally:
        server.close()


async def _measure(name: str, store: Store, quick: bool) -> Figures:
    seconds = QUICK_SECONDS if quick else SECONDS
    figures: Figures = {}
    async with _shard(store) as shard:
        for runs in RUNS:
            rate, appends = await _rate(shard, [f"{runs}-{place}" for place in range(runs)], seconds)
            figures[f"append_per_s_{name}_{runs}"] = Figure(rate, appends)
    return figures


@asynccontextmanager
async def _shard(store: Store) -> AsyncIterator[Shard]:
    threads = StoreThreads()
    shard = await Shard.open(store, 0, "bench", settings=Settings(), clock=SystemClock(), threads=threads)
    try:
        yield shard
    finally:
        await shard.close()
        threads.close()


async def _rate(shard: Shard, run_ids: list[str], seconds: float) -> tuple[float, int]:
    for run_id in run_ids:
        await shard.submit(create(run_id, f"thread-of-{run_id}"))
        await shard.submit(claim(0, "bench", run_id))
    counted = 0
    begins = time.monotonic() + seconds / 10
    ends = begins + seconds

    async def drive(run_id: str) -> None:
        nonlocal counted
        seq = 1
        while time.monotonic() < ends:
            outcome = await shard.submit(append(live(seq, 1, "a line of an agent's output", run_id=run_id)))
            assert isinstance(outcome, Appended)
            seq = outcome.next_seq
            counted += begins <= time.monotonic() < ends

    await asyncio.gather(*(drive(run_id) for run_id in run_ids))
    return counted / seconds, counted


def main(quick: bool) -> Figures:
    """Measure both; for a look without an instance."""
    return asyncio.run(sqlite(quick)) | asyncio.run(postgres(quick))
