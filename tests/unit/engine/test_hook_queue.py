"""What hooks are told of a shard's answers: what was stored, once, and never at a run's cost."""

from __future__ import annotations

import asyncio

import pytest
from unit.engine.stage import RUN, Stage, append, claim, create, finish

from runtime.core.ops import Detach
from runtime.engine import hook_queue
from runtime.engine.hook_queue import HookEvent, HookQueue
from runtime.engine.shard import Shard
from runtime.hooks import NAMES
from runtime.testing.sim_loop import elapse, play


class Receiver:
    """The process of hooks, as far as a shard knows it."""

    def __init__(self, *wanted: str) -> None:
        self.wanted = frozenset(wanted or NAMES)
        self.events: list[HookEvent] = []
        self.answers = True

    async def send(self, events: list[HookEvent]) -> frozenset[str]:
        if not self.answers:
            await elapse(5.0)
            raise RuntimeError("nobody is there")
        self.events += events
        return self.wanted

    def told(self) -> list[str]:
        return [event.name for event in self.events]


async def opened(receiver: Receiver) -> tuple[Shard, HookQueue, asyncio.Task[None]]:
    shard = await Stage().open()
    queue = HookQueue(shard.record, receiver.send)
    shard.story.listener = queue.hear
    return shard, queue, asyncio.create_task(queue.run())


async def a_run(shard: Shard) -> None:
    await shard.submit(create())
    await shard.submit(claim())
    await shard.submit(claim())  # a repeat
    await shard.attach(RUN, "replica", 1)
    await shard.submit(append(1, "A", "B"))
    await shard.submit(append(1, "A", "B"))  # a repeat
    await shard.submit(Detach(run_id=RUN, since=7))
    await shard.submit(Detach(run_id=RUN, since=8))  # changes nothing
    await shard.submit(claim(1, "successor"))  # a takeover is no start
    await shard.submit(finish(3, epoch=2))


def test_each_thing_that_was_stored_is_told_once_and_in_order() -> None:
    async def acts() -> None:
        receiver = Receiver()
        shard, queue, task = await opened(receiver)
        await a_run(shard)
        await elapse(5.0)
        assert receiver.told() == ["start", "attach", "chunk", "detach", "chunk"]
        start, attach, chunks, detach, _last = receiver.events
        assert (start.run.detached, attach.run.detached, detach.run.detached) == (True, False, True)
        assert start.run.detachable
        assert chunks.batch is not None
        assert (chunks.batch.seq, chunks.batch.count) == (1, 2)
        assert queue.dropped == 0
        task.cancel()

    play(1, acts())


def test_what_no_hook_wants_is_not_sent() -> None:
    async def acts() -> None:
        receiver = Receiver("start", "detach")
        shard, _queue, task = await opened(receiver)
        await a_run(shard)
        await elapse(5.0)
        assert receiver.told() == ["start", "detach"]
        task.cancel()

    play(1, acts())


def test_a_process_of_hooks_that_does_not_answer_costs_events_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_queue, "MOST_EVENTS", 3)

    async def acts() -> None:
        receiver = Receiver()
        receiver.answers = False
        shard, queue, task = await opened(receiver)
        await a_run(shard)
        assert asyncio.get_running_loop().time() < 1.0
        assert queue.dropped == 2
        await elapse(60.0)
        receiver.answers = True
        await elapse(10.0)
        assert receiver.told() == ["start", "attach", "chunk"]
        receiver.answers = False
        await shard.submit(create("run-2", "thread-2"))
        await shard.submit(claim(run_id="run-2"))
        await elapse(60.0)
        assert queue.dropped == 3  # whether it came is not known: it is not sent again
        task.cancel()

    play(1, acts())
