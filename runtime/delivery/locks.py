"""The port of locks: one driver of a run at a time, where somebody can say so (contract 4.4); and one in memory.

A lock protects nothing, since whoever holds one may be paused past its end; the fence does (I1). It keeps drivers from
crowding: without one, each newcomer's claim ends its predecessor. A lock of one process cannot do even that for two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

log = logging.getLogger("outlast.delivery")


class Lease:
    """A lock that is held. `lost` is set when that can no longer be promised; it is never cleared."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()


class LockStore(Protocol):
    """Named locks. Not re-entrant."""

    def hold(self, key: str) -> AbstractAsyncContextManager[Lease]:
        """Wait for the lock, hold it for the body, let go however that ends. May raise StoreError, on entry."""


class MemoryLocks:
    """LockStore of this process: first come, first served; what one holder raises does not keep the next from its turn.

    A lease of it is never lost. It says once, in the log, that other processes and hosts know nothing of it, unless it
    is told that there is `one_process`."""

    def __init__(self, *, one_process: bool = False) -> None:
        self._silent = one_process
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # and how many hold or want it

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[Lease]:
        """Hold the lock `key`."""
        if not self._silent:
            self._silent = True
            log.warning(
                "locks in memory keep only drivers of this process apart, not those of other processes or hosts: use "
                "locks of your database there, or say MemoryLocks(one_process=True)"
            )
        lock, wanted = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, wanted + 1)
        try:
            async with lock:
                yield Lease()
        finally:
            _, wanted = self._locks[key]
            if wanted == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, wanted - 1)
