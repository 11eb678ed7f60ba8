"""SIGSTOP of the supervisor, the log shard and the raylet exactly at a step of their work for a run; a successor does
it; SIGCONT. What the sleeper then tries changes nothing (I1, P6, P11).

A supervisor or shard that is replaced is killed as in production where it says `killed`; elsewhere no kill reaches it,
so it goes on and does what it was about to do (`stops/stopping.py`).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from freezing import Stops, Trial, check_both, running, stopped_shard
from instance import Instance
from processes import command_line, kill, pause, resume, wait_dead
from waiting import pass_time, wait_until

from runtime import process
from runtime.process import ProcessIdentity

pytestmark = pytest.mark.timeout(240)
RAYLET_SLEEP_S = 6.0  # past a lease, and far from where Ray gives its node up (65 s)
DECISIONS = [
    pytest.param("assign.before", marks=pytest.mark.long),
    "assign.after",
    pytest.param("make.before", marks=pytest.mark.long),
    pytest.param("make.after", marks=pytest.mark.long),
]
ENDS = [
    pytest.param("claim.before", marks=pytest.mark.long),
    "claim.after",
    pytest.param("finish.before", marks=pytest.mark.long),
    pytest.param("finish.after", marks=pytest.mark.long),
]
SWEEPS = [
    "destroy.before",
    pytest.param("destroy.inside", marks=pytest.mark.long),
    pytest.param("destroy.after", marks=pytest.mark.long),
    pytest.param("given_back.before", marks=pytest.mark.long),
]
OPERATIONS = ("claim", "key", "intend", "append", "finish", "cancel")
STORED = [
    pytest.param(f"{operation}.{when}", marks=() if (operation, when) == ("append", "after") else pytest.mark.long)
    for operation in OPERATIONS
    for when in ("before", "after")
]
# On PostgreSQL a shard's steps are those of `tests/postgres/test_frozen_client.py`.
on_sqlite = pytest.mark.parametrize("frozen_store", ["sqlite"], indirect=True)
INSIDE = [pytest.param(operation, marks=() if operation == "finish" else pytest.mark.long) for operation in OPERATIONS]


def _wake(stops: Stops, sleeper: ProcessIdentity) -> None:
    """Let the sleeper go on, and give it the time to do what it was about to do: until it asks what is due again."""
    assert resume(sleeper), "somebody ended the sleeper"
    turns = 3
    wait_until(
        lambda: (
            not process.alive(sleeper)
            or [tried.what for tried in stops.tries(sleeper)].count("supervisor.due") >= turns
        ),
        f"what {sleeper} does after it woke",
        30.0,
    )


@contextmanager
def _supervisor_out_of_reach(stops: Stops, run: str, step: str) -> Iterator[Callable[[], ProcessIdentity]]:
    """Order a supervisor to stop there, let nobody kill it, and yield what waits for it. In the end it is ended: one
    that had nothing more to decide does not know that it is not the newest."""
    stops.order(run, f"supervisor.{step}")
    found: list[ProcessIdentity] = []

    def sleeper() -> ProcessIdentity:
        found.append(stops.stopped(run, f"supervisor.{step}"))
        return found[0]

    with stops.unkillable("supervisor"):
        yield sleeper
    for who in found:
        process.send(who, signal.SIGKILL)


@pytest.mark.parametrize("step", DECISIONS)
def test_a_supervisor_frozen_in_a_decision_decides_nothing_when_it_goes_on(
    frozen: Instance, stops: Stops, tmp_path: Path, step: str
) -> None:
    trial = Trial(frozen, stops, tmp_path, "decides")
    with running([trial]), _supervisor_out_of_reach(stops, trial.run, step) as stopped:
        trial.watch.until_lines(3)
        lost = frozen.driver(trial.run)
        kill(lost)
        sleeper = stopped()
        wait_until(lambda: trial.succeeded(lost), "a driver that stores", 40.0)
        epoch = trial.record["driverEpoch"]
        _wake(stops, sleeper)
        trial.check_untouched()
        trial.watch.until_lines(len(trial.watch.lines) + 10)
        assert trial.record["driverEpoch"] == epoch, "the sleeper cost the run a driver"
        trial.end()
        trial.check_completed()


@pytest.mark.parametrize("step", ENDS)
def test_a_supervisor_frozen_while_it_ends_a_queued_run_ends_it_once(
    frozen: Instance, stops: Stops, tmp_path: Path, step: str
) -> None:
    holder = Trial(frozen, stops, tmp_path, "holds")
    queued = Trial(frozen, stops, tmp_path, "queued", holder.thread, onBusy="enqueue")
    with running([holder]):
        holder.watch.until_lines(3)
        with running([queued]), _supervisor_out_of_reach(stops, queued.run, step) as stopped:
            wait_until(lambda: queued.watch.events, "the start of the stream")
            queued.cancel()
            sleeper = stopped()
            before = queued.ending()
            _wake(stops, sleeper)
            queued.check_aborted()
            assert queued.starts == 0
            assert queued.ending() == before
        holder.check_untouched()
        holder.end()
        holder.check_completed()


@pytest.mark.parametrize("step", SWEEPS)
def test_a_sweep_frozen_at_a_sandbox_does_no_harm_to_the_next_one_of_its_thread(
    frozen: Instance, stops: Stops, tmp_path: Path, step: str
) -> None:
    ended = Trial(frozen, stops, tmp_path, "swept")
    following = Trial(frozen, stops, tmp_path, "next", ended.thread)
    stops.order(ended.run, "driver.finish.after")
    with running([ended]), _supervisor_out_of_reach(stops, ended.run, step) as stopped:
        ended.watch.until_lines(3)
        ended.end()
        kill(stops.stopped(ended.run, "driver.finish.after"))
        sleeper = stopped()
        before = ended.ending()  # another supervisor has swept
        with running([following]):
            following.watch.until_lines(3)
            _wake(stops, sleeper)
            following.check_untouched()
            following.end()
            following.check_completed()
        ended.check_completed()
        assert ended.ending() == before


@on_sqlite
@pytest.mark.parametrize("step", STORED)
def test_a_shard_frozen_around_a_commit_writes_nothing_when_it_goes_on(
    frozen: Instance, stops: Stops, tmp_path: Path, step: str
) -> None:
    with stops.unkillable("log:0"), stopped_shard(frozen, stops, tmp_path, step) as (sleeper, trial, other):
        other.watch.until_lines(len(other.watch.lines) + 5, within_s=60)
        assert resume(sleeper), "somebody ended the sleeper"
        wait_dead([sleeper])
        assert "ShardSuperseded" in {tried.told for tried in stops.tries(sleeper)}, stops.tries(sleeper)
        check_both(trial, other, cancelled=step.startswith("cancel"))


@on_sqlite
@pytest.mark.parametrize("operation", INSIDE)
def test_a_shard_frozen_inside_a_transaction_is_killed_and_its_transaction_did_not_happen(
    frozen: Instance, stops: Stops, tmp_path: Path, operation: str
) -> None:
    """It holds the file's write lock: whoever opens the store next makes sure that it is dead (P12)."""
    with stopped_shard(frozen, stops, tmp_path, f"{operation}.inside") as (sleeper, trial, other):
        other.watch.until_lines(len(other.watch.lines) + 5, within_s=60)
        wait_dead([sleeper])
        check_both(trial, other, cancelled=operation == "cancel")


def test_a_raylet_frozen_while_a_driver_dies_costs_its_run_time_and_nothing_else(
    frozen: Instance, stops: Stops, tmp_path: Path
) -> None:
    trial = Trial(frozen, stops, tmp_path, "raylet")
    with running([trial]):
        trial.watch.until_lines(3)
        (raylet,) = (
            who for who in frozen.processes() if Path(command_line(who.pid).partition(" ")[0]).name == "raylet"
        )
        pause(raylet)
        kill(frozen.driver(trial.run))
        pass_time(RAYLET_SLEEP_S)
        assert resume(raylet)
        trial.watch.until_lines(len(trial.watch.lines) + 5, within_s=40)
        trial.check_untouched()
        trial.end()
        trial.check_completed()
