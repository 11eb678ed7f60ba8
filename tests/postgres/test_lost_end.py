"""A real server that lacks its end, under a shard that lives on: its readers and its driver are told (P10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from postgres_server import PostgresServer
from waiting import until

from runtime.core.ops import Appended, Claimed, Superseded
from runtime.engine.clock import StoreThreads, SystemClock
from runtime.engine.shard import Shard
from runtime.errors import ShardSuperseded, StoreError
from runtime.settings import Settings
from runtime.stores.postgres import PostgresStore
from runtime.testing.sample_ops import RUN, append, claim, create, live, text

T = TypeVar("T")
Open = Callable[..., PostgresStore]


@pytest.mark.parametrize("new_timeline", [True, False])
def test_what_is_lost_is_never_told_under_an_old_offset(
    own_server: PostgresServer, own_store: Open, new_timeline: bool
) -> None:
    asyncio.run(_lose(own_server, own_store, new_timeline))


async def _lose(server: PostgresServer, open_store: Open, new_timeline: bool) -> None:
    threads = StoreThreads()

    async def opened() -> Shard:
        store = await threads.read(open_store)
        return await Shard.open(store, 0, "test", settings=Settings(), clock=SystemClock(), threads=threads)

    old = await opened()
    for op in (create(), claim(), append(live(1, 1, "kept"))):
        await old.submit(op)
    await asyncio.to_thread(server.keep)
    await _asked(lambda: old.submit(append(live(2, 1, "lost"))))
    assert (await old.read(RUN, 0, 0)).next == 3
    parked = asyncio.create_task(_asked(lambda: old.read(RUN, 3, 25.0)))

    await asyncio.to_thread(lambda: server.go_back(new_timeline=new_timeline))
    with pytest.raises(ShardSuperseded):
        await _asked(lambda: old.submit(append(live(3, 1, "late"))))
    with pytest.raises(ShardSuperseded):
        await parked
    await old.close()

    new = await opened()
    record = await new.record(RUN)
    assert record is not None
    head = record[0]
    assert (head.next_seq, head.generation > 0, head.driver_epoch >= head.generation) == (2, True, True)
    assert isinstance(await new.submit(append(live(2, 1, "late"))), Superseded)
    taken = await new.submit(claim(head.driver_epoch, "successor"))
    assert isinstance(taken, Claimed)
    other = append(live(2, taken.head.driver_epoch, "other"))
    assert isinstance(await new.submit(other), Appended)
    reply = await new.read(RUN, 0, 0)
    assert (reply.generation, reply.tail.split(b"\n")[1:]) == (head.generation, [text("kept"), text("other")])

    await asyncio.to_thread(server.crash)
    await asyncio.to_thread(server.restart)
    again = await _asked(lambda: new.submit(append(live(3, taken.head.driver_epoch, "more"))))
    assert isinstance(again, Appended), "a restart that loses nothing is no loss"
    assert again.head.generation == head.generation
    await new.close()
    threads.close()


async def _asked(call: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer, as every caller of a shard does."""
    answers: list[T] = []

    async def ask() -> bool:
        try:
            answers.append(await call())
        except StoreError:
            return False
        return True

    await until(ask, "an answer", 30)
    return answers[0]
