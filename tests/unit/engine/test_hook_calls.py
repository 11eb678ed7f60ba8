"""Hooks that raise, hang or are slow, and the others beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from unit.engine.stage import RUN, batch, spec
from waiting import until

from runtime.core.record import Head, Status
from runtime.engine import hook_calls
from runtime.engine.hook_calls import HookCalls
from runtime.engine.hook_queue import HookEvent
from runtime.hooks import Hooks, HookSet, RunFacts

TIME_S = 0.2
HEAD = Head(run_id=RUN, thread_id="t", owner="o", digest="d", created_at=1, status=Status.COMPLETED, finished_at=2)
FACTS = RunFacts.of(HEAD, spec())


def event(name: str, key: str = RUN, **more: Any) -> HookEvent:
    return HookEvent(name=name, key=key, run=FACTS, **more)


class Diary(Hooks):
    """Notes what it is called for, and holds `detach` until it is let go."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []
        self.loops: set[int] = set()
        self.let_go = threading.Event()

    def start(self, run: RunFacts) -> None:
        raise LookupError(run.run_id)

    async def attach(self, run: RunFacts) -> None:
        del run
        self.calls.append(("attach", None))
        self.loops.add(id(asyncio.get_running_loop()))

    def detach(self, run: RunFacts) -> None:
        del run
        self.let_go.wait()

    def chunk(self, run: RunFacts, offset: str, event: dict[str, Any]) -> None:
        del run
        self.calls.append((event["type"], offset))

    async def finish(self, run: RunFacts) -> None:
        del run
        await asyncio.Event().wait()

    def error(self, run: RunFacts) -> None:
        raise SystemExit(run.run_id)

    async def cancel(self, run: RunFacts) -> None:
        raise asyncio.CancelledError(run.run_id)


@pytest.fixture
def diary() -> AsyncIterator[Diary] | Any:
    diary = Diary()
    yield diary
    diary.let_go.set()


@pytest.fixture
async def calls(diary: Diary) -> AsyncIterator[HookCalls]:
    calls = HookCalls([HookSet("here:diary", diary)], TIME_S)
    calls.begin()
    yield calls
    diary.let_go.set()
    await calls.close()


def counted(calls: HookCalls, name: str, result: str) -> Callable[[], int]:
    return lambda: calls.counts[name, result]


async def test_chunks_come_each_with_its_offset(calls: HookCalls, diary: Diary) -> None:
    calls.put([event("chunk", batch=batch(4, "A", "B"), generation=7)])
    await until(counted(calls, "chunk", "ok"), "a call")
    await until(lambda: calls.counts["chunk", "ok"] == 2, "both calls")
    assert diary.calls == [("A", "0000000000000007_0000000000000005"), ("B", "0000000000000007_0000000000000006")]


async def test_async_hooks_of_a_lane_share_a_loop(calls: HookCalls, diary: Diary) -> None:
    calls.put([event("attach")] * 3)
    await until(lambda: calls.counts["attach", "ok"] == 3, "the calls")
    assert len(diary.loops) == 1


async def test_what_a_hook_raises_is_counted_and_the_next_is_called(calls: HookCalls, diary: Diary) -> None:
    for name in ("error", "cancel"):  # SystemExit and CancelledError: orders to nobody here
        await calls.ended(name, RUN, FACTS, "here:diary")
        assert calls.counts[name, "failed"] == 1
    calls.put([event("start"), event("attach")])
    await until(counted(calls, "attach", "ok"), "the next call")
    assert calls.counts["start", "failed"] == 1
    assert diary.calls == [("attach", None)]


async def test_an_async_hook_is_cancelled_when_its_time_is_up(calls: HookCalls) -> None:
    await calls.ended("finish", RUN, FACTS, "here:diary")
    assert calls.counts == {("finish", "late"): 1}
    await calls.ended("finish", RUN, FACTS, "another:one")  # not of these
    assert calls.counts.total() == 1


async def test_a_hook_that_hangs_is_left_alone_and_holds_up_no_other(calls: HookCalls, diary: Diary) -> None:
    calls.put([event("detach"), event("attach")])
    await until(counted(calls, "attach", "ok"), "the call behind it")
    assert calls.counts["detach", "late"] == 1


async def test_so_many_threads_are_left_and_no_more(
    calls: HookCalls, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_calls, "MOST_LEFT", 2)
    calls.put([event("detach")] * 4)
    await until(lambda: calls.counts["detach", "skipped"] == 2, "calls that are not made")
    assert calls.counts["detach", "late"] == 2
    diary.let_go.set()

    async def called_again() -> bool:
        calls.put([event("attach")])
        return bool(calls.counts["attach", "ok"])

    await until(called_again, "calls, once the threads have come back")


async def test_what_does_not_fit_is_dropped_and_counted(
    calls: HookCalls, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_calls, "MOST_EVENTS", 2)
    calls.put([event("attach")] * 5)
    assert calls.dropped == 3
    await until(lambda: calls.counts["attach", "ok"] == 2, "the others")
