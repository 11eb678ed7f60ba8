"""The nodes of the cluster as the supervisor sees them: which answer, which are being drained, what each can reach.

Ray's list of nodes is what there is; whether one answers is asked of itself, since Ray believes for up to 65 s in one
that is lost. A node is silent once it missed SILENT_AFTER questions, one second apart.

A drain has two steps, since Ray refuses everything on a node that it drains, a lost driver's successor too: first only
we know of it, and put there only what can be nowhere else; `seal` then has Ray drain it. The first step is remembered
beside Ray's own list of nodes, for a supervisor that is made anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state as ray_state
from ray._private import worker as ray_worker

from actors.drain_notes import keep_drain, kept_drains
from actors.errands import Errands
from actors.raylets import Raylet
from actors.reach import Reach, Reached
from actors.slots import slots
from runtime.engine.placing import Node

log = logging.getLogger("outlast.supervisor")

# Ray's node functions carry no types.
_ray: Any = ray
_state: Any = ray_state
_worker: Any = ray_worker

LOOK_S = 1.0
SILENT_AFTER = 2
SEAL_LEAST_MS = 1000
PREEMPTION = 2  # DrainNodeReason: always accepted; the raylet goes by itself once it is idle


@dataclass(slots=True)
class _Known:
    row: dict[str, Any]
    raylet: Raylet
    missed: int = 0


class Nodes:
    """Use it on one event loop; `look_forever` keeps it up to date."""

    def __init__(self, errands: Errands, mine: Reached, namespace: str) -> None:
        """`mine`: what this process reaches."""
        self.mine = str(ray.get_runtime_context().get_node_id())
        self._namespace = namespace
        self._reach = Reach(errands.hosts)
        self._reach.tell(self.mine, mine)
        self._known: dict[str, _Known] = {}
        self._draining: dict[str, int] = {}  # by Ray
        self._leaving: dict[str, int] | None = None  # by us; None before the first look

    def seen(self) -> list[Node]:
        """Return the living nodes as they were last seen."""
        return [
            Node(
                node_id=node_id,
                address=str(known.row["NodeManagerAddress"]),
                slots=slots(known.row),
                hosts=self._reach.of(node_id),
                answers=known.missed < SILENT_AFTER,
                drains=self.deadline(node_id) is not None,
                sealed=node_id in self._draining,
            )
            for node_id, known in self._known.items()
        ]

    def names(self, node_id: str) -> set[str]:
        """Return what people may call the node, its id excepted."""
        row = self._known[node_id].row
        return {str(row[name]) for name in ("NodeManagerAddress", "NodeManagerHostname", "NodeName")}

    def is_head(self, node_id: str) -> bool:
        """Return whether Ray's head is on that node."""
        return "node:__internal_head__" in self._known[node_id].row["Resources"]

    def cores(self, node_id: str) -> int:
        """Return how many cores Ray thinks that it has; at least 1."""
        return max(1, int(self._known[node_id].row["Resources"].get("CPU", 1)))

    def raylet_address(self, node_id: str) -> str | None:
        """Return where its raylet listens; None for a node that is gone."""
        known = self._known.get(node_id)
        return None if known is None else known.raylet.address

    async def answers(self, node_id: str) -> bool:
        """Ask the node now; one miss is enough to be silent until it answers again."""
        known = self._known.get(node_id)
        if known is None:
            return False
        known.missed = 0 if await known.raylet.answers() else max(known.missed + 1, SILENT_AFTER)
        return known.missed == 0

    async def look_forever(self) -> None:
        """Look every second."""
        await asyncio.sleep(LOOK_S)
        await self.look()

    async def look(self) -> None:
        """Take Ray's list, and ask every node whether it answers."""
        rows, self._draining = await asyncio.to_thread(_rows)
        if self._leaving is None:
            self._leaving = await asyncio.to_thread(kept_drains, self._namespace)
        for gone in set(self._known) - set(rows):
            log.info("node %s is gone", gone)
            await self._known.pop(gone).raylet.close()
            self._reach.forget(gone)
        for node_id, row in rows.items():
            if node_id not in self._known:
                raylet = Raylet(f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}")
                self._known[node_id] = _Known(row, raylet)
            self._known[node_id].row = row
        await asyncio.gather(*(self._look_at(node_id, known) for node_id, known in list(self._known.items())))

    async def _look_at(self, node_id: str, known: _Known) -> None:
        answers = await known.raylet.answers()
        if not answers and known.missed == SILENT_AFTER - 1:
            log.warning("node %s (%s) does not answer", node_id, known.raylet.address)
        known.missed = 0 if answers else known.missed + 1
        self._reach.seen(node_id, answers=answers and not self.sealed(node_id))

    async def drain(self, node_id: str, deadline_ms: int) -> None:
        """Have what can leave the node leave it; until then (UTC ms), or until it is sealed, the rest stays."""
        await asyncio.to_thread(keep_drain, self._namespace, node_id, deadline_ms)
        self._leaving = {**(self._leaving or {}), node_id: deadline_ms}

    async def seal(self, node_id: str) -> None:
        """Have Ray drain the node: it puts nothing there any more, and ends it once it is idle, or at the deadline."""
        deadline_ms = self.leaving()[node_id]
        accepted, why = await asyncio.to_thread(_drain, node_id, max(deadline_ms, _now_ms() + SEAL_LEAST_MS))
        if accepted:
            self._draining[node_id] = deadline_ms
        else:
            log.warning("Ray does not drain node %s: %s", node_id, why)

    def leaving(self) -> dict[str, int]:
        """Return the nodes that are drained and not sealed, and until when (UTC ms)."""
        leaving = self._leaving or {}
        return {node: until for node, until in leaving.items() if node in self._known and node not in self._draining}

    def deadline(self, node_id: str) -> int | None:
        """Return until when (UTC ms) the node is being drained; None if it is not."""
        return self._draining.get(node_id, (self._leaving or {}).get(node_id))

    def sealed(self, node_id: str) -> bool:
        """Return whether Ray drains the node."""
        return node_id in self._draining


def _rows() -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    rows = {str(row["NodeID"]): row for row in _ray.nodes() if row["Alive"]}
    return rows, dict(_state.state.get_draining_nodes())


def _drain(node_id: str, deadline_ms: int) -> tuple[bool, str]:
    client = _worker.global_worker.gcs_client
    accepted, why = client.drain_node(node_id, PREEMPTION, "outlast stop --node", deadline_ms)
    return bool(accepted), str(why)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
