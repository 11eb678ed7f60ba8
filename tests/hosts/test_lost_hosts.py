"""A whole host goes: what ran elsewhere goes on, what ran there waits, and ends as what truly happened to it."""

from __future__ import annotations

import pytest
from many_hosts import ManyHosts
from runs_on_hosts import check_completed, start_on
from watching import check_whole

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]
RATE = 20


def test_a_run_elsewhere_does_not_end_with_a_host_and_one_there_ends_as_agent_lost_once_the_host_is_back(
    many: ManyHosts,
) -> None:
    """The host comes back with its disk, so that its answer is proof: the sandbox is there, its agent is gone."""
    gone, other = many.lan.hosts[1], many.lan.hosts[2]
    lines = 40 * RATE
    with start_on(many, gone, lines, RATE) as there, start_on(many, other, lines, RATE) as elsewhere:
        there.until_lines(2 * RATE)
        elsewhere.until_lines(2 * RATE)
        gone.kill()
        elsewhere.until_lines(len(elsewhere.lines) + 2 * RATE, 40)
        assert there.terminal is None, "unreachable is not gone"
        many.mend()
        assert there.until_end(90)["code"] == "agent_lost"
        elsewhere.until_end(120)
    check_completed(many, elsewhere, lines)
    check_whole(there, len(there.lines))
    assert many.record(there.run_id)["status"] == "failed"


def test_a_run_whose_host_does_not_come_back_ends_as_sandbox_unreachable(many: ManyHosts) -> None:
    gone = many.lan.hosts[2]
    with start_on(many, gone, 200 * RATE, RATE) as watch:
        watch.until_lines(2 * RATE)
        gone.kill()
        terminal = watch.until_end(150)
    assert terminal["code"] == "sandbox_unreachable"
    check_whole(watch, len(watch.lines))
    assert many.record(watch.run_id)["error"]["code"] == "sandbox_unreachable"


def test_runs_on_every_host_complete_past_the_loss_of_the_head_with_its_restart(many: ManyHosts) -> None:
    lines = 90 * RATE
    hosts = many.lan.hosts
    with (
        start_on(many, hosts[0], lines, RATE) as zero,
        start_on(many, hosts[1], lines, RATE) as one,
        start_on(many, hosts[2], lines, RATE) as two,
    ):
        watches = (zero, one, two)
        for watch in watches:
            watch.until_lines(2 * RATE)
        many.restart_head()
        many.mend()
        for watch in watches:
            watch.until_end(200)
    for watch in watches:
        check_completed(many, watch, lines)
