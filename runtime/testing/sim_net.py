"""Processes, and the messages between them: late, lost, answered in vain, delivered twice.

A timeout does not retract a call: whatever was sent may still happen, and whatever happened may go untold. A call to a
process that was killed fails soon, as Ray makes it; one to a process that is held waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeVar

from runtime.errors import OutlastError
from runtime.testing.sim_loop import SimLoop

T = TypeVar("T")

REPEATED_WITHIN_S = 12.0  # a request that is delivered twice comes again within this


class NoAnswer(Exception):
    """No answer came. `died`: because the process is dead; else nobody knows what happened."""

    def __init__(self, died: bool) -> None:
        super().__init__(died)
        self.died = died


class Process:
    """One simulated OS process: it can be held, resumed and killed, and it has callers who wait."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.loop = loop
        self.callers: dict[asyncio.Future[Any], None] = {}

    @property
    def alive(self) -> bool:
        """Return whether it was not killed (held is alive)."""
        return self.loop.alive(self.name)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in it."""
        self.loop.start(self.name, work)

    def hold(self) -> None:
        """Stop it where it is."""
        self.loop.hold(self.name)

    def resume(self) -> None:
        """Let it go on."""
        self.loop.resume(self.name)

    def kill(self) -> None:
        """End it; whoever waits for an answer of it learns that soon."""
        if self.alive:
            self.loop.kill(self.name)
            for reply in self.callers:
                wait_s = 0.001 + 0.05 * self.loop.rng.random()
                self.loop.call_later(wait_s, fail, reply, NoAnswer(died=True), context=Context())


@dataclass(slots=True)
class NetWeather:
    """How bad the network is; by default only a little slow."""

    slow_s: float = 0.004  # longest way of a message
    lose: float = 0.0  # share of requests that never arrive
    mute: float = 0.0  # share of answers that never arrive
    repeat: float = 0.0  # share of requests that arrive twice


class Net:
    """Carries calls."""

    def __init__(self, loop: SimLoop) -> None:
        self.weather = NetWeather()
        self.late = 0  # requests that will arrive a second time
        self._loop = loop
        self._random = loop.rng.random

    async def call(self, server: Process, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Run `work` in `server` and return its value. Raises NoAnswer, or the OutlastError that it raises."""
        reply: asyncio.Future[T] = self._loop.create_future()
        server.callers[reply] = None
        self._send(self._arrive, server, work, reply)
        timer = self._loop.call_later(timeout_s, fail, reply, NoAnswer(died=False))
        try:
            return await reply
        finally:
            timer.cancel()
            del server.callers[reply]

    def _send(self, tell: Callable[..., None], *what: Any) -> None:
        """Let a message go one way: it belongs to no process any more, and arrives whatever becomes of its sender."""
        self._loop.call_later(self._way_s(), tell, *what, context=Context())

    def _arrive(self, server: Process, work: Callable[[], Coroutine[Any, Any, T]], reply: asyncio.Future[T]) -> None:
        weather = self.weather
        if self._random() < weather.lose:
            self._notice(reply)
        elif not server.alive:
            fail(reply, NoAnswer(died=True))
        else:
            if self._random() < weather.repeat:
                self.late += 1
                self._loop.call_later(REPEATED_WITHIN_S * self._random(), self._arrive_again, server, work)
            server.start(self._serve(work, reply, lost=self._random() < weather.mute))

    def _arrive_again(self, server: Process, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.late -= 1
        nobody: asyncio.Future[Any] = self._loop.create_future()
        if server.alive:
            server.start(self._serve(work, nobody, lost=False))

    async def _serve(self, work: Callable[[], Coroutine[Any, Any, T]], reply: asyncio.Future[T], *, lost: bool) -> None:
        try:
            value = await work()
        except OutlastError as error:
            self._send(fail, reply, error)
            return
        if lost:
            self._send(self._notice, reply)
        else:
            self._send(answer, reply, value)

    def _notice(self, reply: asyncio.Future[Any]) -> None:
        """Let a caller find out, after a while, that there will be no answer."""
        self._loop.call_later(2.0 * self._random() ** 2, fail, reply, NoAnswer(died=False), context=Context())

    async def way(self) -> None:
        """Go one way."""
        await asyncio.sleep(self._way_s())

    def _way_s(self) -> float:
        return self.weather.slow_s * self._random() ** 3


def answer(reply: asyncio.Future[T], value: T) -> None:
    """Give an answer, if somebody still waits for it."""
    if not reply.done():
        reply.set_result(value)


def fail(reply: asyncio.Future[Any], error: Exception) -> None:
    """Refuse an answer, if somebody still waits for it."""
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # whoever waits gets it; nobody waiting is no failure
