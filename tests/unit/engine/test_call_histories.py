"""Calls of host tools in every interleaving of drivers that a seed finds, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, cast

import pytest
from unit.engine.call_spool import Spool, claimed_by, events, serve
from unit.engine.stage import Stage, create

from runtime.engine.host_calls import INTERRUPTED, Lent, Work
from runtime.engine.shard import Shard
from runtime.host_tools import HostTool, ToolContext, tool
from runtime.testing.sim_loop import SimLoop, elapse

SEEDS = 40


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
