"""kill -9 of each part of an instance in the middle of a run that a client watches: nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from gate import Gate
from instance import Instance
from processes import kill
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

from runtime.core.checkpoint import Checkpoint
from runtime.stores.sqlite_reading import SqliteReading

LINES = 120
KILL_AT = 30
SOON_S = 60.0
FAST, SLOW = 9000, 100  # lines of a long run: more than a checkpoint's pace, then some to kill its drivers at


def test_a_run_outlives_a_kill_of_its_run_actor(instance: Instance) -> None:
    run = unique("kill-driver")
    with Watch(instance, run, numbered(LINES)) as watch:
        watch.until_lines(KILL_AT)
        kill(instance.driver(run))
        watch.until_end()
    check_whole(watch, LINES)
    assert watch.responses == 1, "the client noticed"
    record = instance.ended(run)
    assert (record["status"], record["exitCode"]) == ("completed", 0)
    assert [(claim["epoch"], claim["reason"]) for claim in record["claims"]] == [(1, "start"), (2, "driver_lost")]
    first, second = record["claims"]
    assert first["pid"] != second["pid"]
    assert first["chunks"] + second["chunks"] == record["chunks"] - 1  # run.accepted belongs to the creation (P2)


def test_a_run_outlives_three_kills_of_its_run_actor(instance: Instance) -> None:
    run = unique("kill-drivers")
    with Watch(instance, run, numbered(LINES)) as watch:
        for epoch in (1, 2, 3):
            watch.until_lines(20 * epoch)
            kill(instance.driver(run, epoch))
        watch.until_end()
    check_whole(watch, LINES)
    assert [epoch for epoch, _ in instance.claims(run)] == [1, 2, 3, 4]


FILES = """
mkfifo gate
for i in $(seq 100); do echo $i > a$i; done; echo half; read go < gate
for i in $(seq 100); do echo $i > b$i; done; echo whole; read go < gate
"""


@pytest.mark.timeout(240)  # each of 200 is a commit of its own, and the machine may be busy
def test_a_takeover_in_the_middle_of_200_written_files_tells_each_of_them_once(instance: Instance) -> None:
    """However many live chunks lie between two of the journal's, the replay meets those."""
    run = unique("files")
    gate = instance.data_dir / "workspaces" / f"thread-{run}" / "gate"

    def told() -> list[tuple[str, str]]:
        values = [event["value"] for event in list(watch.events) if event.get("name") == "sandbox.file"]
        return [(value["path"], value["type"]) for value in values]

    def made() -> list[str]:
        return [path for path, what in told() if what == "create"]

    with Watch(instance, run, FILES, fileEvents="files") as watch:
        watch.until_lines(1)
        wait_until(lambda: len(made()) > 20, "the first files", SOON_S)
        kill(instance.driver(run))
        gate.write_text("go\n")
        watch.until_lines(2, SOON_S)
        wait_until(lambda: len(made()) >= 200, "all files", SOON_S)
        gate.write_text("go\n")
        watch.until_end(SOON_S)
    assert sorted(made()) == sorted(f"{letter}{number}" for letter in "ab" for number in range(1, 101))
    assert len(set(told())) == len(told()), "a file may have been seen empty, and then as it was written"
    types = [event["type"] for event in watch.events]
    assert "CUSTOM" not in types[1 : types.index("RUN_STARTED")]
    assert watch.lines == ["half", "whole"]
    record = instance.ended(run)
    assert (record["status"], len(record["claims"])) == ("completed", 2)


def test_the_whole_diff_is_told_once_right_before_the_end_after_a_takeover_too(instance: Instance) -> None:
    run = unique("whole-diff")
    gate = instance.data_dir / "workspaces" / f"thread-{run}" / "gate"
    script = "mkfifo gate; echo one > a; echo half; read go < gate; echo two > b; echo whole"
    with Watch(instance, run, script, fileEvents="diff") as watch:
        watch.until_lines(1)
        kill(instance.driver(run))
        gate.write_text("go\n")
        watch.until_end(SOON_S)
    (whole,) = [event for event in watch.events if event.get("name") == "file.changed"]
    assert [event["type"] for event in watch.events[-2:]] == ["CUSTOM", "RUN_FINISHED"]
    assert watch.events[-2] is whole
    assert (whole["value"]["path"], "truncated" in whole["value"]) == (".", False)
    assert [line for line in whole["value"]["diff"].split("\n") if line[:1] in ("+", "-")] == [
        "--- /dev/null", "+++ b/a", "+one", "--- /dev/null", "+++ b/b", "+two",
    ]  # fmt: skip
    record = instance.ended(run)
    assert (record["status"], len(record["claims"])) == ("completed", 2)


def test_a_run_outlives_a_kill_of_its_log_shard(instance: Instance) -> None:
    run = unique("kill-shard")
    with Watch(instance, run, numbered(LINES)) as watch:
        watch.until_lines(KILL_AT)
        kill(instance.the_process("ray::LogShard"))
        watch.until_end()
    check_whole(watch, LINES)
    record = instance.ended(run)
    assert (record["status"], [claim["epoch"] for claim in record["claims"]]) == ("completed", [1])


def test_a_run_outlives_a_kill_of_the_supervisor_and_then_of_its_run_actor(instance: Instance) -> None:
    run = unique("kill-supervisor")
    with Watch(instance, run, numbered(LINES)) as watch:
        watch.until_lines(KILL_AT)
        kill(instance.the_process("ray::SupervisorActor"))
        kill(instance.driver(run))
        watch.until_end()
    check_whole(watch, LINES)
    record = instance.ended(run)
    assert (record["status"], [claim["epoch"] for claim in record["claims"]]) == ("completed", [1, 2])


def test_a_run_that_needs_nothing_does_not_notice_a_kill_of_the_supervisor(instance: Instance) -> None:
    run = unique("kill-supervisor")
    with Watch(instance, run, numbered(LINES)) as watch:
        watch.until_lines(KILL_AT)
        kill(instance.the_process("ray::SupervisorActor"))
        watch.until_end()
    check_whole(watch, LINES)
    assert instance.claims(run) == [(1, "start")]


def kill_who_serves(instance: Instance, *watches: Watch) -> None:
    """Kill a gateway replica that serves one of these clients, whose agents are silent meanwhile."""
    for replica in instance.processes("ray::ServeReplica"):
        kill(replica)
        heard = [watch.heartbeats for watch in watches]
        wait_until(partial(cut_or_heard, watches, heard), "a cut, or a word from the other replica", SOON_S)
        if any(watch.cuts for watch in watches):
            return
        wait_until(lambda: len(instance.processes("ray::ServeReplica")) > 1, "another replica", SOON_S)
        instance.wait_ready()
    raise AssertionError("neither replica served anybody")


def cut_or_heard(watches: Sequence[Watch], before: Sequence[int]) -> bool:
    """Return whether one of these clients was cut, or each has heard more than could have been under way."""
    return any(watch.cuts for watch in watches) or all(
        watch.heartbeats > count + 2 for watch, count in zip(watches, before, strict=True)
    )


def test_a_killed_gateway_replica_costs_its_clients_one_reconnect(instance: Instance, tmp_path: Path) -> None:
    runs = [unique(f"kill-replica-{number}") for number in range(2)]
    gate = Gate(tmp_path, KILL_AT, LINES)
    with Watch(instance, runs[0], gate.script) as one, Watch(instance, runs[1], gate.script) as other:
        one.until_lines(KILL_AT)
        other.until_lines(KILL_AT)
        kill_who_serves(instance, one, other)
        gate.open()
        one.until_end()
        other.until_end()
    check_whole(one, LINES)
    check_whole(other, LINES)
    assert one.responses + other.responses in (3, 4), "nobody was cut, or somebody more than once"
    for run in runs:
        assert instance.ended(run)["status"] == "completed"
        assert instance.claims(run) == [(1, "start")]


@pytest.mark.timeout(120)
def test_a_thousand_lines_arrive_once_each_past_a_kill_of_run_actor_and_shard(instance: Instance) -> None:
    """What issue 2 calls done: 1,000 lines in 20 s, run actor killed at 300, shard killed at 600."""
    run = unique("thousand")
    with Watch(instance, run, numbered(1000, per_second=50)) as watch:
        watch.until_lines(300, within_s=30)
        kill(instance.driver(run))
        watch.until_lines(600, within_s=30)
        kill(instance.the_process("ray::LogShard"))
        watch.until_end(within_s=60)
    check_whole(watch, 1000)
    assert watch.responses <= 2
    record = instance.ended(run)
    assert record["status"] == "completed"
    assert [(claim["epoch"], claim["reason"]) for claim in record["claims"]] == [(1, "start"), (2, "driver_lost")]
    assert all(claim["chunks"] > 0 for claim in record["claims"])


@pytest.mark.timeout(120)
def test_a_long_run_goes_on_at_its_checkpoint_past_two_kills_of_its_run_actor(instance: Instance) -> None:
    run = unique("long")
    script = f"seq 1 {FAST}; i={FAST}; while [ $i -lt {FAST + SLOW} ]; do i=$((i+1)); echo $i; sleep 0.05; done"
    taken = []
    with Watch(instance, run, script) as watch:
        for epoch, lines in ((1, FAST + 20), (2, FAST + 60)):
            watch.until_lines(lines, within_s=40)
            kill(instance.driver(run, epoch))
            taken.append(_checkpoint(instance, run))
        watch.until_end(within_s=40)
    check_whole(watch, FAST + SLOW)
    assert watch.responses == 1, "the client noticed"
    assert taken[0].epoch == 1
    assert taken[0].seq > FAST // 2
    assert taken[0].journal_chunks == taken[0].seq - 1  # run.accepted is all that is live
    record = instance.ended(run)
    assert (record["status"], [claim["epoch"] for claim in record["claims"]]) == ("completed", [1, 2, 3])
    assert all(claim["chunks"] > 0 for claim in record["claims"])
    wait_until(lambda: _stored(instance, run) is None, "the end of the checkpoint")


def _checkpoint(instance: Instance, run: str) -> Checkpoint:
    found = _stored(instance, run)
    assert found is not None
    return found


def _stored(instance: Instance, run: str) -> Checkpoint | None:
    store = SqliteReading(instance.data_dir / "outlast.sqlite", busy_ms=1000)
    try:
        return store.read_checkpoint(run)
    finally:
        store.close_readers()
