"""The link of the host that drives a run is cut, for shorter and for longer than every timeout, and healed."""

from __future__ import annotations

import pytest
from many_hosts import ManyHosts
from ray_nodes import SILENT_S
from runs_on_hosts import check_completed, start_on
from waiting import pass_time, wait_until

pytestmark = pytest.mark.timeout(240)
RATE = 20
LEASE_S = 3


def test_a_cut_shorter_than_the_lease_costs_a_pause_and_no_takeover(many: ManyHosts) -> None:
    lines = 12 * RATE
    with start_on(many, many.lan.hosts[1], lines, RATE) as watch:
        watch.until_lines(2 * RATE)
        many.lan.cut(1)
        pass_time(1.0)
        many.lan.heal(1)
        watch.until_end(60)
    check_completed(many, watch, lines)
    assert many.claims(watch.run_id) == [(1, "start")]


@pytest.mark.parametrize("cut_s", [2.5 * LEASE_S, pytest.param(SILENT_S + 12, marks=pytest.mark.long)])
def test_a_driver_that_was_cut_off_is_superseded_and_what_it_tries_after_the_heal_is_refused(
    many: ManyHosts, cut_s: float
) -> None:
    """Longer than the lease, and, the second time, than Ray's health check: the node is dead for Ray by then."""
    lines = round((cut_s + 15) * RATE)
    with start_on(many, many.lan.hosts[1], lines, RATE) as watch:
        watch.until_lines(2 * RATE)
        _, zombie = many.driver(watch.run_id)
        shards = many.shard_epochs()
        many.lan.cut(1)
        pass_time(cut_s)
        wait_until(lambda: many.record(watch.run_id)["driverEpoch"] > 1, "the next driver", 60.0)
        assert many.host_of(zombie) is many.lan.hosts[1], "it has to live on, cut off"
        many.lan.heal(1)
        many.mend()
        watch.until_end(120)
    check_completed(many, watch, lines)
    record = many.record(watch.run_id)
    wait_until(lambda: many.host_of(zombie) is None, "the end of the zombie", 60.0)
    # What it tried is in the memory of the log's shard; of one that was on the lost node too there is a new one.
    tried = [refusal["tried"] for refusal in record["refusals"] if refusal["epoch"] == 1]
    assert tried or many.shard_epochs() != shards, "the zombie tried nothing"
