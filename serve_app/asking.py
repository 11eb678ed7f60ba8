"""Ask a shard or the supervisor that may be being replaced at this very moment.

Every call may be repeated (I9), and a part that died is back within seconds: so we ask again instead of telling a
client that something is wrong. A stream asks for as long as it is open; a plain request for ANSWER_S, then 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from runtime.errors import OwnershipLost, StoreError, StoreFull, StoreRefused, StoreUnavailable

T = TypeVar("T")

# A shard that died is back after 2 s, one that hangs is replaced after 10 s (protocol, bounds).
ANSWER_S = 12.0
_FIRST_PAUSE_S = 0.05
_LAST_PAUSE_S = 1.0

# What another attempt may cure.
PASSING = (StoreError, OwnershipLost, TimeoutError)
# What needs a person first: a plain request says so at once, a stream waits for the person.
LASTING = (StoreFull, StoreRefused)


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each new attempt, doubling up to 1 s."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of `call`, however long it takes. Raises what is no failure of the store."""
    waits = pauses()
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await call()
        except PASSING:
            await asyncio.sleep(next(waits))


async def answer(call: Callable[[], Awaitable[T]], within_s: float | None = None) -> T:
    """Return the answer of `call`, asked again until `within_s` (ANSWER_S) have passed. Raises StoreUnavailable after
    that, and at once what another attempt will not cure."""
    why: BaseException | None = None
    waits = pauses()
    try:
        async with asyncio.timeout(ANSWER_S if within_s is None else within_s):
            while True:
                try:
                    return await call()
                except LASTING:
                    raise
                except PASSING as error:
                    why = error
                await asyncio.sleep(next(waits))
    except TimeoutError:
        reason = str(why) if why is not None else "it does not answer"
        raise StoreUnavailable(f"The part of Outlast that must answer this is not there: {reason}") from why
