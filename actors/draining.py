"""`outlast stop --node N`: have Ray drain a node, and tell what is still on it.

Ray's own drain is the record of it: `ray drain-node` and a notice of preemption lead to the same, and a supervisor that
is made anew knows. Ray puts nothing new on such a node and ends its raylet once nothing is left there. Moving what can
move is done by those who look after it: the supervisor's drivers by `engine/moving.py`, shards by their keepers, the
supervisor by going, gateway replicas by Serve.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from actors.names import run_name
from actors.nodes import Nodes
from actors.shard_keeper import ShardKeeper
from runtime.engine.fleet import Watched
from runtime.engine.moving import staying
from runtime.errors import InputInvalid

ID_CHARACTERS = 56
PREFIX_CHARACTERS = 4


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
    """Have Ray drain the node, unless it does already. Raises InputInvalid `node_refused`."""
    if nodes.deadline(node_id) is None:
        why = await nodes.drain(node_id, time.time_ns() // 1_000_000 + int(within_s * 1000))
        if why:
            raise InputInvalid(f"Ray does not drain node {node_id[:12]}: {why}", code="node_refused", field="node")


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
