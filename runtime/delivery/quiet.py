"""Wait until nobody else writes to a log that cannot fence (contract 5.3).

A driver that was superseded may still have writes under way, and writes a few more until it notices. Its successor
waits until the log has not grown for one window. Only the length is looked at, and only by `snapshot`, since a read of
an open log waits for ever. This makes a late write unlikely; only a log that fences makes it impossible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from runtime.delivery.durability import StreamDurability
from runtime.delivery.errors import LogNotQuietError

FENCE_QUIET_MS = 5_000  # contract 5.1, as the next one
MAX_PROBES = 6

Sleep = Callable[[float], Awaitable[None]]


async def await_quiet(log: StreamDurability, quiet_ms: int = FENCE_QUIET_MS, sleep: Sleep = asyncio.sleep) -> int:
    """Return the length of `log` once it did not grow for `quiet_ms`: after one window at least, six at most.

    0 does not wait, but looks twice. Raises LogNotQuietError, and what a snapshot raises."""
    length = len(await log.snapshot())
    for _ in range(MAX_PROBES):
        if quiet_ms > 0:
            await sleep(quiet_ms / 1000)
        seen = len(await log.snapshot())
        if seen == length:
            return length
        length = seen
    raise LogNotQuietError(log.run_id, MAX_PROBES, quiet_ms)
