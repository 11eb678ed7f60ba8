"""Work of a replica that no request owns: bounded in time by whoever starts it, kept referenced, ended together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("outlast.gateway")


class Background:
    """A set of tasks. An error ends its own task only; it is logged here, unless somebody awaits the task."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a set that keeps the order
        self._keys: set[str] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `work` until it ends or the replica does.

        In a context of its own: when a client leaves, Ray cancels every call that was made in its request's context,
        and what many wait for would end with the first who asked."""
        task = asyncio.create_task(work, name=name, context=Context())
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def once(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, unless work of this key is under way: many viewers of a run ask for the same thing at once."""
        if key in self._keys:
            work.close()
            return
        self._keys.add(key)
        self.spawn(work, key).add_done_callback(lambda _: self._keys.discard(key))

    async def close(self) -> None:
        """Cancel everything and wait until it is over."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("%s: %s", task.get_name(), error)
