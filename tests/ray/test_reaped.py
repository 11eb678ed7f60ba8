"""Fifty runs that nobody comes back for, on a real instance, with its supervisor killed meanwhile (I7, P22).

`tests/sim/test_reaped.py` is the same in virtual time; `test_lifecycle.py` has two such runs in every `make test`."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from instance import Instance
from waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

RUNS = 50
TTL_S = 45


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Instance]:
    """Yield an instance that takes all of them at once and sweeps every second."""
    instance = Instance(tmp_path, {"OUTLAST_MAX_RUNS": "60", "OUTLAST_REAP_INTERVAL_S": "1"})
    instance.start()
    yield instance
    instance.close()


def test_all_end_hold_nothing_and_are_told_of(crowd: Instance) -> None:
    runs = [f"run-{number}" for number in range(RUNS)]
    for number, run in enumerate(runs):
        script, ttl_s = ("sleep 20; echo 1", 3600) if number % 2 else ("echo 1; sleep 3000", TTL_S)
        crowd.begin(run, script, detachedTtlS=ttl_s)
    wait_until(lambda: any(crowd.record(run)["cancelRequested"] for run in runs[::2]), "the first expiry", 120.0)
    os.kill(crowd.the_process("ray::SupervisorActor").pid, signal.SIGKILL)
    wait_until(lambda: all(crowd.record(run)["reaped"] for run in runs), "what became of all", 240.0)
    records = [crowd.ended(run) for run in runs]
    told = Counter((record["status"], (record["error"] or {}).get("code"), record["reaped"]) for record in records)
    assert told == {("aborted", "detached_expired", "expired"): 25, ("completed", None, "finalized"): 25}
    assert all(record["closed"] and record["detachedSince"] for record in records)
    assert crowd.sandboxes() == []
    assert crowd.agents() == []
    wait_until(lambda: not crowd.processes("ray::RunActor"), "the end of every run actor", 60.0)
