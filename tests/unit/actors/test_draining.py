"""Ray is told of a drain when no run needs the node any more, or just before its deadline."""

from __future__ import annotations

from collections.abc import Mapping

from actors.draining import SEAL_BEFORE_MS, seal_free
from runtime.core.record import ClaimReason
from runtime.engine.fleet import Watched
from runtime.engine.placing import Node

DEADLINE_MS = 100_000
STAYS = Watched(1, ClaimReason.START, node_id="a", home="here")


class Nodes:
    """Node a is being drained, and is the only one of its host."""

    def __init__(self) -> None:
        self.sealed: list[str] = []

    def seen(self) -> list[Node]:
        return [
            Node(node_id="a", hosts=frozenset({"here"}), drains=True),
            Node(node_id="b", hosts=frozenset({"there"})),
        ]

    def leaving(self) -> Mapping[str, int]:
        return {} if self.sealed else {"a": DEADLINE_MS}

    async def seal(self, node_id: str) -> None:
        self.sealed.append(node_id)


async def test_a_node_is_sealed_once_no_run_needs_it() -> None:
    nodes = Nodes()
    await seal_free(nodes, [STAYS], 0)
    assert nodes.sealed == []
    await seal_free(nodes, [], 0)
    await seal_free(nodes, [], 0)
    assert nodes.sealed == ["a"]


async def test_a_node_that_a_run_needs_is_sealed_just_before_the_deadline() -> None:
    nodes = Nodes()
    await seal_free(nodes, [STAYS], DEADLINE_MS - SEAL_BEFORE_MS - 1)
    assert nodes.sealed == []
    await seal_free(nodes, [STAYS], DEADLINE_MS - SEAL_BEFORE_MS)
    assert nodes.sealed == ["a"]


async def test_before_all_runs_are_known_a_node_is_sealed_at_the_deadline_only() -> None:
    nodes = Nodes()
    await seal_free(nodes, None, DEADLINE_MS - SEAL_BEFORE_MS - 1)
    assert nodes.sealed == []
    await seal_free(nodes, None, DEADLINE_MS - SEAL_BEFORE_MS)
    assert nodes.sealed == ["a"]
