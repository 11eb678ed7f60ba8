"""A log of which a part was lost goes on in another generation: nobody is sent it under an offset of before (P10)."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from unit.serve_app.asgi_client import Call, attach, post
from unit.serve_app.local_cluster import World, world

from actors.compose import open_store
from runtime.core.ops import Created
from runtime.engine.clock import StoreThreads, SystemClock
from runtime.engine.shard import Shard
from runtime.settings import Settings
from runtime.testing.sample_ops import create
from serve_app.store_setup import prepare_store, raise_generation

RAISED = 7_000_000


def offset(position: int, generation: int = 0) -> str:
    return f"{generation:016d}_{position:016d}"


class Loss:
    """Puts the store back to what it was, and has it served by another incarnation of the shard."""

    def __init__(self, w: World) -> None:
        self._world = w
        self._kept = copy.deepcopy(w.store._tables)
        self._threads = StoreThreads()
        self.shard: Shard | None = None

    async def come(self) -> None:
        self._world.store._tables = self._kept
        self._world.store.raise_generation(RAISED)
        old = self._world.shard.real
        self.shard = await Shard.open(
            self._world.store, 0, "another", settings=Settings(), clock=SystemClock(), threads=self._threads
        )
        self._world.shard.real = self.shard
        await old.close()

    async def end(self) -> None:
        if self.shard is not None:
            await self.shard.close()
        self._threads.close()


@asynccontextmanager
async def about_to_lose(w: World) -> AsyncIterator[Loss]:
    """Keep the run `r-1` as it is with one word in it, then go on."""
    await (await post(w.app).has(b"run.accepted")).has(b"id: ")
    driver = await w.driver("r-1")
    await driver.begin()
    await driver.say("kept")
    loss = Loss(w)
    await driver.say("lost")
    try:
        yield loss
    finally:
        await loss.end()


async def _leave(call: Call) -> None:
    call.leave()
    await call.done()


async def test_an_offset_of_before_is_gone_wherever_it_points() -> None:
    async with world() as w, about_to_lose(w) as loss:
        await loss.come()
        for position in (1, 3, 4, 99):
            gone = await attach(w.app, offset=offset(position)).done()
            assert (gone.status, gone.code) == (410, "offset_gone")
            assert offset(3, RAISED).encode() in gone.body
            gone = await post(w.app, headers={"Last-Event-ID": offset(position)}).done()
            assert (gone.status, gone.code) == (410, "offset_gone")


@pytest.mark.parametrize("start", ["-1", offset(0)])
async def test_from_the_start_the_log_comes_with_offsets_of_its_generation(start: str) -> None:
    async with world() as w, about_to_lose(w) as loss:
        await loss.come()
        call = await attach(w.app, offset=start).has(b'"kept"')
        driver = await w.driver("r-1")
        await driver.say("other")
        await call.has(b'"other"')
        assert b'"lost"' not in call.body
        ids = [line[4:].decode() for line in call.body.split(b"\n") if line.startswith(b"id: ")]
        assert ids == [offset(position, RAISED) for position in (1, 2, 3, 4)]
        again = await attach(w.app, offset=ids[2]).has(b'"other"')
        assert b'"kept"' not in again.body
        await _leave(call)
        await _leave(again)


@pytest.mark.parametrize("start", ["-1", "now", offset(2)])
async def test_a_stream_that_is_open_is_cut_and_its_client_is_told_when_it_comes_back(start: str) -> None:
    async with world() as w, about_to_lose(w) as loss:
        call = attach(w.app, offset=start)
        if start != "now":
            await call.has(b'"lost"')
        else:
            await call.has(b": ")
        await loss.come()
        driver = await w.driver("r-1")
        await driver.say("other", "more", "and more")
        await call.done()
        assert (call.cut, call.ended) == (True, False)
        assert b'"other"' not in call.body
        assert b'"more"' not in call.body
        back = await attach(w.app, offset=offset(4)).done()
        assert (back.status, back.code) == (410, "offset_gone")


async def test_an_open_stream_of_a_run_that_is_gone_is_cut() -> None:
    async with world() as w:
        loss = Loss(w)
        call = await post(w.app).has(b"run.accepted")
        await loss.come()
        await call.done()
        assert call.cut
        gone = await attach(w.app, offset="-1").done()
        assert (gone.status, gone.code) == (404, "run_not_found")
        again = await post(w.app).has(offset(1, RAISED).encode())
        await _leave(again)
        await loss.end()


async def test_who_comes_to_a_run_that_goes_on_is_not_shown_its_lost_end_while_a_slow_client_has_it() -> None:
    async with world() as w:
        first = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.begin()
        await driver.say("kept")
        loss = Loss(w)
        slow = await attach(w.app, offset="-1").has(b'"kept"')
        slow.stall()
        await driver.say("lost")
        await driver.finish()
        await first.done()
        await loss.come()
        back = await attach(w.app, offset="-1").has(b'"kept"')
        joined = await post(w.app).has(b'"kept"')
        await (await w.driver("r-1")).say("other")
        for call in (back, joined):
            await call.has(b'"other"')
            assert b'"lost"' not in call.body
            assert call.ids() == [offset(position, RAISED) for position in (1, 2, 3, 4)]
        for call in (back, joined, slow):
            await _leave(call)
        await loss.end()


async def test_a_log_that_was_closed_keeps_its_offsets() -> None:
    async with world() as w:
        await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.begin()
        await driver.finish()
        loss = Loss(w)
        await loss.come()
        rest = await attach(w.app, offset=offset(1)).done()
        assert rest.status == 200
        assert offset(3).encode() in rest.body
        await loss.end()


def test_whoever_restores_a_store_has_one_call_for_it(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    deployment = prepare_store(settings)
    raised = [raise_generation(settings) for _ in range(2)]
    assert 0 < raised[0] < raised[1]
    with closing(open_store(settings, deployment)) as store:
        epoch = store.open_shard(0, "test")
        (made,) = store.commit(0, epoch, [create()], 1)
        assert isinstance(made, Created)
        assert made.head.generation == raised[1]
