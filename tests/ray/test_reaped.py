"""Fifty runs that nobody comes back for, on a real instance, its supervisor killed in the middle of that (I7, P22).

`tests/sim/test_reaped.py` is the same in virtual time; `test_lifecycle.py` has two such runs in every `make test`."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
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
        script, ttl_s = ("sleep 20; echo word", 3600) if number % 2 else ("echo word; sleep 3000", TTL_S)
        crowd.begin(run, script, detachedTtlS=ttl_s)
    for step, seen in STEPS.items():
        wait_until(lambda seen=seen: any(map(seen, records(crowd))), step, 180.0)  # type: ignore[misc]
        os.kill(crowd.the_process("ray::SupervisorActor").pid, signal.SIGKILL)
    wait_until(
        lambda: len(found := records(crowd)) == RUNS and all(one["reaped"] for one in found),
        "what became of all",
        240.0,
    )
    ended = [crowd.ended(run) for run in runs]
    told = Counter((record["status"], (record["error"] or {}).get("code"), record["reaped"]) for record in ended)
    assert told == {("aborted", "detached_expired", "expired"): 25, ("completed", None, "finalized"): 25}
    assert all(record["closed"] and record["detachedSince"] for record in ended)
    assert [run for run in runs if said(crowd, run) != ["word\n"]] == [], "their transcripts"
    assert crowd.sandboxes() == [], "which hold their journals"
    assert crowd.agents() == []
    wait_until(lambda: not crowd.processes("ray::RunActor"), "the end of every run actor", 60.0)
    report = crowd.http.post("/api/reap", timeout=40.0).raise_for_status().json()
    assert (report["considered"], report["failures"], report["kept"]) == (0, [], {}), "nothing is left to tell of"


# What records show when the supervisor is in the middle of a step.
STEPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "the first account": lambda record: record["reaped"],
    "the first expiry": lambda record: record["cancelRequested"],
    "the first end of an expired run": lambda record: record["status"] == "aborted",
}


def records(crowd: Instance) -> list[dict[str, Any]]:
    """Return every record; none while a shard does not answer."""
    try:
        response = crowd.http.get("/api/runs", params={"limit": "100"})
    except httpx.TransportError:
        return []
    return response.json()["runs"] if response.status_code == httpx.codes.OK else []


def said(crowd: Instance, run: str) -> list[str]:
    """Return what the assistant said in the run's thread."""
    messages = crowd.http.get(f"/api/threads/thread-{run}").raise_for_status().json()["messages"]
    parts = [part for message in messages if message["role"] == "assistant" for part in message["parts"]]
    return [part["content"] for part in parts]
