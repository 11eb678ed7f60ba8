"""Calls hooks: each on an OS thread that does nothing else, with a time of its own.

    lanes      a few, each with a thread and a bounded queue; the hooks of one run are on one lane, so in order
    endings    the same again beside them, so that an end does not wait behind chunks
    late       a call beyond its time is left alone, and counted. An async one is cancelled; the thread of another goes
               on until that returns, and its lane gets a new one. While too many are so left, calls are not made, and
               `full_s` says for how long: nothing but a new process helps then

What a hook raises is logged and counted, and that is all.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from runtime.core import chunk
from runtime.core.ids import Offset
from runtime.engine.hook_queue import HookEvent
from runtime.hooks import HookSet, RunFacts

log = logging.getLogger("outlast.hooks")

LANES = 4
MOST_EVENTS = 10_000  # that wait, over all lanes
MOST_BYTES = 32 << 20
MOST_LEFT = 16  # threads whose call has not returned in its time
GRACE_S = 0.5  # for an async call to notice that it is cancelled

OK, FAILED, LATE, SKIPPED = "ok", "failed", "late", "skipped"


class _Thread:
    """One OS thread with an event loop for async hooks, which keep what they hold between calls."""

    def __init__(self, name: str) -> None:
        self.given_up = False
        self._calls: queue.SimpleQueue[tuple[Future[None], Callable[[], object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Return whether it has not come to its end."""
        return self._thread.is_alive()

    def submit(self, work: Callable[[], object]) -> Future[None]:
        """Have `work` done; what it returns is awaited there if it can be."""
        done: Future[None] = Future()
        self._calls.put((done, work))
        return done

    def end(self) -> None:
        """Let the thread end after what it does now."""
        self._calls.put(None)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while not self.given_up and (call := self._calls.get()) is not None:
                done, work = call
                try:
                    result = work()
                    if inspect.isawaitable(result):
                        runner.run(_awaited(result))
                except Exception as error:  # noqa: BLE001 - a hook may raise anything
                    done.set_exception(error)
                except BaseException as error:  # noqa: BLE001 - SystemExit, too, and that is no order to us
                    done.set_exception(RuntimeError(repr(error)))
                else:
                    done.set_result(None)


async def _awaited(result: Awaitable[object]) -> None:
    await result


class HookCalls:
    """The calls of every hook of one process."""

    def __init__(self, sets: Sequence[HookSet], timeout_s: float) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # of calls, by hook and what came of it
        self.dropped = 0
        self.wanted = frozenset(name for one in sets for name in one.names)
        self._sets = sets
        self._timeout_s = timeout_s
        self._threads: dict[str, _Thread] = {}
        self._left: list[_Thread] = []
        self._full_since: float | None = None
        self._queues: list[asyncio.Queue[HookEvent]] = [asyncio.Queue() for _ in range(LANES)]
        self._locks = [asyncio.Lock() for _ in range(LANES)]
        self._waiting = self._bytes = 0
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Begin to call; needs a running loop."""
        self._tasks = [asyncio.create_task(self._work(lane), name=f"hooks {lane}") for lane in range(LANES)]

    async def close(self) -> None:
        """Stop calling; what runs goes on until it returns."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for thread in self._threads.values():
            thread.end()

    def put(self, events: Sequence[HookEvent]) -> None:
        """Take events to be told, as far as there is room."""
        for event in events:
            size = len(event.batch.data) if event.batch is not None else 0
            if self._waiting >= MOST_EVENTS or self._bytes + size > MOST_BYTES:
                self.dropped += 1
                continue
            self._waiting += 1
            self._bytes += size
            self._queues[_lane(event.key)].put_nowait(event)

    async def ended(self, name: str, key: str, run: RunFacts, path: str) -> bool:
        """Call the ending hook of one object of the setting; return when that is done, or given up. False: it was not
        called, for too many hang."""
        lane = _lane(key)
        async with self._locks[lane]:
            results = [await self._call(one, name, f"ends {lane}", (run,)) for one in self._sets if one.path == path]
        return SKIPPED not in results

    def full_s(self) -> float:
        """Return for how long so many calls hang that no more are made; 0.0 if some are."""
        self._look()
        return 0.0 if self._full_since is None else time.monotonic() - self._full_since

    def _look(self) -> None:
        self._left = [thread for thread in self._left if thread.busy]
        if len(self._left) < MOST_LEFT:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = time.monotonic()

    async def _work(self, lane: int) -> None:
        while True:
            event = await self._queues[lane].get()
            for arguments in _arguments(event):
                for one in self._sets:
                    await self._call(one, event.name, f"lane {lane}", arguments)
            self._waiting -= 1
            self._bytes -= len(event.batch.data) if event.batch is not None else 0

    async def _call(self, one: HookSet, name: str, place: str, arguments: tuple[Any, ...]) -> str:
        call = one.call(name)
        if call is None:
            return OK
        result = await self._made(call, place, arguments, f"{one.path} {name}")
        self.counts[name, result] += 1
        return result

    async def _made(self, call: Callable[..., object], place: str, arguments: tuple[Any, ...], what: str) -> str:
        self._look()
        if self._full_since is not None:
            return SKIPPED
        thread = self._threads.get(place)
        if thread is None:
            thread = self._threads[place] = _Thread(f"hooks {place}")
        done = thread.submit(lambda: _within(call(*arguments), self._timeout_s))
        await asyncio.wait([asyncio.wrap_future(done)], timeout=self._timeout_s + GRACE_S)
        if not done.done():
            log.warning("hook %s: no end within %g s; its thread is left alone", what, self._timeout_s)
            thread.given_up = True
            thread.end()
            self._left.append(self._threads.pop(place))
            return LATE
        error = done.exception()
        if isinstance(error, _Late):
            log.warning("hook %s: no end within %g s", what, self._timeout_s)
            return LATE
        if error is not None:
            log.warning("hook %s failed", what, exc_info=error)
            return FAILED
        return OK


class _Late(Exception):
    """An async hook was cancelled, since its time was up."""


def _within(result: object, timeout_s: float) -> object:
    return _cut(result, timeout_s) if inspect.isawaitable(result) else None


async def _cut(result: Awaitable[object], timeout_s: float) -> None:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            await result
    except TimeoutError:
        if limit.expired():
            raise _Late from None
        raise


def _lane(key: str) -> int:
    return zlib.crc32(key.encode()) % LANES


def _arguments(event: HookEvent) -> list[tuple[Any, ...]]:
    """Return what the hook is called with: of chunks, once for each."""
    if event.batch is None:
        return [(event.run,)]
    first = event.batch.seq + 1
    return [
        (event.run, str(Offset(event.generation, first + at)), chunk.decode_chunk(data))
        for at, data in enumerate(event.batch.chunks())
    ]
