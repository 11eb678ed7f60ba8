"""SIGSTOP of a run actor exactly at each step of claim, launch, append, finish and cancel; a successor does its work;
SIGCONT. No foreign row, no second agent, no destroyed living sandbox (I1, P3, P4, P15).

The sleepers of these runs cannot be killed (`stops/stopping.py`), so each goes on and does what it was about to do.
`tests/ray/test_paused_parts.py` has the sleepers that are killed as in production.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from freezing import Stops, Trial, running
from instance import Instance
from processes import resume, state
from waiting import wait_until

from runtime.process import ProcessIdentity

pytestmark = pytest.mark.timeout(240)
again = pytest.mark.usefixtures("turn")

# What a driver does on its way to its agent's first line, in order; each is a place to stand still.
CLAIMS = ("driver.claim.before", "driver.claim.after")
TO_THE_LAUNCH = (
    "driver.pulse.before",
    "driver.key.before",
    "driver.key.after",
    "driver.create.before",
    "driver.create.inside",
    "driver.create.after",
    "driver.intend.before",
    "driver.intend.after",
    "driver.launch.before",
    "driver.launch.after",
)
APPENDS = ("driver.append.before", "driver.append.after", "driver.pulse.before", "driver.pulse.after")
FINISHES = (
    "driver.finish.before",
    "driver.finish.after",
    "driver.destroy.before",
    "driver.destroy.inside",
    "driver.destroy.after",
    "driver.given_back.before",
)
# A cancel that finds the driver there, and a driver that stands there while it carries a cancel out.
CANCELLED_AT = ("driver.create.before", "driver.create.inside", "driver.launch.before", "driver.append.after")
CANCELS = ("driver.destroy.before", "driver.destroy.inside", "driver.destroy.after", "driver.finish.before")
# What a driver may do to the world after its run has ended under a successor.
SLEPT_THROUGH = ("driver.key.after", "driver.create.before", "driver.create.inside", "driver.launch.before")
REFUSED = {"Superseded", "AlreadyEnded", "RunClaimLostError", "ClaimRefused"}


@pytest.fixture(params=[1, *(pytest.param(turn, marks=pytest.mark.long) for turn in range(2, 6))])
def turn(request: pytest.FixtureRequest) -> int:
    """Return how often the steps have been tried, this time included."""
    number: int = request.param
    return number


@pytest.fixture(scope="module", autouse=True)
def at_the_claim(
    frozen_instance: Instance, stops: Stops, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Trial]]:
    """Yield runs whose drivers stand at their claim. It takes the supervisor 30 s to give a start up: begun first, they
    are looked at last."""
    frozen_instance.wait_ready()
    trials = _trials(frozen_instance, stops, tmp_path_factory.mktemp("claims"), CLAIMS)
    for step, trial in trials.items():
        stops.order(trial.run, step)
    with running(list(trials.values())):
        yield trials


def _trials(frozen: Instance, stops: Stops, folder: Path, steps: tuple[str, ...]) -> dict[str, Trial]:
    trials = {step: Trial(frozen, stops, folder, step.replace(".", "-").replace("_", "-")) for step in steps}
    for trial in trials.values():
        stops.make_unkillable(trial.run)
    return trials


def _all_stopped(trials: dict[str, Trial]) -> dict[str, ProcessIdentity]:
    return {step: trial.stops.stopped(trial.run, step) for step, trial in trials.items()}


def _check_it_tried(trial: Trial, sleeper: ProcessIdentity) -> None:
    """Check that the sleeper went on and was refused: else the trial has shown nothing."""

    def refused() -> bool:
        return any(tried.told in REFUSED for tried in trial.stops.tries(sleeper))

    wait_until(refused, f"a refusal of the sleeper of {trial.run}: {trial.stops.tries(sleeper)}", 15.0)


def _wake_after_a_successor(trials: dict[str, Trial], sleepers: dict[str, ProcessIdentity]) -> None:
    """Let the sleepers go on once others drive, and check that these drive on to the end of their agents."""
    for step, trial in trials.items():
        what = f"a successor of {trial.run} that stores"
        wait_until(lambda t=trial, s=sleepers[step]: t.succeeded(s), what, 40.0)  # type: ignore[misc]
    _wake_all(sleepers)
    for step, trial in trials.items():
        _check_it_tried(trial, sleepers[step])
        trial.check_untouched()
        trial.end()
    for trial in trials.values():
        trial.check_completed()


def _wake_all(sleepers: dict[str, ProcessIdentity]) -> None:
    for step, sleeper in sleepers.items():
        assert state(sleeper) == "T", f"the sleeper of {step} did not sleep"
        assert resume(sleeper), f"somebody ended the sleeper of {step}"


@again
def test_a_driver_frozen_on_its_way_to_the_launch_changes_nothing_when_it_goes_on(
    frozen: Instance, stops: Stops, tmp_path: Path
) -> None:
    trials = _trials(frozen, stops, tmp_path, TO_THE_LAUNCH)
    for step, trial in trials.items():
        stops.order(trial.run, step)
    with running(list(trials.values())):
        sleepers = _all_stopped(trials)
        _wake_after_a_successor(trials, sleepers)


@again
def test_a_driver_frozen_around_an_append_changes_nothing_when_it_goes_on(
    frozen: Instance, stops: Stops, tmp_path: Path
) -> None:
    trials = _trials(frozen, stops, tmp_path, APPENDS)
    with running(list(trials.values())):
        for step, trial in trials.items():
            trial.watch.until_lines(5)
            stops.order(trial.run, step)
        sleepers = _all_stopped(trials)
        _wake_after_a_successor(trials, sleepers)


@again
def test_a_driver_frozen_between_finish_and_the_end_of_its_sandbox_ends_the_run_once(
    frozen: Instance, stops: Stops, tmp_path: Path
) -> None:
    trials = _trials(frozen, stops, tmp_path, FINISHES)
    for step, trial in trials.items():
        stops.order(trial.run, step)
    with running(list(trials.values())):
        for trial in trials.values():
            trial.watch.until_lines(1)
            trial.end()
        sleepers = _all_stopped(trials)
        before = {step: trial.ending() for step, trial in trials.items()}
        _wake_all(sleepers)
        for step, trial in trials.items():
            _check_gone_on(trial, sleepers[step])
            trial.check_completed()
            assert trial.ending() == before[step]


@again
def test_a_cancel_that_finds_its_driver_frozen_ends_the_run_and_leaves_nothing(
    frozen: Instance, stops: Stops, tmp_path: Path
) -> None:
    trials = _trials(frozen, stops, tmp_path, CANCELLED_AT)
    for step, trial in trials.items():
        stops.order(trial.run, step)
    with running(list(trials.values())):
        sleepers = _all_stopped(trials)
        for trial in trials.values():
            trial.cancel()
        for trial in trials.values():
            trial.ending()
        _wake_all(sleepers)
        for step, trial in trials.items():
            _check_it_tried(trial, sleepers[step])
            trial.check_aborted()


@again
def test_a_driver_frozen_while_it_carries_out_a_cancel_changes_nothing_when_it_goes_on(
    frozen: Instance, stops: Stops, tmp_path: Path
) -> None:
    trials = _trials(frozen, stops, tmp_path, CANCELS)
    for step, trial in trials.items():
        stops.order(trial.run, step)
    with running(list(trials.values())):
        for trial in trials.values():
            trial.watch.until_lines(3)
            trial.cancel()
        sleepers = _all_stopped(trials)
        before = {step: trial.ending() for step, trial in trials.items()}
        _wake_all(sleepers)
        for step, trial in trials.items():
            _check_it_tried(trial, sleepers[step])
            trial.check_aborted()
            assert trial.ending() == before[step]


@again
def test_a_driver_that_slept_through_its_whole_run_brings_nothing_back(
    frozen: Instance, stops: Stops, tmp_path: Path
) -> None:
    trials = _trials(frozen, stops, tmp_path, SLEPT_THROUGH)
    for step, trial in trials.items():
        stops.order(trial.run, step)
    with running(list(trials.values())):
        sleepers = _all_stopped(trials)
        for trial in trials.values():
            trial.watch.until_lines(1, within_s=40)
            trial.end()
        before = {step: trial.ending() for step, trial in trials.items()}
        _wake_all(sleepers)
        for step, trial in trials.items():
            _check_it_tried(trial, sleepers[step])
            trial.check_completed()
            assert trial.ending() == before[step]


def _check_gone_on(trial: Trial, sleeper: ProcessIdentity) -> None:
    """Check that the sleeper did something after it woke."""
    wait_until(lambda: len(trial.stops.tries(sleeper)) > 1, f"what the sleeper of {trial.run} does", 15.0)


def test_a_driver_frozen_at_its_claim_drives_nothing_when_it_goes_on(
    at_the_claim: dict[str, Trial], frozen: Instance
) -> None:
    _wake_after_a_successor(at_the_claim, _all_stopped(at_the_claim))
