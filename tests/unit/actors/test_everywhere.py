"""What a supervisor sees and destroys on other hosts than its own, and what it does about those that do not answer."""

from __future__ import annotations

import pytest
from unit.actors.cluster_by_hand import NodesByHand
from unit.actors.host_provider import HERE, NOTHING, SANDBOXES, HostProvider

from actors import errands
from actors.reach import Reached
from runtime.engine.placing import Node
from runtime.errors import SandboxUnreachable
from runtime.ports import Capabilities


@pytest.fixture
def nodes() -> NodesByHand:
    """Return a cluster: the supervisor's host `home`, one more of two nodes, and one of one."""
    nodes = NodesByHand()
    nodes.place(a="home", b1="barn", b2="barn", c="cave")
    SANDBOXES.update(home={"home/run-1"}, barn={"barn/run-2", "barn/run-3"}, cave={"cave/run-4"})
    return nodes


async def test_what_there_is_on_every_host_is_listed_and_each_host_is_asked_once(nodes: NodesByHand) -> None:
    keys = await nodes.everywhere()["hosted"].list()
    assert keys == ["home/run-1", "barn/run-2", "barn/run-3", "cave/run-4"]
    assert len(nodes.sent) == 2
    assert "a" not in nodes.sent


async def test_a_host_that_fails_hides_no_other(nodes: NodesByHand) -> None:
    nodes.broken = {"b1", "b2"}
    assert await nodes.everywhere()["hosted"].list() == ["home/run-1", "cave/run-4"]


async def test_hosts_that_do_not_answer_are_left_out_at_the_deadline(
    nodes: NodesByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errands, "LIST_S", 0.05)
    nodes.silent = {"b1", "b2", "c"}
    assert await nodes.everywhere()["hosted"].list() == ["home/run-1"]


async def test_nodes_that_are_silent_or_sealed_or_have_not_told_are_not_asked(nodes: NodesByHand) -> None:
    nodes.seen = [
        Node(node_id="a", hosts=frozenset({"home"})),
        Node(node_id="b1", hosts=frozenset({"barn"}), answers=False),
        Node(node_id="c", hosts=frozenset({"cave"}), drains=True, sealed=True),
        Node(node_id="d", hosts=None),
        Node(node_id="e", hosts=frozenset()),
    ]
    assert await nodes.everywhere()["hosted"].list() == ["home/run-1"]
    assert nodes.sent == []


async def test_a_supervisor_where_nothing_can_be_made_still_sees_and_destroys_elsewhere(nodes: NodesByHand) -> None:
    """Such as one without Docker, beside nodes with it."""
    home = HERE.set(NOTHING)
    hosted = nodes.everywhere()["hosted"]
    assert await hosted.list() == ["home/run-1", "barn/run-2", "barn/run-3", "cave/run-4"]
    await hosted.destroy("cave/run-4")
    assert SANDBOXES["cave"] == set()
    HERE.reset(home)


async def test_a_drained_node_is_asked_as_long_as_it_takes_anything(nodes: NodesByHand) -> None:
    nodes.seen = [Node(node_id="c", hosts=frozenset({"cave"}), drains=True)]
    hosted = nodes.everywhere()["hosted"]
    assert await hosted.list() == ["home/run-1", "cave/run-4"]
    await hosted.destroy("cave/run-4")
    assert SANDBOXES["cave"] == set()


async def test_a_sandbox_is_destroyed_from_a_node_of_its_host(nodes: NodesByHand) -> None:
    hosted = nodes.everywhere()["hosted"]
    await hosted.destroy("barn/run-2")
    await hosted.destroy("home/run-1")
    assert {"home": set(), "barn": {"barn/run-3"}, "cave": {"cave/run-4"}} == SANDBOXES
    assert nodes.sent == ["b1"]


async def test_a_sandbox_is_unreachable_without_a_node_of_its_host_and_when_that_does_not_do_it(
    nodes: NodesByHand,
) -> None:
    nodes.seen = [node for node in nodes.seen if node.node_id != "c"]
    with pytest.raises(SandboxUnreachable, match="No node of cave"):
        await nodes.everywhere()["hosted"].destroy("cave/run-4")
    nodes.broken = {"b1"}
    with pytest.raises(SandboxUnreachable, match="b1 does not answer"):
        await nodes.everywhere()["hosted"].destroy("barn/run-2")
    assert SANDBOXES["barn"] == {"barn/run-2", "barn/run-3"}


async def test_a_node_says_which_hosts_it_reaches_or_nothing(
    nodes: NodesByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.broken, nodes.silent = {"b1"}, {"b2"}
    there = nodes.errands()
    told = await there.hosts("c")
    assert told is not None
    assert "cave" in told.hosts
    assert await there.hosts("b1") is None
    monkeypatch.setattr(errands, "HOSTS_S", 0.05)
    assert await there.hosts("b2") is None


async def test_what_a_node_refuses_is_told_as_it_is(nodes: NodesByHand) -> None:
    with pytest.raises(SandboxUnreachable, match="barn/run-2 is not on cave"):
        await nodes.errands().destroy("c", "hosted", "barn/run-2")


def test_only_what_is_bound_to_a_host_is_looked_for_on_hosts(nodes: NodesByHand) -> None:
    class Everyone(HostProvider):
        capabilities = Capabilities(one_host=False)

    known = {"hosted": HostProvider(nodes.settings, "d"), "everyone": Everyone(nodes.settings, "d")}
    assert errands.hosts(known) == Reached(frozenset({"home"}), whole=True)


def test_what_a_provider_cannot_say_yet_is_not_taken_for_nothing(nodes: NodesByHand) -> None:
    """Such as of a Docker engine that comes up after Ray."""
    home = HERE.set(NOTHING)
    assert errands.hosts({"hosted": HostProvider(nodes.settings, "d")}) == Reached(frozenset(), whole=False)
    HERE.reset(home)
