"""Drivers leave a node that is drained, and go back to a host that has returned; never where nothing can be reached."""

from __future__ import annotations

import msgspec
import pytest
from unit.engine.fleet_by_hand import Acts, Handle
from unit.engine.stage import RUN
from unit.engine.test_placing import HERE, THERE, node

from runtime.core.record import ClaimReason
from runtime.engine.concluding import DriveEnd
from runtime.engine.fleet import Watched
from runtime.engine.moving import holds, staying
from runtime.engine.placing import Node
from runtime.testing.sim_loop import elapse, play


async def _driven(acts: Acts) -> Handle:
    """Start the run on node a, and give it a sandbox that is bound to its host."""
    acts.fleet.seen = [node("a")]
    return await acts.begun()


def test_a_drained_node_hands_its_runs_over_and_gets_no_new_one() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await _driven(acts)
        acts.fleet.seen = [node("a", drains=True), node("b")]
        await elapse(1.0)
        assert acts.stage.head().handover_epoch == 1
        assert first.cancelled == 1, "it is told to ask at once"
        first.end.set_result(DriveEnd("handed_over"))
        await elapse(0.5)
        assert acts.made == [(0, "start"), (1, "drain")]
        assert acts.fleet.made[-1].node_id == "b"

    play(1, acts())


def test_a_look_at_the_nodes_that_fails_is_not_the_last_one() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await _driven(acts)
        acts.fleet.unseeing = [RuntimeError("a node without a name")]
        await elapse(2.0)
        assert not acts.fleet.unseeing
        acts.fleet.seen = [node("a", drains=True), node("b")]
        await elapse(1.0)
        assert acts.stage.head().handover_epoch == 1

    play(1, acts())


def test_a_driver_that_does_not_hand_over_is_replaced() -> None:
    async def acts() -> None:
        acts = await Acts.open(lease_ttl_s=60.0)
        first = await _driven(acts)
        first.receipt = False
        acts.fleet.seen = [node("a", drains=True), node("b")]
        await elapse(12.0)
        assert acts.made == [(0, "start"), (1, "drain")]
        assert first.killed

    play(1, acts())


def test_a_run_whose_sandbox_cannot_be_reached_from_elsewhere_stays_on_a_drained_node() -> None:
    async def acts() -> None:
        acts = await Acts.open(bound=True, lease_ttl_s=60.0)
        await _driven(acts)
        await acts.sandbox_on(HERE)
        acts.fleet.seen = [node("a", drains=True), node("c", THERE)]
        await elapse(5.0)
        assert acts.stage.head().handover_epoch == 0
        assert acts.made == [(0, "start")]
        assert staying(acts.fleet.seen, acts.supervisor.watching, "a") == {
            RUN: f"its sandbox is on {HERE}, which no other node reaches"
        }

    play(1, acts())


def test_a_driver_that_dies_on_a_drained_node_has_its_successor_there_while_only_that_reaches_the_sandbox() -> None:
    """The drain waits for such a run until its deadline, so its node lives: nobody may wait elsewhere for it (P17)."""

    async def acts() -> None:
        acts = await Acts.open(bound=True)
        first = await _driven(acts)
        await acts.sandbox_on(HERE)
        acts.fleet.seen = [node("a", drains=True), node("c", THERE)]
        await elapse(2.0)
        first.die()
        await elapse(1.0)
        assert acts.made == [(0, "start"), (1, "driver_lost")]
        successor = acts.fleet.made[-1]
        assert (successor.node_id, successor.place.bound) == ("a", True)
        await acts.claimed(1)
        await elapse(2.0)
        assert acts.stage.head().handover_epoch == 0
        acts.fleet.seen = [node("a", drains=True, sealed=True), node("c", THERE)]
        successor.die()
        await elapse(1.0)
        assert acts.fleet.made[-1].node_id == "c", "Ray puts nothing on a node that it drains: it waits elsewhere"

    play(1, acts())


def test_a_later_run_of_a_thread_goes_to_its_workspace_on_a_drained_node() -> None:
    """P18: elsewhere it would wait for it in vain."""

    async def acts() -> None:
        acts = await Acts.open(bound=True)
        await _driven(acts)
        await acts.sandbox_on(THERE)
        await acts.finished()
        acts.fleet.seen = [node("a"), node("c", THERE, drains=True)]
        await acts.another_run("run-2")
        await elapse(0.2)
        assert acts.fleet.made[-1].node_id == "c"

    play(1, acts())


@pytest.mark.parametrize(
    ("nodes", "drivers", "held"),
    [
        ([node("a", drains=True), node("c", THERE)], {"a": HERE}, True),
        ([node("a", drains=True), node("c", THERE)], {"c": HERE}, True),
        ([node("a", drains=True), node("b")], {"b": HERE}, False),
        ([node("a", drains=True), node("b", answers=False)], {"b": HERE}, True),
        ([node("a", drains=True), node("b", drains=True)], {"b": HERE}, True),
        ([node("a", drains=True), node("b")], {"a": None}, True),
        ([node("a", drains=True), node("b")], {"b": None}, False),
        ([node("a", None, drains=True), node("b")], {"b": THERE}, True),
        ([node("a", None, drains=True), node("b")], {"b": HERE}, False),
        ([node("b")], {"b": HERE}, False),
    ],
    ids=[
        "a driver beside its sandbox",
        "one that waits elsewhere for the only node of its host",
        "one whose host has another node",
        "unless that is silent",
        "or drained too",
        "one that has yet to go",
        "one that has gone",
        "what a node reaches that has not told may be what is missing",
        "unless nothing is missing",
        "a node that is gone",
    ],
)
def test_a_drained_node_is_held(nodes: list[Node], drivers: dict[str, str | None], held: bool) -> None:
    watched = [Watched(1, ClaimReason.START, node_id=at, home=home) for at, home in drivers.items()]
    assert holds(nodes, watched, "a") is held


def test_a_run_whose_host_is_not_looked_up_yet_holds_what_only_the_drained_node_reaches() -> None:
    unknown = Watched(1, ClaimReason.START, home_known=False)
    assert holds([node("a", drains=True), node("c", THERE)], [unknown], "a")
    assert not holds([node("a", drains=True), node("b")], [unknown], "a")


def test_a_run_whose_host_is_lost_waits_elsewhere_and_goes_home_when_it_returns() -> None:
    async def acts() -> None:
        acts = await Acts.open(bound=True)
        await _driven(acts)
        await acts.sandbox_on(HERE)
        acts.fleet.seen = [node("a", answers=False), node("c", THERE)]
        await elapse(4.0)
        assert acts.made == [(0, "start"), (1, "lease_expired")]
        waiting = acts.fleet.made[-1]
        assert (waiting.node_id, waiting.place.home) == ("c", HERE)
        await acts.claimed(1)
        acts.fleet.seen = [node("a2"), node("c", THERE)]
        await elapse(1.0)
        assert acts.made[2:] == [(2, "restart")]
        assert acts.fleet.made[-1].node_id == "a2"
        assert waiting.killed

    play(1, acts())


def test_a_new_run_of_a_thread_goes_where_its_workspace_is() -> None:
    async def acts() -> None:
        acts = await Acts.open(bound=True)
        await _driven(acts)
        await acts.sandbox_on(THERE)
        await acts.finished()
        acts.fleet.seen = [node("a"), node("b"), node("c", THERE, slots=1)]
        await acts.another_run("run-2")
        await elapse(0.2)
        assert acts.fleet.made[-1].place.home == THERE
        assert acts.fleet.made[-1].node_id == "c"

    play(1, acts())


def test_a_supervisor_that_finds_drivers_knows_where_they_are_and_belong() -> None:
    async def acts() -> None:
        acts = await Acts.open(bound=True, lease_ttl_s=60.0)
        await _driven(acts)
        await acts.sandbox_on(THERE)
        acts.fleet.seen = [node("actor-1-node"), node("c", THERE)]
        await acts.supervisor.close()
        successor = await acts.another("successor")
        found = successor.watching
        await elapse(2.0)
        assert acts.made == [(0, "start"), (1, "restart")], msgspec.to_builtins(acts.stage.head().claims)
        assert found[RUN].home == THERE

    play(1, acts())
