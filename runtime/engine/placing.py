"""Where a run's driver is to be made: on the least loaded node from which its sandbox can be reached (P17).

Pure: the nodes as they were last seen come in, a place comes out. A sandbox that is bound to a host (its provider says
so) can be driven from the nodes of that host only; where none of them answers, a driver elsewhere holds the run and
waits: unreachable is not gone. `Move` says when a driver that is watched is in the wrong place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from runtime.core.record import Struct


class Node(Struct, frozen=True, kw_only=True):
    """A node as it was last seen. `hosts` names what can be reached from it alone, None until it has told."""

    node_id: str
    address: str = ""
    slots: int = 1  # how many run actors it has room for
    hosts: frozenset[str] | None = frozenset()
    answers: bool = True
    drains: bool = False  # what can go elsewhere does
    sealed: bool = False  # Ray drains it, and puts nothing there any more, whoever asks

    @property
    def open(self) -> bool:
        """Return whether something new may be put there."""
        return self.answers and not self.drains

    @property
    def takes(self) -> bool:
        """Return whether Ray puts there what can be nowhere else."""
        return self.answers and not self.sealed

    def reaches(self, host: str | None) -> bool:
        """Return whether what is bound to `host` (None: to nothing) can be reached from here."""
        return host is None or (self.hosts is not None and host in self.hosts)


class Place(Struct, frozen=True, kw_only=True):
    """A decision. Without a node there is no room now: the actor then waits for one that Ray or an autoscaler finds.

    `home` is the host of the run's sandbox, or of its thread's workspace; `bound`: no other node will do."""

    node_id: str | None = None
    bound: bool = False
    home: str | None = None


class Move(Enum):
    """Why a driver is to be replaced by one elsewhere."""

    HOME = "its sandbox can be reached from another node again"
    DRAIN = "its node is being drained"


def place(
    nodes: Sequence[Node],
    load: Mapping[str, int],
    home: str | None = None,
    avoid: str | None = None,
    *,
    takes_room: bool = True,
) -> Place | None:
    """Return where to make a driver; None while a node that answers has not told yet whether it is the home.

    `load` counts the run actors by node; `avoid` is the lost driver's node, taken only if there is no other (P17).
    What takes no room goes to the least loaded node, full or not."""
    available = [node for node in nodes if node.open]
    if home is not None:
        at_home = [node for node in available if node.reaches(home)]
        at_home = at_home or [node for node in nodes if node.takes and node.reaches(home)]  # a drain waits for it
        if at_home:
            best = _best(at_home, load, avoid) or min(at_home, key=lambda node: load.get(node.node_id, 0))
            return Place(node_id=best.node_id, bound=True, home=home)
        if any(node.hosts is None for node in nodes if node.takes):
            return None
    chosen = _best(available, load, avoid)
    if chosen is None and available and not takes_room:
        chosen = min(available, key=lambda node: load.get(node.node_id, 0))
    return Place(node_id=None if chosen is None else chosen.node_id, home=home)


def _best(nodes: Iterable[Node], load: Mapping[str, int], avoid: str | None) -> Node | None:
    """Return the node with room that is least loaded for its size."""
    with_room = [node for node in nodes if load.get(node.node_id, 0) < node.slots]
    return min(
        with_room,
        key=lambda node: (node.node_id == avoid, load.get(node.node_id, 0) / node.slots, node.node_id),
        default=None,
    )


def misplaced(nodes: Sequence[Node], load: Mapping[str, int], node_id: str, home: str | None) -> Move | None:
    """Return why the driver on `node_id` should go elsewhere, if it should and there is an elsewhere."""
    here = next((node for node in nodes if node.node_id == node_id), None)
    if here is None:
        return None  # a lost node's drivers are found by their leases
    away = here.hosts is not None and not here.reaches(home)
    if not away and not here.drains:
        return None
    target = place(nodes, load, home, avoid=node_id)
    if target is None or target.node_id in (None, node_id):
        return None
    if away:
        return Move.HOME if target.bound else None
    to_an_open_one = any(node.node_id == target.node_id and node.open for node in nodes)
    return Move.DRAIN if to_an_open_one and (target.bound or home is None) else None


def shortage(nodes: Sequence[Node], load: Mapping[str, int], place: Place) -> str:
    """Return in words what is missing where `place` has no node with room."""
    seen = [
        f"{node.node_id[:8]} {load.get(node.node_id, 0)} of {node.slots}"
        + ("" if node.answers else ", silent")
        + (", draining" if node.drains else "")
        for node in nodes
        if place.home is None or not place.bound or node.reaches(place.home)
    ]
    return f"no node has room for a run actor ({'; '.join(seen) or 'no node is known'})"
