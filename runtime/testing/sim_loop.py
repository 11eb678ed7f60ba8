"""An asyncio event loop that a seed decides: virtual time, and a free choice among callbacks that are ready.

Production code runs on it unchanged. Three things differ from a real loop, and all three are worse:

    time        passes only when nothing is ready; a wait of an hour costs nothing
    order       of all ready callbacks any may be next, chosen by the seed
    processes   each callback belongs to a process, by its context; a process may be held (SIGSTOP: its callbacks wait,
                then go on and know nothing) or killed (SIGKILL: they never run, no `finally` of theirs does)

A killed process's callbacks and tasks are kept until `close`, so that no garbage collection runs them in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_PROCESS: ContextVar[str] = ContextVar("sim_process", default="")

# Callbacks in one schedule: a loop that spins without time passing is a bug, not a slow test.
MAX_CALLBACKS = 5_000_000
# UTC ms at virtual time 0.
EPOCH_MS = 1_700_000_000_000


class Stuck(Exception):
    """Nothing is ready and nothing is scheduled: everybody waits for ever."""


class SimLoop(asyncio.BaseEventLoop):
    """The loop; `rng` makes every choice. Also the `Clock` of everything that runs on it."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.unhandled: list[dict[str, Any]] = []
        self._now = 0.0
        self._selector = self  # BaseEventLoop asks it to wait for I/O: there is none
        self._ready: _Ready = _Ready(self)
        self.set_exception_handler(lambda _loop, context: self.unhandled.append(context))

    # --- what BaseEventLoop needs ---

    def time(self) -> float:
        """Return virtual seconds."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Let time pass to the next timer. Raises Stuck if there is none."""
        if timeout is None:
            raise Stuck(f"at {self._now:.3f} s nothing can happen any more")
        self._now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # --- Clock ---

    def wall_ms(self) -> int:
        """Return UTC ms."""
        return EPOCH_MS + int(self._now * 1000)

    def monotonic(self) -> float:
        """Return virtual seconds."""
        return self._now

    # --- processes ---

    def spawn(self, process: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as (a part of) `process`; everything it starts belongs to it too."""
        context = copy_context()
        context.run(_PROCESS.set, process)
        task = self.create_task(work, context=context)
        self._ready.tasks.append(task)  # a loop holds its tasks weakly
        return task

    def start(self, process: str, work: Coroutine[Any, Any, Any]) -> None:
        """Do as `spawn` does, for work that nobody waits for; what it raises lands in `unhandled`."""
        self.spawn(process, work).add_done_callback(self._ended, context=Context())

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            name = getattr(task.get_coro(), "__qualname__", "a task")
            self.unhandled.append({"message": f"{name} raised", "exception": error})

    def hold(self, process: str) -> None:
        """Stop a process between two callbacks."""
        self._ready.hold(process)

    def resume(self, process: str) -> None:
        """Let a held process go on where it was; a killed one stays dead."""
        self._ready.resume(process)

    def kill(self, process: str) -> None:
        """End a process: nothing of it ever runs again."""
        self._ready.kill(process)

    def alive(self, process: str) -> bool:
        """Return whether the process was not killed."""
        return process not in self._ready.dead

    def runs(self, process: str) -> bool:
        """Return whether the process is neither killed nor held."""
        return process not in self._ready.dead and process not in self._ready.held

    # --- a whole run ---

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, then let every task end that is left, and close the loop."""
        try:
            return self.run_until_complete(work)
        finally:
            self._end_everything()
            self.close()

    def _end_everything(self) -> None:
        self._ready.revive()
        left = {task for task in asyncio.all_tasks(self) if not task.done()}
        for _ in range(100):
            for task in left:
                task.cancel()
            if not left:
                break
            self.run_until_complete(asyncio.wait(left, timeout=1.0))
            left = {task for task in asyncio.all_tasks(self) if not task.done()}
        self.run_until_complete(self.shutdown_asyncgens())


class _Ready:
    """Stands in for BaseEventLoop's deque of ready handles: `popleft` takes any of them."""

    def __init__(self, loop: SimLoop) -> None:
        self.held: dict[str, list[asyncio.Handle]] = {}
        self.dead: dict[str, list[asyncio.Handle]] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.count = 0
        self._random = loop.rng.random
        self._items: list[asyncio.Handle] = []
        self._nothing = asyncio.Handle(print, (), loop)
        self._nothing.cancel()

    def __len__(self) -> int:
        return len(self._items)

    def append(self, handle: asyncio.Handle) -> None:
        context: Context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001 - who a callback belongs to
        process = context.get(_PROCESS, "")
        if self.dead and process in self.dead:
            self.dead[process].append(handle)
        elif self.held and process in self.held:
            self.held[process].append(handle)
        else:
            self._items.append(handle)

    def popleft(self) -> asyncio.Handle:
        self.count += 1
        if self.count > MAX_CALLBACKS:
            raise Stuck(f"{MAX_CALLBACKS} callbacks ran: something spins")
        items = self._items
        if not items:
            return self._nothing  # a callback of this round held or killed the process of the others
        at = int(self._random() * len(items))
        items[at], items[-1] = items[-1], items[at]
        return items.pop()

    def clear(self) -> None:
        self._items.clear()

    def hold(self, process: str) -> None:
        if process not in self.dead and process not in self.held:
            self.held[process] = []
            self._sort_anew()

    def resume(self, process: str) -> None:
        self._items.extend(self.held.pop(process, []))

    def kill(self, process: str) -> None:
        if process not in self.dead:
            self.dead[process] = self.held.pop(process, [])
            self._sort_anew()

    def revive(self) -> None:
        everything = [*self.held.values(), *self.dead.values()]
        self.held.clear()
        self.dead.clear()
        self.count = 0
        for handles in everything:
            self._items.extend(handles)

    def _sort_anew(self) -> None:
        items, self._items = self._items, []
        for handle in items:
            self.append(handle)


async def elapse(seconds: float) -> None:
    """Let virtual time pass: whatever is due happens first."""
    await asyncio.sleep(seconds)


def play(seed: int, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a fresh loop of `seed`: for tests that need virtual time and no faults.

    Raises what it raises, and RuntimeError if a callback or a forgotten task raised."""
    loop = SimLoop(random.Random(seed))
    result = loop.play(work)
    if loop.unhandled:
        raise RuntimeError(f"nobody handled {loop.unhandled}")
    return result
