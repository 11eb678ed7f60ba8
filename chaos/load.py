"""Runs that print numbered lines, as many at once as are asked for, each watched by two clients.

One OS thread with its own event loop, since a thread can enter a host's network and so be a client there. A run that
has ended is replaced by a new one until `wind_down`.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from watcher import Watcher

# Four a second: new chunks are missed soon, and twenty runs leave the cores to what is measured.
LINES_PER_S = 4
LINES, FEW_LINES = (160, 400), (60, 120)  # 40 to 100 s, and 15 to 30 s for a short schedule
LAUNCHES = "launches"  # a file of the workspace: one line for each time the agent was launched
START_SPREAD_S = 0.4
FINAL_S = 30.0


@dataclass
class Run:
    """One run and who watches it."""

    run_id: str
    lines: int
    begun: float
    watchers: list[Watcher] = field(default_factory=list)
    final: Watcher | None = None  # a fresh client, after the end

    @property
    def ended(self) -> bool:
        """Return whether its first client has seen the end."""
        return self.watchers[0].ended

    @property
    def thread_id(self) -> str:
        """Return its thread: a workspace of its own."""
        return f"t-{self.run_id}"


class Load:
    """Keeps so many runs going."""

    def __init__(
        self, url: str, runs: int, seed: int, enter_network: Callable[[], None], lines: tuple[int, int] = LINES
    ) -> None:
        self.runs: list[Run] = []
        self.failed: BaseException | None = None
        self._url = url
        self._wanted = runs
        self._dice = random.Random(f"load {seed}")  # noqa: S311 - to be repeated
        self._seed = seed
        self._lines = lines
        self._enter_network = enter_network
        self._winding_down = threading.Event()
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def active(self) -> list[Run]:
        """Return the runs whose end nobody has seen yet, of those that somebody has seen begin."""
        return [run for run in list(self.runs) if not run.ended and run.watchers[0].seen]

    def wind_down(self, within_s: float) -> None:
        """Start no more runs; return when all have ended and were read by a fresh client, or after `within_s`."""
        self._winding_down.set()
        self._thread.join(within_s)
        self._give_up.set()
        self._thread.join(FINAL_S)

    def _run(self) -> None:
        try:
            self._enter_network()
            asyncio.run(self._keep_going())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self.failed = error

    async def _keep_going(self) -> None:
        tasks = [asyncio.create_task(self._one_place(number)) for number in range(self._wanted)]
        while not all(task.done() for task in tasks) and not self._give_up.is_set():
            await asyncio.wait(tasks, timeout=0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one_place(self, place: int) -> None:
        await asyncio.sleep(place * START_SPREAD_S)
        number = 0
        while not self._winding_down.is_set():
            await self._one_run(f"c{self._seed}-{place}-{number}")
            number += 1

    async def _one_run(self, run_id: str) -> None:
        run = Run(run_id, self._dice.randint(*self._lines), time.monotonic())
        first = Watcher(self._url, run_id, _body(run))
        run.watchers.append(first)
        self.runs.append(run)
        tasks = [asyncio.create_task(first.watch())]
        try:
            await first.began.wait()
            other = Watcher(self._url, run_id, restless=random.Random(run_id))  # noqa: S311 - to be repeated
            run.watchers.append(other)
            tasks.append(asyncio.create_task(other.watch()))
            await asyncio.gather(*tasks)
            run.final = Watcher(self._url, run_id)
            await run.final.watch()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _body(run: Run) -> dict[str, Any]:
    script = (
        f"echo $$ >> {LAUNCHES}; i=0; "
        f"while [ $i -lt {run.lines} ]; do i=$((i+1)); echo $i; sleep {1 / LINES_PER_S}; done"
    )
    return {"threadId": run.thread_id, "messages": [{"id": "u1", "role": "user", "content": script}]}
