"""Which callback of a simulated loop is next: any that is ready, of a process that runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

PROCESS: ContextVar[str] = ContextVar("sim_process", default="")


class Turn:
    """A callback that waits for its turn."""

    __slots__ = ("args", "callback", "cancelled", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.cancelled = False

    def cancel(self) -> None:
        """Never run it."""
        self.cancelled = True
        self.args = ()


class Timer(float):
    """A callback that waits for its time, which it is: a heap of floats compares without calling back."""

    __slots__ = ("args", "callback", "cancelled", "context")

    args: tuple[Any, ...]
    callback: Callable[..., object]
    cancelled: bool
    context: Context

    def cancel(self) -> None:
        """Never run it."""
        self.cancelled = True
        self.args = ()

    def when(self) -> float:
        """Return the virtual second at which it is due."""
        return float(self)


class Ready:
    """The callbacks that are ready, and beside them those that a held or killed process has."""

    def __init__(self, rng: random.Random) -> None:
        self.held: dict[str, list[Turn | Timer]] = {}
        self.dead: dict[str, list[Turn | Timer]] = {}
        self.turns: list[Turn | Timer] = []
        self._random = rng.random

    def put(self, turn: Turn | Timer) -> None:
        """Let it be taken, once its process runs."""
        if self.dead or self.held:
            process = turn.context.get(PROCESS, "")
            if process in self.dead:
                self.dead[process].append(turn)
                return
            if process in self.held:
                self.held[process].append(turn)
                return
        self.turns.append(turn)

    def take(self) -> Turn | Timer:
        """Return any one; there must be one."""
        turns = self.turns
        at = int(self._random() * len(turns))
        turns[at], turns[-1] = turns[-1], turns[at]
        return turns.pop()

    def clear(self) -> None:
        """Forget what is ready."""
        self.turns.clear()

    def hold(self, process: str) -> None:
        """Keep back what a process has and will have, unless it is dead."""
        if process not in self.dead and process not in self.held:
            self.held[process] = []
            self._sort_anew()

    def resume(self, process: str) -> None:
        """Let a held process go on."""
        self.turns.extend(self.held.pop(process, []))

    def kill(self, process: str) -> None:
        """Keep it back for ever."""
        if process not in self.dead:
            self.dead[process] = self.held.pop(process, [])
            self._sort_anew()

    def revive(self) -> None:
        """Let everything be taken that was kept back."""
        everything = [*self.held.values(), *self.dead.values()]
        self.held.clear()
        self.dead.clear()
        for turns in everything:
            self.turns.extend(turns)

    def _sort_anew(self) -> None:
        turns = self.turns[:]
        self.turns.clear()
        for turn in turns:
            self.put(turn)
