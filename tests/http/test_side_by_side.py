"""Two instances on one machine: neither answers for the other, and Ctrl-C ends one whole."""

from __future__ import annotations

import os
import signal

import httpx
import pytest
from instance import STOP_S, Instance
from shell_runs import numbered, unique
from watching import Watch, check_whole

pytestmark = pytest.mark.timeout(150)


def test_two_instances_hold_a_run_of_the_same_id_each(instance: Instance, mortal: Instance) -> None:
    mortal.start()
    run = unique("same")
    with Watch(instance, run, numbered(30)) as here, Watch(mortal, run, numbered(40)) as there:
        here.until_end()
        there.until_end()
    check_whole(here, 30)
    check_whole(there, 40)
    assert instance.ended(run)["sandboxKey"] != mortal.ended(run)["sandboxKey"]
    only = unique("only")
    with Watch(mortal, only, "echo 1") as watch:
        watch.until_end()
    assert instance.http.get(f"/api/runs/{only}").status_code == 404


def test_a_replica_of_one_killed_is_not_stood_in_for_by_the_other(instance: Instance, mortal: Instance) -> None:
    only = unique("only")
    with Watch(mortal, only, "echo 1") as watch:
        watch.until_end()
    for replica in mortal.processes("ray::ServeReplica"):
        os.kill(replica.pid, signal.SIGKILL)
    for _ in range(20):
        try:
            answer = mortal.http.get(f"/api/runs/{only}", timeout=30)
        except httpx.TransportError:
            continue
        assert answer.status_code != 404, "the other instance answered"


def test_ctrl_c_ends_one_instance_whole_and_neither_its_agents_nor_the_other_one(
    instance: Instance, mortal: Instance
) -> None:
    run, other = unique("ctrl-c"), unique("goes-on")
    with Watch(instance, other, numbered(200)) as goes_on, Watch(mortal, run, numbered(3000)) as watch:
        goes_on.until_lines(10)
        watch.until_lines(10)
        assert mortal.serve is not None
        os.killpg(mortal.serve.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        assert mortal.serve.wait(STOP_S) == 0, mortal.said
        assert watch.cuts >= 1
        assert mortal.processes() == []
        assert mortal.agents(run)
        with pytest.raises(httpx.ConnectError):
            mortal.http.get("/readyz")
        goes_on.until_end()
    check_whole(goes_on, 200)
    assert goes_on.responses == 1
    assert "Traceback" not in mortal.said
