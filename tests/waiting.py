"""Waiting on a condition with a deadline: the only place in the tests that sleeps.

A sleep guesses how long something takes: too short on a busy machine, too long on every other. A condition with a
deadline is as fast as the thing itself, and says what it waited for when it gives up.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, overload

T = TypeVar("T")

PAUSE_S = 0.005  # short against what the tests bound (tens of ms), long against a busy loop


def wait_until(condition: Callable[[], T], what: str, within_s: float = 10.0) -> T:
    """Return the first truthy value of `condition`. Raises TimeoutError naming `what` after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {within_s} s still not: {what}")
        time.sleep(PAUSE_S)
    return value


@overload
async def until(condition: Callable[[], Awaitable[T]], what: str, within_s: float = 10.0) -> T: ...
@overload
async def until(condition: Callable[[], T], what: str, within_s: float = 10.0) -> T: ...
async def until(condition: Callable[[], Awaitable[T] | T], what: str, within_s: float = 10.0) -> T:
    """Return the first truthy value of `condition`, plain or awaited, while the loop runs on. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while True:
        made = condition()
        value = cast("T", await made if inspect.isawaitable(made) else made)
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {within_s} s still not: {what}")
        await asyncio.sleep(PAUSE_S)


def pass_time(seconds: float) -> None:
    """Let time pass while something is taken away: how long it is gone is what such a test is about."""
    time.sleep(seconds)
