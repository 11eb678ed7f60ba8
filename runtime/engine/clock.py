"""Real time and real OS threads, behind the ports that the simulator replaces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Return UTC ms since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds on the clock that never goes back."""
        return time.monotonic()


class Threads(Protocol):
    """Where blocking store calls run: one writer at a time, any number of readers."""

    async def write(self, call: Callable[[], T]) -> T:
        """Run `call` after every earlier write; return or raise what it does."""

    async def read(self, call: Callable[[], T]) -> T:
        """Run `call` beside others."""


class StoreThreads:
    """One writer OS thread, so that a slow disk stops no reader, and a few readers."""

    READERS = 4

    def __init__(self) -> None:
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._readers = ThreadPoolExecutor(self.READERS, thread_name_prefix="store-read")

    async def write(self, call: Callable[[], T]) -> T:
        """Run `call` in the writer thread."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, call)

    async def read(self, call: Callable[[], T]) -> T:
        """Run `call` in a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    def close(self) -> None:
        """Let the threads end."""
        self._writer.shutdown(wait=False)
        self._readers.shutdown(wait=False)
