"""The link of the host that drives a run is cut, for shorter and for longer than every timeout, and healed."""

from __future__ import annotations

import pytest
from many_hosts import ManyHosts
from runs_on_hosts import start_on
from shell_runs import numbered
from waiting import pass_time
from watching import check_whole

pytestmark = pytest.mark.timeout(240)
RATE = 20


def test_a_cut_shorter_than_the_lease_costs_a_pause_and_no_takeover(many: ManyHosts) -> None:
    lines = 12 * RATE
    with start_on(many, many.lan.hosts[1], numbered(lines, RATE)) as watch:
        watch.until_lines(2 * RATE)
        many.lan.cut(1)
        pass_time(1.0)
        many.lan.heal(1)
        watch.until_end(60)
    check_whole(watch, lines)
    assert many.claims(watch.run_id) == [(1, "start")]
