"""Who watches through this replica: a level, told to every shard again and again (P20).

Each replica sends each shard its whole set every second, with its name and a growing number. Nothing is sent when a
viewer leaves: messages from a request that is being cancelled are lost now and then (measured), and the next set says
it anyway. An attach is a call of its own, so that `detachedSince` is clear before the viewer gets a byte.

While the replica is being stopped nothing is sent: its viewers were cut by us, and their absence means nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.errors import OutlastError
from runtime.ports import Cluster, ShardPort

log = logging.getLogger("outlast.gateway")

PERIOD_S = 1.0


class Viewers:
    """The set of one replica. `total` counts streams, a run's several viewers included."""

    def __init__(self, cluster: Cluster, name: str, stopped: asyncio.Event) -> None:
        self.total = 0
        self._cluster = cluster
        self._name = name
        self._stopped = stopped
        self._counts: dict[str, int] = {}
        self._number = 0

    @contextmanager
    def watching(self, run_id: str) -> Iterator[None]:
        """Count one viewer of the run for as long as the context lasts."""
        self._counts[run_id] = self._counts.get(run_id, 0) + 1
        self.total += 1
        try:
            yield
        finally:
            self.total -= 1
            self._counts[run_id] -= 1
            if not self._counts[run_id]:
                del self._counts[run_id]

    async def attach(self, run_id: str) -> bool:
        """Tell the run's shard that a viewer came; False: unknown run. To be called inside `watching`, so that every
        set with a higher number holds the run. Raises StoreError."""
        return await self._cluster.shard(run_id).attach(run_id, self._name, self._next())

    async def push(self) -> None:
        """Send the whole set to every shard, each in its own time; one that does not take it in time gets the next."""
        number, counts = self._next(), dict(self._counts)
        async with asyncio.TaskGroup() as group:
            for shard in self._cluster.shards():
                group.create_task(self._push_to(shard, number, counts))

    async def push_forever(self) -> None:
        """Push every second until the replica is stopped."""
        while not self._stopped.is_set():
            await self.push()
            try:
                async with asyncio.timeout(PERIOD_S):
                    await self._stopped.wait()
            except TimeoutError:
                continue

    async def _push_to(self, shard: ShardPort, number: int, counts: dict[str, int]) -> None:
        try:
            await shard.set_viewers(self._name, number, counts)
        except OutlastError as error:
            log.info("a shard did not take the set of viewers: %r", error)
        except Exception:
            log.exception("a shard refused the set of viewers")

    def _next(self) -> int:
        self._number += 1
        return self._number
