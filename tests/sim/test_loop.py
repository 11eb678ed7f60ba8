"""The loop under every history: time, choice, and processes that are held or killed."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from runtime.testing.sim_loop import SimLoop, Stuck, elapse, play


def _loop(seed: int = 1) -> SimLoop:
    return SimLoop(random.Random(seed))


def _holding(loop: SimLoop) -> bool:
    return loop.holding


async def _tick(loop: SimLoop, seen: list[float], times: int) -> None:
    for _ in range(times):
        await elapse(1.0)
        seen.append(loop.time())


def test_time_passes_only_when_nothing_is_ready() -> None:
    loop, seen = _loop(), list[float]()

    async def work() -> None:
        await elapse(3600.0)
        seen.append(loop.time())
        loop.call_soon(lambda: seen.append(loop.time()))
        await elapse(0)

    loop.play(work())
    assert seen == [3600.0, 3600.0]


def test_whatever_is_due_at_one_moment_comes_in_any_order() -> None:
    async def work(order: list[str]) -> None:
        loop = asyncio.get_running_loop()
        for name in "abc":
            loop.call_later(1.0, order.append, name)
        await elapse(2.0)

    found = set()
    for seed in range(60):
        order: list[str] = []
        play(seed, work(order))
        found.add("".join(order))
    assert len(found) == 6


def test_a_cancelled_timer_and_a_cancelled_callback_never_run() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, pytest.fail, "a cancelled timer ran").cancel()
        late = loop.call_at(2.0, pytest.fail, "a cancelled timer ran")
        assert late.when() == 2.0
        loop.call_at(2.0, late.cancel)  # at the same moment, either may be first
        late.cancel()
        loop.call_soon(pytest.fail, "a cancelled callback ran").cancel()
        await elapse(3.0)

    play(1, work())


def test_a_held_process_goes_on_where_it_was_and_a_killed_one_never_does() -> None:
    loop, held, killed = _loop(), list[float](), list[float]()

    async def work() -> None:
        loop.start("held", _tick(loop, held, 3))
        loop.start("killed", _tick(loop, killed, 3))
        await elapse(1.5)
        loop.hold("held")
        loop.kill("killed")
        assert (loop.alive("held"), loop.runs("held"), loop.alive("killed")) == (True, False, False)
        assert _holding(loop)
        await elapse(10.0)
        loop.resume("held")
        loop.resume("killed")
        assert not _holding(loop)
        await elapse(10.0)
        assert held == [1.0, 11.5, 12.5]
        assert killed == [1.0]

    loop.play(work())


def test_what_a_process_starts_belongs_to_it() -> None:
    loop, seen = _loop(), list[float]()

    async def parent() -> None:
        child = asyncio.create_task(_tick(loop, seen, 5))
        await child

    async def work() -> None:
        loop.start("p", parent())
        await elapse(2.5)
        loop.kill("p")
        await elapse(10.0)
        assert seen == [1.0, 2.0]

    loop.play(work())


def test_what_nobody_handles_is_told() -> None:
    loop = _loop()

    async def fails(text: str) -> None:
        await elapse(1.0)
        raise ValueError(text)

    async def work() -> None:
        for number in range(300):  # more than it keeps of those that have ended
            loop.start("p", fails(str(number)))
        loop.call_later(5.0, lambda: 1 / 0)
        await elapse(10.0)

    loop.play(work())
    told = [context["exception"] for context in loop.unhandled]
    assert sorted(int(str(error)) for error in told if isinstance(error, ValueError)) == list(range(300))
    assert [type(error) for error in told if not isinstance(error, ValueError)] == [ZeroDivisionError]


def test_what_a_thread_is_asked_happens_in_virtual_time_and_in_no_thread() -> None:
    loop, ran = _loop(), list[str]()

    def call(text: str) -> float:
        ran.append(threading.current_thread().name)
        if text == "fails":
            raise ValueError(text)
        return loop.time()

    async def work() -> None:
        assert 0.0 < await asyncio.to_thread(call, "answers") < 0.01
        with pytest.raises(ValueError, match="fails"):
            await asyncio.to_thread(call, "fails")

    loop.play(work())
    assert ran == [threading.current_thread().name] * 2


def test_a_loop_in_which_nothing_can_happen_says_so() -> None:
    loop = _loop()

    async def waits() -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match=r"at 0\.000 s"):
        loop.play(waits())
