"""A node that is drained while a sandbox of its host has a run: that run's drivers are made there to its end."""

from __future__ import annotations

import signal

import pytest
from many_hosts import ManyHosts
from runs_on_hosts import check_completed, start_on

from runtime import process

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
RATE = 20
LINES = 30 * RATE
WITHIN_S = 200


def test_a_driver_that_dies_on_a_drained_host_has_its_successor_there_and_then_the_node_goes(many: ManyHosts) -> None:
    host = many.lan.hosts[1]
    with start_on(many, host, LINES, RATE) as watch:
        watch.until_lines(2 * RATE)
        node_id = many.nodes.alive(host)
        assert node_id is not None
        drained = f"/api/nodes/{node_id}/drain"
        report = many.ask("POST", drained, params={"withinS": str(WITHIN_S)}).json()
        assert f"run:{watch.run_id}" in report["left"]
        watch.until_lines(5 * RATE)
        process.send(many.driver(watch.run_id)[1], signal.SIGKILL)
        watch.until_end(90)
    check_completed(many, watch, LINES)
    claims = many.record(watch.run_id)["claims"]
    assert [(claim["reason"], claim["nodeId"]) for claim in claims] == [("start", node_id), ("driver_lost", node_id)]
    many.wait(lambda: many.ask("POST", drained).json()["gone"], "the end of the node", 60)
