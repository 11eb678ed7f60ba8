"""Calls of host tools: once by their id, whoever drives, and whoever is asleep meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from unit.engine.stage import RUN, Stage, claim, create
from waiting import until

from runtime.core import chunk
from runtime.core.batch import Batch
from runtime.core.ops import Claimed
from runtime.engine.appending import Appender, Progress
from runtime.engine.authority import Authority
from runtime.engine.claimed_log import ClaimedLog
from runtime.engine.clock import StoreThreads, SystemClock
from runtime.engine.host_calls import INTERRUPTED, MOST_AT_ONCE, HostCalls, Lent, Work, on_thread
from runtime.engine.shard import Shard
from runtime.errors import SandboxUnreachable
from runtime.host_tools import HostTool, ToolCancelled, ToolContext, ToolError, tool
from runtime.ports import Clock
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_loop import SimLoop, elapse

CALL = "0" * 32
SEEDS = 40
Runs = Callable[[str, Work], Awaitable[dict[str, Any]]]


@dataclass
class Spool:
    """A sandbox's calls and answers, as drivers see them. `reachable` False: its host is away."""

    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, list[bytes]] = field(default_factory=dict)  # all that were written: the first one counts
    reachable: bool = True
    breaks: list[Exception] = field(default_factory=list)  # what whoever asks next is told, each once
    asked: list[int] = field(default_factory=list)  # how many calls whoever asked for more had in hand

    def tool_server(self) -> tuple[str, ...]:
        return ()

    async def offer_tools(self, name: str, data: bytes) -> None:
        raise AssertionError(f"nothing is launched here: {name}, {data!r}")

    def put(self, name: str, id: str = CALL, **arguments: Any) -> None:
        self.waiting[id] = {"id": id, "tool": name, "arguments": arguments}

    async def calls(self, known: Collection[str], wait_s: float) -> list[dict[str, Any]]:
        assert wait_s > 1.0
        self.asked.append(len(known))
        if self.breaks:
            raise self.breaks.pop()
        for _ in range(4):  # sooner than a sandbox would
            self._reach()
            found = [call for id, call in self.waiting.items() if id not in known and id not in self.answers]
            if found:
                return found
            await elapse(0.05)
        return []

    async def answer_call(self, call_id: str, data: bytes) -> None:
        self._reach()
        self.answers.setdefault(call_id, []).append(data)

    def _reach(self) -> None:
        if not self.reachable:
            raise SandboxUnreachable("away")

    def said(self, id: str = CALL) -> tuple[str, bool]:
        answer = chunk.decode(self.answers[id][0])
        return answer["content"][0]["text"], answer["isError"]

    async def answered(self, id: str = CALL) -> None:
        await until(lambda: id in self.answers, "the answer")


async def claimed_by(shard: Shard, expected: int) -> Claimed:
    """Claim the run for the driver after epoch `expected`."""
    claimed = await shard.submit(claim(expected, f"driver-{expected}"))
    assert isinstance(claimed, Claimed)
    return claimed


async def serve(
    shard: Shard, clock: Clock, claimed: Claimed, lent: Lent, spool: Spool, *, from_checkpoint: bool = False
) -> None:
    """Serve calls under the claim's epoch, as a drive does, until cancelled. `from_checkpoint`: keys before it are not
    read."""
    log = ClaimedLog(shard, claimed)
    await log.read()
    authority = Authority(shard, claimed.head, clock, 3.0)
    keys = {} if from_checkpoint else log.keys
    appender = Appender(authority, Progress(next_seq=claimed.head.next_seq, keys=keys), log.open_items, 0)
    appending = asyncio.create_task(appender.run())
    try:
        await HostCalls(lent, {}, claimed.head, authority, appender, spool).serve()
    finally:
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)


def events(store: MemoryStore, name: str) -> list[Any]:
    """Return the values of the log's events of a name."""
    found = [chunk.decode_chunk(data) for one in store.read_batches(RUN, 0, 1 << 40) for data in one.chunks()]
    return [event["value"] for event in found if event.get("name") == name]


# --- on OS threads, in real time


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


# --- every interleaving of drivers that a seed finds, in virtual time


class Far:
    """A shard as another process sees it: one that is held, or killed, stops nothing in the shard's own."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._context = copy_context()

    def __getattr__(self, name: str) -> Callable[..., asyncio.Task[Any]]:
        call = getattr(self._shard, name)
        return lambda *given: asyncio.get_running_loop().create_task(call(*given), context=self._context)


class History:
    """Calls of two tools, by a few drivers in a row that are held and killed at any moment."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a seeded generator is the point
        self.spool = Spool()
        self.made: Counter[str] = Counter()
        self.drivers = 4

    async def play(self) -> None:
        self.stage = Stage()
        loop = self.stage.loop
        shard = await self.stage.open()
        await shard.submit(create())
        ids = [f"{at:032d}" for at in range(6)]
        for expected in range(self.drivers):
            for id in ids[expected * 2 : expected * 2 + 2]:
                self.spool.put(self.rng.choice(("once", "again")), id)
            name = f"driver-{expected}"
            claimed = await claimed_by(shard, expected)
            short = self.rng.random() < 0.5
            far = cast("Shard", Far(shard))
            loop.start(name, serve(far, loop, claimed, self.lent(), self.spool, from_checkpoint=short))
            if expected < self.drivers - 1:
                await elapse(self.rng.choice((0.06, 0.3, 1.0)) * self.rng.random())
                loop.kill(name) if self.rng.random() < 0.3 else loop.hold(name)
        while len(self.spool.answers) < len(ids):
            await elapse(0.1)
        for expected in range(self.drivers - 1):
            loop.resume(f"driver-{expected}")
        await elapse(10.0)
        loop.kill(f"driver-{self.drivers - 1}")
        await shard.close()

    def lent(self) -> Lent:
        @tool(idempotent=True)
        def again(context: ToolContext) -> str:
            return once(context)

        def once(context: ToolContext) -> str:
            self.made[context.call_id] += 1
            return f"made {context.call_id} {self.made[context.call_id]}"

        async def run(_: str, work: Work) -> dict[str, Any]:
            result = work()
            await elapse(self.rng.random() * 0.5)
            return result

        return Lent({"once": HostTool("once", once), "again": HostTool("again", again)}, 100.0, run)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whoever_sleeps_or_dies_a_call_is_made_once_and_has_one_answer(seed: int) -> None:
    history = History(seed)
    loop = SimLoop(random.Random(seed))  # noqa: S311 - the same
    loop.play(history.play())
    store = history.stage.memory
    results = {event["callId"]: event["content"][0]["text"] for event in events(store, "tool.ended")}
    for id, call in history.spool.waiting.items():
        assert len(set(history.spool.answers[id])) == 1, "two answers of one call differ"
        (text, failed) = history.spool.said(id)
        if call["tool"] == "once":
            assert history.made[id] <= 1
            assert (text, failed) == (f"made {id} 1", False) or (text, failed) == (INTERRUPTED, True)
        else:
            assert not failed
            assert text.startswith(f"made {id} ")
        assert text == results[id], "the answer is not what is stored"
    for name in ("tool.begun", "tool.ended"):
        assert Counter(event["callId"] for event in events(store, name)) == dict.fromkeys(history.spool.waiting, 1)
