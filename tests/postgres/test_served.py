"""A whole instance on PostgreSQL with two shards: parts and the server itself are killed in the middle of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from instance import Instance
from instances import running
from postgres_server import PostgresServer
from processes import kill
from shell_runs import body, numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

from runtime.core.ids import shard_of

SHARDS = 2
LINES = 120


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, database: PostgresServer) -> Iterator[Instance]:
    settings = {"OUTLAST_STORE": database.url, "OUTLAST_SHARDS": str(SHARDS)}
    with running(Instance(tmp_path_factory.mktemp("postgres"), settings)) as served:
        yield served


def on(shard: int, name: str) -> str:
    """Return a run id of that shard."""
    return wait_until(lambda: run if shard_of(run := unique(name), SHARDS) == shard else None, "a run id") or ""


def test_runs_of_both_shards_complete(served: Instance) -> None:
    with ExitStack() as stack:
        watches = [stack.enter_context(Watch(served, on(shard, "plain"), numbered(40))) for shard in range(SHARDS)]
        for watch in watches:
            watch.until_end()
            check_whole(watch, 40)
            assert served.ended(watch.run_id)["status"] == "completed"


def test_a_run_outlives_a_kill_of_each_shard(served: Instance) -> None:
    with ExitStack() as stack:
        watches = [stack.enter_context(Watch(served, on(shard, "kill"), numbered(LINES))) for shard in range(SHARDS)]
        for watch in watches:
            watch.until_lines(20)
        for shard in served.processes("ray::LogShard"):
            kill(shard)
        for watch in watches:
            watch.until_end()
            check_whole(watch, LINES)
            assert [epoch for epoch, _ in served.claims(watch.run_id)] == [1]


def test_runs_outlive_a_crash_of_the_server(served: Instance, database: PostgresServer) -> None:
    with ExitStack() as stack:
        watches = [stack.enter_context(Watch(served, on(shard, "crash"), numbered(400))) for shard in range(SHARDS)]
        for watch in watches:
            watch.until_lines(30)
        database.crash()
        database.restart()
        for watch in watches:
            watch.until_end(40)
            check_whole(watch, 400)
            record = served.ended(watch.run_id)
            assert record["status"] == "completed"
            assert [claim["epoch"] for claim in record["claims"]] == [1], "an outage of the store is no driver's fault"


def test_a_run_behind_one_of_another_shard_starts_when_that_ends(served: Instance) -> None:
    first, second = on(0, "first"), on(1, "second")
    with Watch(served, first, numbered(60), first) as one:
        one.until_lines(10)
        with Watch(served, second, numbered(20), first, onBusy="enqueue") as two:
            wait_until(lambda: two.ids, "the second is accepted")
            assert served.record(second)["queued"]
            one.until_end()
            two.until_end(5)
            check_whole(two, 20)
    assert served.claims(second) == [(1, "start")]


def test_a_run_that_cancels_one_of_another_shard_follows_it(served: Instance) -> None:
    first, second = on(1, "cancelled"), on(0, "after")
    with Watch(served, first, numbered(3000), first) as one:
        one.until_lines(10)
        with Watch(served, second, numbered(20), first, onBusy="cancel-previous") as two:
            assert one.until_end(5)["type"] == "RUN_ERROR"
            two.until_end(5)
            check_whole(two, 20)
    record = served.ended(first)
    assert (record["status"], record["error"]["code"]) == ("aborted", "aborted")
    assert [epoch for epoch, _ in served.claims(first)] == [1], "its driver ended it"


def test_the_password_is_nowhere_to_be_read(served: Instance, tmp_path: Path) -> None:
    served.http.post("/api/chat", json=body("x", "true"))
    places = [served.said, served.http.get("/readyz").text, served.http.get("/metrics").text]
    places += [path.read_text(errors="replace") for path in Path(served.temp_dir).rglob("*.out") if path.is_file()]
    places += [path.read_text(errors="replace") for path in Path(served.temp_dir).rglob("*.err") if path.is_file()]
    places += [path.read_text(errors="replace") for path in Path(served.temp_dir).rglob("*.log") if path.is_file()]
    assert len(places) > 5
    assert not [place for place in places if "not-to-be-shown" in place]
