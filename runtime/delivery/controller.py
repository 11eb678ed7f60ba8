"""Runs that are driven in the background of one process: start, attach, status, drain (contract 5.6).

What a web handler needs: `start` returns at once, whoever has the run id reads its log, and at the end of the process
the runs are waited for (`drain`) or left to a successor (`leave`). A run ends by its own rules (`pipe.py`), never with
the request that started it (I6).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from runtime.delivery.driver import Logs, RunDriver, Source
from runtime.delivery.durability import START, Entry
from runtime.delivery.records import RunRow


class RunController:
    """Holds the tasks of the runs that this process drives."""

    def __init__(self, driver: RunDriver, logs: Logs) -> None:
        """`logs` makes the handles that readers get; usually the driver's own."""
        self._driver = driver
        self._logs = logs
        self._tasks: set[asyncio.Task[RunRow | None]] = set()

    async def start(self, run_id: str, thread_id: str, source: Source) -> asyncio.Task[RunRow | None]:
        """Create the run and begin to drive it; return once its record exists. The task gives the row it ended with, or
        None if somebody else drives it; it does not raise. Raises StoreError: nothing was begun."""
        await self._driver.records.create_or_resume(run_id, thread_id, self._driver.clock.wall_ms())
        return self.ensure(run_id, source)

    def ensure(self, run_id: str, source: Source) -> asyncio.Task[RunRow | None]:
        """Begin to drive the run if that is due (`RunDriver.ensure`); for whoever came to read."""
        task = asyncio.create_task(self._driver.ensure(run_id, source), name=f"run {run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def attach(self, run_id: str, offset: str = START) -> AsyncGenerator[Entry, None]:
        """Read the run's log past `offset`; see `StreamDurability.read`. Leaving changes nothing for the run."""
        return self._logs(run_id).read(offset)

    async def status(self, run_id: str) -> RunRow | None:
        """Return the run's row, or None. Raises StoreError."""
        return await self._driver.records.get(run_id)

    async def drain(self) -> None:
        """Wait until nothing is driven here any more, also what is started meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def leave(self) -> None:
        """Stop driving: sources are cancelled, and the runs stay `running` for whoever takes them over."""
        for task in self._tasks:
            task.cancel()
        await self.drain()
