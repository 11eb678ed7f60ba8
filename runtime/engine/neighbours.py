"""The other shards of one store: which runs are theirs, and what they changed of ours (P12).

A thread's runs may lie on different shards. The finish on one un-queues a run of another, and a POST on one cancels the
active run of another, or completes an interrupted one, each in one transaction of the store. Whose run it is learns it
in three ways, each enough but for the last of a completed one:

    told     whoever caused it tells the supervisor, which asks for the record; a queued run's is read anew then
    met      the store refuses to decide on what is no longer so, and its answer holds the newest head
    found    every LOOK_S the store is asked which unfinished runs are newer than what is known here (I7)

A store with one shard has no neighbours, and is asked nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from runtime.core.ids import shard_of
from runtime.core.record import Head, Status
from runtime.engine.clock import Threads
from runtime.errors import StoreError
from runtime.ports import Clock, Store

log = logging.getLogger("outlast.shard")

LOOK_S = 1.0


class Neighbours:
    """One shard among `shards`."""

    def __init__(self, store: Store, shard: int, shards: int, *, clock: Clock, threads: Threads) -> None:
        self._store = store
        self._shard = shard
        self._shards = shards
        self._clock = clock
        self._threads = threads
        self._looked = clock.monotonic()

    def owns(self, run_id: str) -> bool:
        """Return whether the run is this shard's own."""
        return self._shards == 1 or shard_of(run_id, self._shards) == self._shard

    def may_have_moved(self, head: Head | None) -> bool:
        """Return whether a neighbour may have given the run its thread, or its answer, since it was last read."""
        waits = head is not None and (head.queued or head.status is Status.INTERRUPTED)
        return self._shards > 1 and waits and head is not None and not head.status.terminal

    def look_due(self) -> bool:
        """Return whether it is time to ask what neighbours changed; True at most every LOOK_S."""
        now = self._clock.monotonic()
        if self._shards == 1 or now - self._looked < LOOK_S:
            return False
        self._looked = now
        return True

    async def changed(self, known: Mapping[str, int]) -> list[Head]:
        """Return our unfinished runs that are newer than their versions in `known`; none if the store is silent."""
        try:
            return await self._threads.read(lambda: self._store.list_changed(self._shard, known))
        except StoreError as error:
            log.debug("log:%d could not look at its neighbours: %s", self._shard, error)
            return []
