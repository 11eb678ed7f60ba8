"""Calls of host tools: once by their id, whoever drives, and whoever is asleep meanwhile (by seeds:
`test_call_histories.py`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from unit.engine.call_spool import CALL, Spool, claimed_by, events, serve
from unit.engine.stage import create
from waiting import until

from runtime.core.batch import Batch
from runtime.engine.clock import StoreThreads, SystemClock
from runtime.engine.host_calls import INTERRUPTED, MOST_AT_ONCE, Lent, Work, on_thread
from runtime.engine.shard import Shard
from runtime.host_tools import HostTool, ToolCancelled, ToolContext, ToolError, tool
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore

Runs = Callable[[str, Work], Awaitable[dict[str, Any]]]


class Scene:
    """A run's log and spool, and functions that a test can stop in the middle."""

    def __init__(self, shard: Shard, store: MemoryStore) -> None:
        self.shard = shard
        self.store = store
        self.spool = Spool()
        self.inside = threading.Event()
        self.go = threading.Event()
        self.called: list[str] = []
        self.ended: list[str] = []

    def wait(self, context: ToolContext) -> str:
        """Wait, and say so."""
        self.called.append(context.call_id)
        context.emit("waits", len(self.called))
        self.inside.set()
        assert self.go.wait(50.0)
        try:
            context.emit("waited", {})
        except ToolCancelled:
            self.ended.append("cancelled")
            raise
        return "waited"

    @asynccontextmanager
    async def served(
        self, *functions: Callable[..., Any], expected: int = 0, timeout_s: float = 50.0, run: Runs = on_thread
    ) -> AsyncIterator[None]:
        """Serve these functions meanwhile, under the epoch after `expected`."""
        tools = {made.__name__: HostTool(made.__name__, made) for made in functions}
        claimed = await claimed_by(self.shard, expected)
        work = serve(self.shard, SystemClock(), claimed, Lent(tools, timeout_s, run), self.spool)
        task = asyncio.create_task(work)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def begun(self) -> None:
        await until(self.inside.is_set, "the function to be called")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    store, threads = MemoryStore(), StoreThreads()
    shard = await Shard.open(store, 0, "test", settings=Settings(), clock=SystemClock(), threads=threads)
    await shard.submit(create())
    scene = Scene(shard, store)
    yield scene
    scene.go.set()
    await shard.close()
    threads.close()


async def test_a_call_is_answered_and_its_events_are_in_the_log(scene: Scene) -> None:
    def add(a: int, context: ToolContext, b: int = 1) -> int:
        context.emit("adds", {"a": a})
        return a + b

    scene.spool.put("add", a=41)
    async with scene.served(add):
        await scene.spool.answered()
    assert scene.spool.said() == ("42", False)
    assert events(scene.store, "adds") == [{"a": 41}]
    assert events(scene.store, "tool.begun") == [{"callId": CALL, "tool": "add"}]
    (ended,) = events(scene.store, "tool.ended")
    assert ended == {"callId": CALL, "tool": "add", "content": [{"type": "text", "text": "42"}], "isError": False}


async def test_what_goes_wrong_in_a_call_is_its_answer(scene: Scene) -> None:
    async def late() -> None:
        await asyncio.Event().wait()

    def refuse() -> None:
        raise ToolError("not today")

    def breaks() -> None:
        raise KeyError("x")

    said = {
        "late": "late did not end within 0.05 s.",
        "refuse": "not today",
        "breaks": "breaks failed: KeyError: 'x'",
        "nope": "There is no tool 'nope' here any more; there are: breaks, late, refuse.",
    }
    ids = {name: f"{at:032d}" for at, name in enumerate(said)}
    for name, id in ids.items():
        scene.spool.put(name, id)
    async with scene.served(late, refuse, breaks, timeout_s=0.05):
        for id in ids.values():
            await scene.spool.answered(id)
    assert {name: scene.spool.said(id) for name, id in ids.items()} == {
        name: (text, True) for name, text in said.items()
    }


async def test_a_call_that_a_lost_driver_had_begun_is_not_made_again(scene: Scene) -> None:
    scene.spool.put("wait")
    async with scene.served(scene.wait):
        await scene.begun()
    async with scene.served(scene.wait, expected=1):
        await scene.spool.answered()
    scene.go.set()
    await until(lambda: bool(scene.ended), "the first call to end")
    assert scene.spool.said() == (INTERRUPTED, True)
    assert (scene.called, scene.ended) == ([CALL], ["cancelled"])
    assert events(scene.store, "waited") == []


async def test_an_idempotent_call_is_made_again_and_its_events_come_once(scene: Scene) -> None:
    @tool(idempotent=True)
    def wait(context: ToolContext) -> str:
        return scene.wait(context)

    scene.spool.put("wait")
    async with scene.served(wait):
        await scene.begun()
    scene.go.set()
    async with scene.served(wait, expected=1):
        await scene.spool.answered()
    assert scene.spool.said() == ("waited", False)
    assert scene.called == [CALL, CALL]
    assert events(scene.store, "waits") == [1]
    assert events(scene.store, "waited") == [{}]


async def test_a_stored_result_is_given_to_whoever_calls_again_by_that_id(scene: Scene) -> None:
    scene.spool.put("wait")
    scene.go.set()
    async with scene.served(scene.wait):
        await scene.spool.answered()
        scene.spool.answers.clear()
        await scene.spool.answered()
    scene.spool.answers.clear()
    async with scene.served(expected=1):  # where the tool is not known any more
        await scene.spool.answered()
    assert scene.spool.said() == ("waited", False)
    assert scene.called == [CALL]


async def test_an_agent_that_calls_a_lot_has_its_calls_wait_in_the_sandbox_and_not_here(scene: Scene) -> None:
    ids = [f"{at:032d}" for at in range(3 * MOST_AT_ONCE)]
    for id in ids:
        scene.spool.put("wait", id)
    async with scene.served(scene.wait):
        await until(lambda: len(scene.called) == MOST_AT_ONCE, "as many calls as are made at once")
        scene.go.set()
        for id in ids:
            await scene.spool.answered(id)
        await until(lambda: scene.spool.asked[-1] == 0, "nothing to be in hand any more")
    assert max(scene.spool.asked) < MOST_AT_ONCE
    assert sorted(scene.called) == ids


async def test_what_breaks_while_calls_are_read_ends_no_later_call(scene: Scene) -> None:
    scene.spool.put("wait")
    scene.spool.breaks.append(RecursionError("maximum recursion depth exceeded"))
    scene.go.set()
    async with scene.served(scene.wait):
        await scene.spool.answered()
    assert (scene.spool.said(), scene.spool.breaks) == (("waited", False), [])


async def test_a_call_that_no_thread_is_to_be_had_for_is_answered_with_that(scene: Scene) -> None:
    async def run(name: str, work: Work) -> dict[str, Any]:
        if not scene.go.is_set():
            raise RuntimeError("can't start new thread")
        return await on_thread(name, work)

    scene.spool.put("wait")
    async with scene.served(scene.wait, run=run):
        await scene.spool.answered()
        scene.go.set()
        scene.spool.put("wait", "1" * 32)
        await scene.spool.answered("1" * 32)
    assert scene.spool.said() == ("wait could not be called: can't start new thread.", True)
    assert scene.spool.said("1" * 32) == ("waited", False)


class Overtaken:
    """A shard that is asked for a stored chunk: before the answer an hour has passed, and a successor has claimed."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.late_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def wall_ms(self) -> int:
        return SystemClock().wall_ms()

    def monotonic(self) -> float:
        return SystemClock().monotonic() + self.late_s

    async def batches(self, run_id: str, after: int) -> list[Batch]:
        found = await self._shard.batches(run_id, after)
        await claimed_by(self._shard, 1)
        self.late_s = 3600.0
        return found


async def test_a_driver_that_slept_after_it_began_a_call_does_not_make_it(scene: Scene) -> None:
    scene.spool.put("wait")
    scene.go.set()
    claimed = await claimed_by(scene.shard, 0)
    overtaken = Overtaken(scene.shard)
    lent = Lent({"wait": HostTool("wait", scene.wait)}, 50.0)
    sleeper = asyncio.create_task(serve(cast("Shard", overtaken), overtaken, claimed, lent, scene.spool))
    await until(lambda: overtaken.late_s > 0, "the first driver to begin the call")
    async with scene.served(scene.wait, expected=1):
        await scene.spool.answered()
    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)
    assert (scene.spool.said(), scene.called) == ((INTERRUPTED, True), [])


async def test_an_answer_waits_for_a_sandbox_that_is_away(scene: Scene) -> None:
    scene.spool.put("wait")
    async with scene.served(scene.wait):
        await scene.begun()
        scene.spool.reachable = False
        scene.go.set()
        await until(lambda: bool(events(scene.store, "tool.ended")), "the result")
        assert scene.spool.answers == {}
        scene.spool.reachable = True
        await scene.spool.answered()
    assert scene.spool.said() == ("waited", False)
