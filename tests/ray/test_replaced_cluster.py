"""The whole cluster gone in the middle of twenty runs, and another one on the same store: all complete, each line once.

The bound is what `docs/runbook.md` states: `serve` starts, and then run after run gets a driver, at the rate at which
Ray starts processes. A pause is what the record tells: no chunk of that run was stored meanwhile. The benchmark has the
figure; here the bound is wide, since other tests may share the machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from instance import Instance
from processes import wait_dead
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

RUNS = 20
LINES = 500  # at about 10 a second: nobody ends before the new cluster is there
PER_SECOND = 10.0
WITHIN_S = 80.0  # 10 s and 8 s on two idle cores


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Instance]:
    """Yield an instance that may have all of them at once."""
    crowded = Instance(tmp_path, {"OUTLAST_MAX_RUNS": str(RUNS + 4)})
    try:
        yield crowded
    finally:
        crowded.close()


@pytest.mark.timeout(300)
def test_twenty_runs_survive_the_replacement_of_the_whole_cluster_within_the_stated_time(crowded: Instance) -> None:
    crowded.start()
    runs = [unique(f"replaced-{number}") for number in range(RUNS)]
    with Watch(crowded, runs[0], numbered(LINES, PER_SECOND)) as watch:
        for run in runs[1:]:
            crowded.begin(run, numbered(LINES, PER_SECOND))
        for run in runs:
            wait_until(lambda run=run: _drivers(crowded, run), f"a chunk of {run}", 60.0)  # type: ignore[misc]
        everything, killed_at = crowded.processes(), time.time_ns() // 1_000_000
        crowded.kill_everything()
        wait_dead(everything)
        assert all(crowded.agents(run) for run in runs), "an agent died with the cluster"
        crowded.start()
        for run in runs:
            wait_until(lambda run=run: _drivers(crowded, run, killed_at), f"a new driver of {run}", WITHIN_S)  # type: ignore[misc]
        watch.until_end(within_s=120)
    check_whole(watch, LINES)
    for run in runs:
        record = crowded.ended(run, within_s=60)
        assert (record["status"], record["exitCode"]) == ("completed", 0)
        since = [claim for claim in record["claims"] if claim["claimedAt"] >= killed_at]
        assert since[0]["reason"] == "restart", since  # whoever is too slow to store something in time is replaced
        assert _drivers(crowded, run, killed_at)[0]["pauseMs"] <= 1000 * WITHIN_S
        assert record["claims"][-1]["end"] == "finished"
        with Watch(crowded, run) as late:
            late.until_end()
        check_whole(late, LINES)
    assert crowded.sandboxes() == []


def _drivers(instance: Instance, run: str, since: int = 0) -> list[dict[str, Any]]:
    """Return the claims that stored something, of those made since then."""
    return [claim for claim in instance.record(run)["claims"] if claim["chunks"] and claim["claimedAt"] >= since]
