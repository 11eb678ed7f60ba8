"""Every process of an instance killed while agents work, or `serve` ended: agents go on, the next serve picks up."""

from __future__ import annotations

import pytest
from instance import Instance
from processes import command_line, kill, wait_dead
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

pytestmark = pytest.mark.timeout(240)
# Ray's own agents notice only after a minute or so that their raylet is gone; they answer nobody meanwhile.
LINGERING = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
LINES = 400  # at about 100 a second: longer than a restart would be too long, the agents print on meanwhile


def test_agents_go_on_when_every_process_of_the_instance_is_killed_and_each_line_comes_once(mortal: Instance) -> None:
    mortal.start()
    runs = [unique(f"all-killed-{number}") for number in range(3)]
    for run in runs[1:]:
        mortal.begin(run, numbered(LINES))
    with Watch(mortal, runs[0], numbered(LINES)) as watch:
        watch.until_lines(20)
        for run in runs:
            mortal.driver(run)
            wait_until(lambda run=run: mortal.agents(run), f"the agent of {run}")  # type: ignore[misc]
        everything = mortal.processes()
        agents = {run: set(mortal.agents(run)) for run in runs}
        mortal.kill_everything()
        wait_dead(everything)
        for run in runs:
            assert set(mortal.agents(run)) & agents[run], "the agent died with the instance"
        mortal.start()
        watch.until_end(within_s=90)
    check_whole(watch, LINES)
    for run in runs:
        record = mortal.ended(run)
        assert (record["status"], record["exitCode"]) == ("completed", 0)
        assert [(claim["epoch"], claim["reason"]) for claim in record["claims"]] == [(1, "start"), (2, "restart")]
        with Watch(mortal, run) as late:
            late.until_end()
        check_whole(late, LINES)


def test_a_kill_of_serve_alone_ends_the_instance_but_no_agent_and_the_next_serve_has_its_port(mortal: Instance) -> None:
    run = unique("serve-killed")
    with Watch(mortal, run, numbered(LINES)) as watch:
        watch.until_lines(20)
        everything = [who for who in mortal.processes() if not command_line(who.pid).startswith(LINGERING)]
        kill(mortal.info.process)
        wait_dead(everything)
        assert mortal.agents(run)
        mortal.start()
        watch.until_end(within_s=90)
    check_whole(watch, LINES)
    assert mortal.ended(run)["status"] == "completed"


def test_sigterm_cuts_streams_in_mid_body_leaves_agents_and_the_next_serve_completes_them(mortal: Instance) -> None:
    run = unique("sigterm")
    with Watch(mortal, run, numbered(LINES)) as watch:
        watch.until_lines(20)
        assert mortal.stop() == 0
        assert watch.cuts >= 1  # it came back at once, and was cut again while streams drained
        assert watch.refusal is None
        assert [command_line(who.pid) for who in mortal.processes()] == []
        assert mortal.agents(run)
        assert "1 run(s) go on without us" in mortal.said
        assert "Traceback" not in mortal.said
        assert not (mortal.data_dir / "instance.json").exists()
        mortal.start()
        watch.until_end(within_s=90)
    check_whole(watch, LINES)
    first, second = mortal.ended(run)["claims"]
    assert [(claim["reason"], claim["end"]) for claim in (first, second)] == [
        ("start", "handed_over"),
        ("restart", "finished"),
    ]
    assert first["endedAt"] < second["claimedAt"]
    assert mortal.sandboxes() == []
