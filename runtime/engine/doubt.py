"""What a shard does when it does not know what the store holds: it reads back before it answers anybody (P7).

A commit without an answer may have happened. Its caller repeats, and the store's own checks tell it the truth; but the
shard's memory (heads, leases, who waits in a queue) would lag behind for ever if the caller is gone. So each such
commit opens a doubt, and what is answered from memory waits until the doubt is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from runtime.errors import StoreError

RETRY_S = 0.1


class Doubt:
    """`reread` brings memory up to the store; it is repeated until it succeeds with no new doubt meanwhile."""

    def __init__(self, reread: Callable[[], Awaitable[None]]) -> None:
        self._reread = reread
        self._raised = 0
        self._task: asyncio.Task[None] | None = None

    def arise(self) -> None:
        """Say that memory may be older than the store."""
        self._raised += 1
        if self._task is None:
            self._task = asyncio.create_task(self._settle(), name="settle a doubt")

    @property
    def open(self) -> bool:
        """Return whether memory may be older than the store now."""
        return self._task is not None

    async def settled(self) -> None:
        """Return once memory is as new as the store was when this was called."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _settle(self) -> None:
        seen = 0
        try:
            while seen != self._raised:
                seen = self._raised
                try:
                    await self._reread()
                except StoreError:
                    seen = 0
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None
