"""Where a driver goes: the least loaded node that answers and reaches the sandbox (P17)."""

from __future__ import annotations

import pytest

from runtime.engine.placing import Move, Node, Place, misplaced, place, shortage

HERE, THERE = "local/here", "local/there"


def node(node_id: str, host: str | None = HERE, **facts: object) -> Node:
    hosts = None if host is None else frozenset({host})
    return Node(node_id=node_id, hosts=hosts, **{"slots": 10, **facts})  # type: ignore[arg-type]


A, B, C = node("a"), node("b"), node("c", THERE)
AT_D = Place(node_id="d", bound=True, home=THERE)


@pytest.mark.parametrize(
    ("nodes", "load", "home", "avoid", "expected"),
    [
        ([A, B], {"a": 3, "b": 2}, None, None, Place(node_id="b")),
        ([A, B], {"a": 0, "b": 5}, None, "a", Place(node_id="b")),
        ([A], {}, None, "a", Place(node_id="a")),
        ([A, node("b", slots=100)], {"a": 5, "b": 20}, None, None, Place(node_id="b")),
        ([A, B], {"a": 10, "b": 10}, None, None, Place()),
        ([A, node("b", answers=False)], {"a": 9}, None, None, Place(node_id="a")),
        ([A, node("b", drains=True)], {"a": 9}, None, None, Place(node_id="a")),
        ([], {}, None, None, Place()),
        ([A, B, C], {"c": 9}, THERE, None, Place(node_id="c", bound=True, home=THERE)),
        ([A, B, C], {"c": 10}, THERE, None, Place(node_id="c", bound=True, home=THERE)),
        ([A, B, C], {"c": 1}, THERE, "c", Place(node_id="c", bound=True, home=THERE)),
        ([A, node("c", THERE, answers=False)], {}, THERE, None, Place(node_id="a", home=THERE)),
        ([A, node("c", THERE, drains=True)], {}, THERE, "c", Place(node_id="c", bound=True, home=THERE)),
        ([A, node("c", THERE, drains=True, sealed=True)], {}, THERE, None, Place(node_id="a", home=THERE)),
        ([A, node("c", THERE, drains=True), node("d", THERE)], {"d": 9}, THERE, None, AT_D),
        ([A, node("c", None)], {}, THERE, None, None),
        ([A, node("c", None, drains=True)], {}, THERE, None, None),
        ([A, node("c", None, drains=True, sealed=True)], {}, THERE, None, Place(node_id="a", home=THERE)),
        ([A, node("c", None)], {}, HERE, None, Place(node_id="a", bound=True, home=HERE)),
        ([A, node("c", None, answers=False)], {}, THERE, None, Place(node_id="a", home=THERE)),
    ],
    ids=[
        "the least loaded",
        "not on the lost node if there is a choice",
        "on it if there is none",
        "load is a share of the room",
        "no room: none, and Ray or its autoscaler finds one",
        "not on a silent one",
        "not on one that is drained",
        "nothing is known",
        "bound: to its host, however loaded",
        "bound: to its host, and waits there for room",
        "bound: also to the node that lost the driver",
        "its host is silent: elsewhere, to wait",
        "its host is drained: there all the same, for the drain waits",
        "Ray drains its host, and takes nobody: elsewhere, to wait",
        "its host has another node: not on the drained one",
        "a node that has not told may be the host: not yet",
        "one that is drained may be it as well",
        "one that Ray drains is not asked any more: elsewhere",
        "the host is known: the others need not have told",
        "a silent node tells nothing: elsewhere",
    ],
)
def test_a_place(
    nodes: list[Node], load: dict[str, int], home: str | None, avoid: str | None, expected: Place | None
) -> None:
    assert place(nodes, load, home, avoid) == expected


DRAINED = node("a", drains=True)


@pytest.mark.parametrize(
    ("nodes", "load", "at", "home", "expected"),
    [
        ([A, B], {"a": 9}, "a", None, None),
        ([A, B], {"a": 9}, "a", HERE, None),
        ([DRAINED, B], {}, "a", None, Move.DRAIN),
        ([DRAINED, B], {}, "a", HERE, Move.DRAIN),
        ([DRAINED, C], {}, "a", HERE, None),
        ([DRAINED, B], {"b": 10}, "a", None, None),
        ([DRAINED], {}, "a", None, None),
        ([A, C], {}, "a", THERE, Move.HOME),
        ([A, node("c", THERE, answers=False)], {}, "a", THERE, None),
        ([A], {}, "gone", HERE, None),
        ([DRAINED, node("a2", drains=True)], {}, "a", HERE, None),
        ([A, node("c", THERE, drains=True)], {}, "a", THERE, Move.HOME),
    ],
    ids=[
        "balance is no reason",
        "at home it stays",
        "a drained node is left",
        "also for another node of the same host",
        "but not where the sandbox cannot be reached",
        "nor for a full node",
        "nor for nowhere",
        "who waits elsewhere goes home",
        "but not while home is silent",
        "a lost node is the lease's matter",
        "from one drained node to another there is no move",
        "who waits elsewhere goes home, also to a drained node",
    ],
)
def test_a_move(nodes: list[Node], load: dict[str, int], at: str, home: str | None, expected: Move | None) -> None:
    assert misplaced(nodes, load, at, home) is expected


def test_what_is_missing_is_said_node_by_node() -> None:
    nodes = [A, node("b", answers=False), node("c", drains=True)]
    assert shortage(nodes, {"a": 10}, Place()) == (
        "no node has room for a run actor (a 10 of 10; b 0 of 10, silent; c 0 of 10, draining)"
    )
