"""Nodes that die, freeze or are drained: runs whose agents live on are taken over, and nothing is lost or doubled.

All nodes are on this machine, so every sandbox can be reached from each. `serve` is on the head.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from instance import OUTLAST, Instance
from node_cluster import NodeCluster, RayNode
from processes import pause, resume
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

from runtime import process

# Long: about 30 s each on two idle cores. `tests/hosts` loses and cuts whole hosts.
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
LINES = 400
RATE = 20.0
PAUSE_AT = 20
HEAD_SLOTS = 4
SUPERVISOR_S = 20.0  # 10 s on an idle machine, where a cold start takes half a second
# A lease, and one second; then the start queue: 2.5 cold starts a second on two idle cores, which other tests may use
# too. `make bench` has the figures.
TAKEN_OVER_S = 3.0 + 1.0
PER_START_S = 2.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    """Yield a head; each test adds the nodes that it loses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        cluster = NodeCluster(f"lost-{os.getpid()}", {"PYTHONPATH": str(Path(__file__).parents[1])}, HEAD_SLOTS)
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory, cluster: NodeCluster) -> Iterator[Instance]:
    """Yield an instance on that cluster, with its `serve` on the head."""
    settings = {"OUTLAST_RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "disabled", "OUTLAST_MAX_RUNS": "50"}
    guest = Instance(tmp_path_factory.mktemp("guest"), settings)
    try:
        guest.start()
        yield guest
        assert guest.stop() == 0
    finally:
        guest.close()


@pytest.fixture
def two(cluster: NodeCluster, guest: Instance) -> Iterator[list[RayNode]]:
    """Yield two more nodes, with workers warm, and see them gone afterwards."""
    nodes = [cluster.add(), cluster.add()]
    for node in nodes:
        wait_until(lambda node=node: node.processes("ray::IDLE"), f"a warm worker on {node.name}", 60.0)  # type: ignore[misc]
    yield nodes
    for node in nodes:
        cluster.remove(node)


def _node_of(guest: Instance, run: str, epoch: int = 1) -> str:
    """Return the id of the node of the run's newest claim, once there is one of that epoch."""

    def claimed() -> str | None:
        claims: list[dict[str, Any]] = guest.record(run)["claims"]
        return str(claims[-1]["nodeId"]) if claims and claims[-1]["epoch"] >= epoch else None

    return wait_until(claimed, f"epoch {epoch} of {run}", 30.0) or ""


def _begin(guest: Instance, count: int, lines: int = LINES) -> dict[str, str]:
    """Start so many runs; return the node of each."""
    runs = [unique(f"node-{number}") for number in range(count)]
    for run in runs:
        guest.begin(run, numbered(lines, RATE))
    return {run: _node_of(guest, run) for run in runs}


def _check(guest: Instance, runs: dict[str, str], lines: int = LINES) -> None:
    for run in runs:
        record = guest.ended(run, within_s=60)
        assert (record["status"], record["exitCode"]) == ("completed", 0), record["error"]
        with Watch(guest, run) as late:
            late.until_end()
        check_whole(late, lines)


def _check_taken_over(guest: Instance, runs: list[str], lost: RayNode) -> None:
    for run in runs:
        claims = guest.record(run)["claims"]
        assert [claim["reason"] for claim in claims] == ["start", "lease_expired"], claims
        assert claims[1]["nodeId"] != lost.node_id
        assert claims[1]["pauseMs"] <= 1000 * (TAKEN_OVER_S + PER_START_S * len(runs))


def test_runs_of_a_node_that_dies_are_taken_over_elsewhere(guest: Instance, two: list[RayNode]) -> None:
    runs = _begin(guest, 6)
    theirs = [run for run, node in runs.items() if node == two[0].node_id]
    assert theirs, "runs are spread over the nodes"
    with Watch(guest, theirs[0]) as watch:
        watch.until_lines(PAUSE_AT)
        two[0].lose()
        watch.until_end(within_s=60)
    check_whole(watch, LINES)
    _check(guest, runs)
    _check_taken_over(guest, theirs, two[0])


def test_runs_of_a_node_that_freezes_whole_are_taken_over_and_what_wakes_up_changes_nothing(
    guest: Instance, two: list[RayNode]
) -> None:
    runs = _begin(guest, 6)
    theirs = [run for run, node in runs.items() if node == two[0].node_id]
    with Watch(guest, theirs[0]) as watch:
        watch.until_lines(PAUSE_AT)
        frozen = two[0].pause()
        for run in theirs:
            _node_of(guest, run, epoch=2)
        watch.until_lines(2 * PAUSE_AT)
        for who in frozen:
            process.send(who, signal.SIGCONT)
        watch.until_end(within_s=60)
    check_whole(watch, LINES)
    _check(guest, runs)
    _check_taken_over(guest, theirs, two[0])


def test_a_worker_that_outlives_its_raylet_is_refused(guest: Instance, two: list[RayNode]) -> None:
    """It never learns that its node is dead: only the fence stops it (I1)."""
    runs = _begin(guest, 3)
    theirs = [run for run, node in runs.items() if node == two[0].node_id]
    zombies = [guest.driver(run) for run in theirs]
    with Watch(guest, theirs[0]) as watch:
        watch.until_lines(PAUSE_AT)
        two[0].lose_raylet_only()
        watch.until_lines(2 * PAUSE_AT)
        assert all(process.alive(who) for who in zombies)
        assert guest.record(theirs[0])["driverEpoch"] == 1, "who renews its lease drives"
        guest.http.post(f"/api/runs/{theirs[0]}/takeover")
        _node_of(guest, theirs[0], epoch=2)
        watch.until_end(within_s=60)
    check_whole(watch, LINES)
    _check(guest, runs)
    claims = guest.record(theirs[0])["claims"]
    assert [claim["reason"] for claim in claims] == ["start", "operator"]
    assert claims[0]["end"] == "superseded"


def test_the_supervisor_of_a_node_that_dies_is_made_elsewhere(
    cluster: NodeCluster, guest: Instance, two: list[RayNode]
) -> None:
    _move_supervisor(cluster, guest, two[0])
    runs = _begin(guest, 3)
    with Watch(guest, next(iter(runs))) as watch:
        watch.until_lines(PAUSE_AT)
        lost_at = time.monotonic()
        two[0].lose()
        wait_until(lambda: _supervisor_node(guest) not in (None, two[0].node_id), "another supervisor", 30.0)
        assert time.monotonic() - lost_at < SUPERVISOR_S
        watch.until_end(within_s=60)
    check_whole(watch, LINES)
    _check(guest, runs)


def _supervisor_node(guest: Instance) -> str | None:
    try:
        actors: list[dict[str, Any]] = guest.http.get("/readyz").json()["actors"]
    except (httpx.TransportError, ValueError):
        return None
    return next((actor["nodeId"] for actor in actors if actor["name"] == "supervisor"), None)


def _move_supervisor(cluster: NodeCluster, guest: Instance, node: RayNode) -> None:
    """Have the supervisor made on that node. A gateway replica that lives hears at once that its supervisor is gone,
    and makes another on its own node (P6): none runs meanwhile."""
    program = Path(__file__).parents[1] / "move_supervisor.py"
    command = [sys.executable, str(program), guest.info.ray_address, node.node_id]
    replicas = [replica for place in cluster.nodes for replica in place.processes("ray::ServeReplica")]
    assert replicas, "a gateway replica that could make a supervisor"
    for replica in replicas:
        pause(replica)
    try:
        subprocess.run(command, env={**guest.env, "RAY_AUTH_MODE": "disabled"}, cwd="/", check=True, timeout=60)
    finally:
        for replica in replicas:
            resume(replica)
    wait_until(lambda: _supervisor_node(guest) == node.node_id, "the supervisor on that node", 30.0)


def test_a_drained_node_hands_its_runs_over_before_it_goes(guest: Instance, two: list[RayNode]) -> None:
    runs = _begin(guest, 6)
    theirs = [run for run, node in runs.items() if node == two[0].node_id]
    with Watch(guest, theirs[0]) as watch:
        watch.until_lines(PAUSE_AT)
        told = subprocess.run(
            [OUTLAST, "stop", "--node", two[0].node_id[:8]],
            env=guest.env,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        watch.until_end(within_s=60)
    check_whole(watch, LINES)
    assert f"node {two[0].node_id[:12]} has gone" in told.stderr
    assert all(f"run:{run}" in told.stderr for run in theirs)
    assert not process.alive(two[0].raylet)
    _check(guest, runs)
    for run in theirs:
        claims = guest.record(run)["claims"]
        assert [(claim["reason"], claim["end"]) for claim in claims] == [
            ("start", "handed_over"),
            ("drain", "finished"),
        ]
        assert claims[1]["nodeId"] != two[0].node_id
        assert claims[1]["epoch"] == 2


def test_a_run_that_no_node_has_room_for_says_so_and_starts_when_a_node_comes(
    guest: Instance, cluster: NodeCluster
) -> None:
    runs = _begin(guest, HEAD_SLOTS)
    late = unique("no-room")
    guest.begin(late, numbered(LINES, RATE))
    said = wait_until(lambda: _waits_for(guest, late), f"what {late} waits for", 30.0) or ""
    assert said.startswith("no node has room for a run actor (")
    assert f"{cluster.head.node_id[:8]} {HEAD_SLOTS} of {HEAD_SLOTS}" in said
    assert guest.record(late)["claims"] == []
    added = cluster.add()
    assert _node_of(guest, late) == added.node_id
    _check(guest, {**runs, late: added.node_id})
    assert [claim["reason"] for claim in guest.record(late)["claims"]] == ["start"]
    cluster.remove(added)


def _waits_for(guest: Instance, run: str) -> str | None:
    actors: list[dict[str, Any]] = guest.http.get("/readyz").json()["actors"]
    return next((actor.get("waitsFor") for actor in actors if actor["name"] == f"run:{run}"), None)
