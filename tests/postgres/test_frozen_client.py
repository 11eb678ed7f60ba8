"""SIGSTOP of the log shard exactly at a step of its dealings with the PostgreSQL server; another shard takes its place;
SIGCONT. Nothing that the sleeper had decided is written, and nobody waits for it (P11, P12).

No kill reaches the sleeper (`stops/stopping.py`): as a shard on another host, cut off from Ray and not from the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from freezing import Stops, check_both, stopped_shard
from instance import Instance
from postgres_server import PostgresServer
from processes import resume, wait_dead

pytestmark = pytest.mark.timeout(240)
OPERATIONS = ("append", "claim", "finish", "cancel", "key", "intend")
STEPS = [
    pytest.param(f"{operation}.{when}", marks=() if (operation, when) == ("append", "inside") else pytest.mark.long)
    for operation in OPERATIONS
    for when in ("before", "inside", "after")
]


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Stops:
    return Stops(tmp_path_factory.mktemp("frozen-client") / "stops")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, shared_server: PostgresServer, stops: Stops) -> Iterator[Instance]:
    shared_server.empty()
    settings = {**stops.settings, "OUTLAST_STORE": shared_server.url, "OUTLAST_REAP_INTERVAL_S": "1"}
    served = Instance(tmp_path_factory.mktemp("frozen-client-instance"), settings)
    try:
        served.start()
        yield served
        assert served.stop() == 0
        assert not served.sandboxes(), "runs left sandboxes behind"
    finally:
        served.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_shard_frozen_at_a_commit_holds_nobody_up_and_writes_nothing_when_it_goes_on(
    served: Instance, stops: Stops, tmp_path: Path, step: str
) -> None:
    served.wait_ready(within_s=40)
    with stops.unkillable("log:0"), stopped_shard(served, stops, tmp_path, step) as (sleeper, trial, other):
        other.watch.until_lines(len(other.watch.lines) + 5, within_s=60)
        assert resume(sleeper), "somebody ended the sleeper"
        wait_dead([sleeper])
        assert "ShardSuperseded" in {tried.told for tried in stops.tries(sleeper)}, stops.tries(sleeper)
        check_both(trial, other, cancelled=step.startswith("cancel"))
