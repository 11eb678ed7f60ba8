"""Drivers that are in the wrong place go where they belong: off a node that is being drained, back to a host that
has returned (P17).

A drain is a handover: the record says so, the driver stops at its next word with the shard, and its successor is made
elsewhere, with the reason `drain`. A driver that does not stop in time is replaced like a lost one. A few at a time, so
that each pause stays short. A run whose sandbox cannot be reached from elsewhere stays where it is, and so does its
successor, should its driver die; `holds` says whether a node is still needed for that.

A driver that waits for a sandbox which it cannot reach is replaced as soon as the host has a node again; the reason is
then `restart`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from runtime.core.ops import RequestHandover
from runtime.core.record import ClaimReason, Head
from runtime.engine.authority import repeat
from runtime.engine.fleet import DriverDied, Fleet, Watched, load
from runtime.engine.placing import Move, Node, misplaced
from runtime.ports import ShardPort

log = logging.getLogger("outlast.supervisor")

MOVES_AT_ONCE = 4
HANDOVER_S = 5.0  # a driver hears of it within a third of a lease; one that has not stopped by then is replaced
SETTLE_S = 15.0  # then the next one may move, whatever became of this one


class Mover:
    """Looks after the places of one supervisor's drivers."""

    def __init__(
        self,
        fleet: Fleet,
        watched: Mapping[str, Watched],
        shard_of: Callable[[str], ShardPort],
        home: Callable[[Head], Awaitable[str | None]],
        replace: Callable[[Head, ClaimReason], None],
    ) -> None:
        self._fleet = fleet
        self._watched = watched
        self._shard_of = shard_of
        self._home = home
        self._replace = replace
        self._turns = asyncio.Semaphore(MOVES_AT_ONCE)

    async def turn(self) -> None:
        """Look once, and move what is misplaced; return when that has been tried."""
        await asyncio.gather(*(self._move(run_id, watched) for run_id, watched in self._suspects()))

    def _suspects(self) -> Iterator[tuple[str, Watched]]:
        nodes = {node.node_id: node for node in self._fleet.nodes()}
        for run_id, watched in list(self._watched.items()):
            node = nodes.get(watched.node_id or "")
            if watched.handle is not None and node is not None and (node.drains or not node.reaches(watched.home)):
                yield run_id, watched

    async def _move(self, run_id: str, watched: Watched) -> None:
        async with self._turns:
            stored = await repeat(lambda: self._shard_of(run_id).record(run_id))
            head = None if stored is None else stored[0]
            if head is None or not head.needs_driver or self._watched.get(run_id) is not watched:
                return
            watched.home = await self._home(head)
            why = self._why(watched)
            if why is None or self._watched.get(run_id) is not watched:
                return
            log.info("run %s: its driver moves: %s", run_id, why.value)
            if why is Move.HOME:
                self._replace(head, ClaimReason.RESTART)
            else:
                await self._hand_over(run_id, watched)
            await self._settled(run_id)

    def _why(self, watched: Watched) -> Move | None:
        assert watched.node_id is not None
        return misplaced(self._fleet.nodes(), load(self._watched.values()), watched.node_id, watched.home)

    async def _hand_over(self, run_id: str, watched: Watched) -> None:
        await repeat(lambda: self._shard_of(run_id).submit(RequestHandover(run_id=run_id)))
        assert watched.handle is not None
        assert watched.task is not None
        with suppress(TimeoutError, DriverDied):
            async with asyncio.timeout(HANDOVER_S):
                await watched.handle.cancel()  # it asks its shard at once
        await asyncio.wait((watched.task,), timeout=HANDOVER_S)  # ends after the decision about its successor
        if self._watched.get(run_id) is not watched:
            return
        stored = await repeat(lambda: self._shard_of(run_id).record(run_id))
        if stored is not None and stored[0].needs_driver and self._watched.get(run_id) is watched:
            log.warning("run %s: its driver did not hand over and is replaced", run_id)
            self._replace(stored[0], ClaimReason.DRAIN)

    async def _settled(self, run_id: str) -> None:
        """Return once the run has a driver that runs, or none at all."""
        now = self._watched.get(run_id)
        if now is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await now.runs.wait()


def staying(nodes: list[Node], watched: Mapping[str, Watched], node_id: str) -> dict[str, str]:
    """Return run id -> why it is still on that node, in words."""
    counts = load(watched.values())
    found = {}
    for run_id, one in watched.items():
        if one.node_id != node_id:
            continue
        if misplaced(nodes, counts, node_id, one.home) is not None:
            found[run_id] = "is being moved"
        elif one.home is not None:
            found[run_id] = f"its sandbox is on {one.home}, which no other node reaches"
        else:
            found[run_id] = "no other node has room"
    return found


def holds(nodes: Sequence[Node], watched: Iterable[Watched], node_id: str) -> bool:
    """Return whether a driver is on that node, or it is the last one that reaches a watched run's sandbox.

    What is not known counts as if it were so: what a run is bound to, and what a node that may still tell reaches."""
    told: frozenset[str] | None = next((node.hosts for node in nodes if node.node_id == node_id), frozenset())
    elsewhere = {host for node in nodes if node.open and node.node_id != node_id for host in node.hosts or ()}
    alone = None if told is None else told - elsewhere

    def needs(one: Watched) -> bool:
        if one.node_id == node_id or not one.home_known:
            return one.node_id == node_id or alone is None or bool(alone)
        return one.home is not None and (one.home not in elsewhere if alone is None else one.home in alone)

    return any(needs(one) for one in watched)
