"""The conformance kit of `delivery.locks.LockStore` (contract 4.4).

    class TestMine(LockStoreKit):
        async def make(self) -> Callable[[], LockStore]:
            return MyLocks(...).client       # each call gives what another host would have

No case waits for time to pass: whoever has to wait is seen to wait for as long as the holder does something.
"""

# ruff: noqa: D102 - a test's name states the fact

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from runtime.delivery.locks import LockStore

T = TypeVar("T")

KEY = "run-driver:run-1"
TURNS = 20
DEADLINE_S = 30.0


class LockStoreKit:
    """All cases; see the module's docstring."""

    async def make(self) -> Callable[[], LockStore]:
        """Return what opens this test's locks."""
        raise NotImplementedError("a subclass has a method make")

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one test."""
        return asyncio.run(asyncio.wait_for(work, DEADLINE_S))

    def test_one_at_a_time_holds_a_key(self) -> None:
        async def case() -> None:
            client = await self.make()
            inside = most = held = 0

            async def turns() -> None:
                nonlocal inside, most, held
                for _ in range(TURNS):
                    async with client().hold(KEY) as lease:
                        inside += 1
                        most, held = max(most, inside), held + 1
                        await asyncio.sleep(0)
                        assert not lease.lost.is_set()
                        inside -= 1

            await asyncio.gather(turns(), turns(), turns())
            assert (most, held) == (1, 3 * TURNS)

        self.play(case())

    def test_keys_do_not_wait_for_one_another(self) -> None:
        async def case() -> None:
            client = await self.make()
            async with client().hold(KEY), client().hold("sandbox:a b/;$(c)\n"), client().hold("run-driver:run-2"):
                pass

        self.play(case())

    def test_what_a_holder_raises_is_raised_and_lets_the_next_one_in(self) -> None:
        async def case() -> None:
            client = await self.make()
            with pytest.raises(ZeroDivisionError):
                async with client().hold(KEY):
                    raise ZeroDivisionError
            async with client().hold(KEY):
                pass

        self.play(case())

    def test_whoever_gives_up_waiting_is_not_in_the_way(self) -> None:
        async def case() -> None:
            client = await self.make()
            begun = asyncio.Event()

            async def wait() -> None:
                begun.set()
                async with client().hold(KEY):
                    raise AssertionError("two hold it")

            async with client().hold(KEY):
                waiting = asyncio.create_task(wait())
                await begun.wait()
                async with client().hold("run-driver:run-2"):  # which takes at least as long as it needs to begin
                    pass
                waiting.cancel()
                assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)
            async with client().hold(KEY):
                pass

        self.play(case())

    def test_a_holder_does_not_enter_twice(self) -> None:
        async def case() -> None:
            client = await self.make()
            locks, entered = client(), asyncio.Event()

            async def enter() -> None:
                async with locks.hold(KEY):
                    entered.set()

            async with locks.hold(KEY):
                again = asyncio.create_task(enter())
                async with locks.hold("run-driver:run-2"):
                    await asyncio.sleep(0)
                assert not entered.is_set()
            await again
            assert entered.is_set()

        self.play(case())
