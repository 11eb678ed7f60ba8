"""Seeded histories of a whole deployment in which the invariants must hold: I1 to I7, I9, and the rules behind them.

More of them: `make simulate N=100000 SEED=1`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.simulate import describe, main
from runtime.testing.simulator import Report, simulate

pytestmark = pytest.mark.timeout(300)  # seconds of CPU, and a busy machine has few of them

HISTORIES = 500
PORTIONS = 10

# Seeds that once failed, and what of the engine they showed to be wrong. A change of the simulator makes other
# histories of them: then they are three more, and what they showed is for `tests/unit/engine` to hold.
ONCE_FAILED = {
    1494: "a frozen shard that nobody wrote through never learnt of its successor, and its readers waited for ever",
    102047: "a superseded shard went on looking at its viewers, and called it a defect each time",
    10184: "a wait interrupted in the moment of its failure left an exception that nobody read",
}


def _must_hold(report: Report) -> None:
    assert not report.breaches, describe(report)


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_the_invariants_hold(portion: int) -> None:
    for seed in range(portion, HISTORIES, PORTIONS):
        _must_hold(simulate(seed))


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_the_invariants_hold_where_they_once_did_not(seed: int) -> None:
    _must_hold(simulate(seed))


@pytest.mark.parametrize("seed", range(7000, 7004))
def test_the_invariants_hold_over_sqlite(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    create_store(path, "simulated")
    _must_hold(simulate(seed, lambda _shards: SqliteStore(path), most_shards=1))


def _digests(hash_seed: str) -> str:
    program = "from runtime.testing.simulator import simulate; print([simulate(seed).digest for seed in range(8)])"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def test_the_same_seed_is_the_same_history_in_every_process() -> None:
    first = _digests("1")
    assert first == _digests("2")
    assert len(set(first.split(","))) == 8


TROUBLE = {
    "checkpoint:",
    "reason=disconnect",
    "is told that it lost",
    "SupervisorStale",
    "a new shard instead of",
    "repeat=True",
    "status=completed",
    "status=failed",
    "status=aborted",
    "reason=lease_expired",
    "reason=driver_lost",
    "postgres: a statement of a broken session comes late",
    "postgres: restarts",
    "decided on what is no longer so",
    "comes between",
    "status=interrupted",
    "-answer -> Created",
    "NothingToResume",
}


def test_the_histories_have_all_kinds_of_trouble_in_them() -> None:
    missing, from_a_checkpoint = set(TROUBLE), 0
    for seed in range(HISTORIES):
        trace = "\n".join(simulate(seed).trace)
        missing = {what for what in missing if what not in trace}
        from_a_checkpoint += sum(int(start) > 0 for start in re.findall(r": follow from (\d+) ", trace))
        if not missing and from_a_checkpoint > 10:
            return
    pytest.fail(f"never: {missing}; takeovers from a checkpoint: {from_a_checkpoint}")


def test_the_command_says_what_it_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "2", "--seed", "5"]) == 0
    assert "2 histories from seed 5: 0 failed" in capsys.readouterr().out


def test_several_processes_play_the_same_histories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "5", "--seed", "40", "--jobs", "2"]) == 0
    together = capsys.readouterr().out.partition(" events")[0]
    assert main(["--schedules", "5", "--seed", "40"]) == 0
    assert capsys.readouterr().out.partition(" events")[0] == together


def test_the_command_of_a_history_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    report = simulate(6)
    command = report.repeat.split()
    assert command[:3] == ["python", "-m", "runtime.testing.simulate"]
    assert main(command[3:]) == 0
    assert "\n".join(report.trace) in capsys.readouterr().out
