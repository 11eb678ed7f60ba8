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
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar

from runtime.testing.sim_turns import PROCESS, Ready, Timer, Turn

T = TypeVar("T")

# Callbacks in one schedule: a loop that spins without time passing is a bug, not a slow test.
MAX_CALLBACKS = 5_000_000
THREAD_SLOW_S = 0.004  # longest way to a thread, and back
# UTC ms at virtual time 0.
EPOCH_MS = 1_700_000_000_000


class Stuck(Exception):
    """Nothing is ready and nothing is scheduled: everybody waits for ever."""


class SimLoop(asyncio.BaseEventLoop):
    """The loop; `rng` makes every choice. Also the `Clock` of everything that runs on it.

    Tasks, futures and endings are BaseEventLoop's. Its way round is not: nothing here waits for I/O or is called from
    another thread, and a history is little else than ten thousand callbacks."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self._unhandled: list[dict[str, Any]] = []
        self._now = 0.0
        self._timers: list[Timer] = []
        self._ready: Ready = Ready(rng)
        self._tasks: list[asyncio.Task[Any]] = []
        self._sift_at = 100
        self.set_exception_handler(lambda _loop, context: self._unhandled.append(context))

    # --- what BaseEventLoop has too ---

    def time(self) -> float:
        """Return virtual seconds."""
        return self._now

    def call_soon(  # type: ignore[override]  # what it returns can be cancelled: nobody asks for more
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Turn:
        """Run `callback` before time passes."""
        turn = Turn(callback, args, copy_context() if context is None else context)
        self._ready.put(turn)
        return turn

    def call_soon_threadsafe(  # type: ignore[override]  # see call_soon
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Turn:
        """Do as `call_soon` does: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]  # see call_soon
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        """Run `callback` in `delay` seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # see call_soon
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        """Run `callback` at a virtual second."""
        timer = Timer(when)
        timer.callback = callback
        timer.args = args
        timer.context = copy_context() if context is None else context
        timer.cancelled = False
        heappush(self._timers, timer)
        return timer

    def run_in_executor(  # type: ignore[override]  # what is awaited is one future: nobody asks for more
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` at some moment soon, as a thread would: there are none."""
        del executor
        done: asyncio.Future[T] = self.create_future()
        self.call_later(THREAD_SLOW_S * self.rng.random() ** 3, _tell, done, func, args)
        return done

    def _run_once(self) -> None:
        """Go round until somebody stops the loop. Raises Stuck."""
        ready, turns = self._ready, self._ready.turns
        ran = 0
        while not self._stopping:  # type: ignore[attr-defined]  # BaseEventLoop's, by `stop`
            if not turns:
                self._pass_time()
            self._take_due()
            for _ in range(len(turns)):
                if not turns:
                    break  # a callback of this round held or killed the process of the others
                turn = ready.take()
                ran += 1
                if not turn.cancelled:
                    self._run(turn)
            if ran > MAX_CALLBACKS:
                raise Stuck(f"{MAX_CALLBACKS} callbacks ran: something spins")

    def _run(self, turn: Turn | Timer) -> None:
        try:
            turn.context.run(turn.callback, *turn.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as every event loop does
            self.call_exception_handler({"message": f"{turn.callback!r} raised", "exception": error})

    def _pass_time(self) -> None:
        """Let time pass to the next timer."""
        timers = self._timers
        while timers and timers[0].cancelled:
            heappop(timers)
        if not timers:
            raise Stuck(f"at {self._now:.3f} s nothing can happen any more")
        self._now = max(self._now, float(timers[0]))

    def _take_due(self) -> None:
        timers, ready, now = self._timers, self._ready, self._now
        while timers and timers[0] <= now:
            ready.put(heappop(timers))

    # --- Clock ---

    def wall_ms(self) -> int:
        """Return UTC ms."""
        return EPOCH_MS + int(self._now * 1000)

    def monotonic(self) -> float:
        """Return virtual seconds."""
        return self._now

    # --- processes ---

    def start(self, process: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` as (a part of) `process`; everything it starts belongs to it too.

        Nobody waits for it: what it raises is `unhandled`."""
        context = copy_context()
        context.run(PROCESS.set, process)
        self._tasks.append(self.create_task(work, context=context))  # a loop holds its tasks weakly
        if len(self._tasks) > self._sift_at:
            self._sift()

    @property
    def unhandled(self) -> list[dict[str, Any]]:
        """Return what was raised so far and nobody was there to handle."""
        self._sift()
        return self._unhandled

    def _sift(self) -> None:
        """Let go of the tasks that have ended."""
        ended = [task for task in self._tasks if task.done()]
        self._tasks = [task for task in self._tasks if not task.done()]
        self._sift_at = 2 * len(self._tasks) + 100
        for task in ended:
            if not task.cancelled() and (error := task.exception()) is not None:
                name = getattr(task.get_coro(), "__qualname__", "a task")
                self._unhandled.append({"message": f"{name} raised", "exception": error})

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

    @property
    def holding(self) -> bool:
        """Return whether a process is held."""
        return bool(self._ready.held)

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


def _tell(done: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    try:
        value = func(*args)
    except Exception as error:  # noqa: BLE001 - whoever waits gets it
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(value)


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
