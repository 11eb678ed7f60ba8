"""The agent outlives its run actor, however Ray ends that: the four ways of ray-facts' kill table."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from instance import Instance
from processes import wait_dead
from shell_runs import numbered, unique
from watching import Watch, check_whole

from runtime import process

LINES = 100


def more(count: int) -> str:
    """Return what goes on from where `numbered` ended."""
    return f"while [ $i -lt {count} ]; do i=$((i+1)); echo $i; done"


@pytest.mark.parametrize("way", ["ray.kill", "SIGTERM", "SIGKILL", "graceful exit"])
def test_the_agent_survives_every_way_that_ray_ends_an_actor(
    instance: Instance, ray_driver: Any, tmp_path: Path, way: str
) -> None:
    run = unique("survives")
    go = tmp_path / "go"
    script = f"{numbered(LINES // 2)}; until [ -e {go} ]; do sleep 0.02; done; {more(LINES)}"
    with Watch(instance, run, script) as watch:
        watch.until_lines(20)
        driver = instance.driver(run)
        (recorder,) = instance.recorders(run)
        match way:
            case "ray.kill":
                ray_driver.kill(ray_driver.get_actor(f"run:{run}", namespace=instance.namespace), no_restart=True)
            case "graceful exit":
                ray_driver.get_actor(f"run:{run}", namespace=instance.namespace).__ray_terminate__.remote()
            case _:
                assert process.send(driver, signal.Signals[way])
        wait_dead([driver])
        assert process.alive(recorder)
        go.touch()
        watch.until_end()
    check_whole(watch, LINES)
    record = instance.ended(run)
    assert (record["status"], record["exitCode"]) == ("completed", 0)
    assert [claim["epoch"] for claim in record["claims"]] == [1, 2]
    assert record["claims"][1]["reason"] == "driver_lost"
