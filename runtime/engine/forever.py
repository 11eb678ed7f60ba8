"""Loops that must not die: what one turn raises is logged, and the next turn comes all the same (I7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("outlast.loops")

AFTER_ERROR_S = 0.5


async def forever(name: str, turn: Callable[[], Awaitable[None]]) -> None:
    """Await `turn` again and again. A turn waits by itself; only after an error the loop does. Ends by cancellation."""
    while True:
        try:
            await turn()
        except Exception:
            log.exception("%s: a turn failed", name)
            await asyncio.sleep(AFTER_ERROR_S)
