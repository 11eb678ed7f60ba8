"""`outlast stop --node N`: have Ray drain a node, and tell what is still on it.

Moving what can move is done by those who look after it: drivers by `engine/moving.py`, shards by their keepers. Only
when no run needs the node any more, or just before the deadline, Ray is told (`seal_free`): from then on it puts
nothing there, not even the successor of a driver that died, and ends the raylet once nothing is left. Then the
supervisor goes, and Serve moves gateway replicas. `ray drain-node` and a notice of preemption begin with that step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from actors.names import run_name
from actors.nodes import Nodes
from actors.shard_keeper import ShardKeeper
from runtime.engine.fleet import Watched
from runtime.engine.moving import holds, staying
from runtime.engine.placing import Node
from runtime.errors import InputInvalid

ID_CHARACTERS = 56
PREFIX_CHARACTERS = 4
SEAL_BEFORE_MS = 2000


def find_node(nodes: Nodes, name: str) -> str | None:
    """Return the id of the node that is called so: its id or the beginning of it, its address or host name. None for
    the whole id of one that is gone.

    Raises InputInvalid `node_unknown`."""
    ids = [node.node_id for node in nodes.seen()]
    found = [
        one for one in ids if name in nodes.names(one) or (len(name) >= PREFIX_CHARACTERS and one.startswith(name))
    ]
    if len(found) == 1:
        return found[0]
    if not found and len(name) == ID_CHARACTERS:
        return None
    there = ", ".join(f"{node.node_id[:12]} ({node.address})" for node in nodes.seen())
    what = "no node" if not found else "more than one node"
    raise InputInvalid(f"{name!r} names {what}; there are {there}.", code="node_unknown", field="node")


def check_node(nodes: Nodes, node_id: str, serve_node: str) -> None:
    """Raise InputInvalid `node_refused` for a node that the others cannot do without."""
    if node_id == serve_node or nodes.is_head(node_id):
        whose = "of `outlast serve`" if node_id == serve_node else "of Ray's head"
        message = f"Node {node_id[:12]} is that {whose}, which the others need: `outlast stop` ends the instance."
        raise InputInvalid(message, code="node_refused", field="node")


async def drain_node(nodes: Nodes, node_id: str, within_s: float) -> None:
    """Drain the node, unless it is being drained already."""
    if nodes.deadline(node_id) is None:
        await nodes.drain(node_id, time.time_ns() // 1_000_000 + int(within_s * 1000))


class Drainable(Protocol):
    """Nodes, as far as their end goes (`actors.nodes.Nodes`)."""

    def seen(self) -> list[Node]:
        """Return the nodes."""

    def leaving(self) -> Mapping[str, int]:
        """Return those that Ray is still to be told of, and until when (UTC ms)."""

    async def seal(self, node_id: str) -> None:
        """Tell Ray."""


async def seal_free(nodes: Drainable, needing: Iterable[Watched] | None, now_ms: int) -> None:
    """Seal each node that is drained and that no run needs any more, and each whose deadline is near.

    `needing`: the runs; None while it is not known yet which there are."""
    for node_id, deadline_ms in nodes.leaving().items():
        free = needing is not None and not holds(nodes.seen(), needing, node_id)
        if free or now_ms >= deadline_ms - SEAL_BEFORE_MS:
            await nodes.seal(node_id)


def report(
    nodes: Nodes, node_id: str, watched: Mapping[str, Watched], keepers: Sequence[ShardKeeper]
) -> dict[str, Any]:
    """Return what is on the node, and for each why it is still there."""
    left = {run_name(run_id): why for run_id, why in staying(nodes.seen(), watched, node_id).items()}
    left |= {keeper.name: "is being moved" for keeper in keepers if keeper.last.get("nodeId") == node_id}
    if node_id == nodes.mine:
        left["supervisor"] = "is being moved"
    return {"nodeId": node_id, "deadline": nodes.deadline(node_id), "left": left, "gone": False}


def gone(node_id: str) -> dict[str, Any]:
    """Return the report on a node that is no more."""
    return {"nodeId": node_id, "deadline": None, "left": {}, "gone": True}
