"""Stop, with a driver in every state (P21). The bounds are the protocol's, with room for a busy machine: `make bench`
measures them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from instance import Instance
from processes import kill, pause, resume, wait_dead
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch

pytestmark = pytest.mark.timeout(90)
ANSWERING_S = 1.0
SILENT_S = 4.0
BUSY = 3.0  # how much slower two shared cores may be
SCRIPT = "echo begun; sleep 300 & sleep 300"


def cancel(instance: Instance, run: str) -> None:
    assert instance.http.post("/api/chat/cancel", json={"runId": run}).status_code == 204


def begun(instance: Instance, name: str) -> str:
    run = unique(name)
    with Watch(instance, run, SCRIPT) as watch:
        watch.until_lines(1)
    return run


def check_aborted(instance: Instance, run: str, since: float, bound_s: float) -> dict[str, Any]:
    """Check that the run is ended as the user's doing, within its bound, and that nothing of its agent is left."""
    record = wait_until(lambda: _terminal(instance, run), f"the end of {run}", bound_s * BUSY) or {}
    seconds = time.monotonic() - since
    assert (record["status"], record["error"]["code"], record["cancelReason"]) == ("aborted", "aborted", "user")
    assert seconds < bound_s * BUSY
    wait_until(lambda: not instance.left_of(run), "nothing left of the sandbox")
    return record


def _terminal(instance: Instance, run: str) -> dict[str, Any] | None:
    record = instance.record(run)
    return record if record["status"] in ("completed", "failed", "aborted") else None


def test_a_living_driver_ends_its_run_within_a_second(instance: Instance) -> None:
    run = begun(instance, "cancel-living")
    since = time.monotonic()
    cancel(instance, run)
    record = check_aborted(instance, run, since, ANSWERING_S)
    assert [claim["reason"] for claim in record["claims"]] == ["start"]


def test_a_client_that_watches_sees_the_end_as_a_run_error(instance: Instance) -> None:
    run = unique("cancel-watched")
    with Watch(instance, run, numbered(3000)) as watch:
        watch.until_lines(10)
        cancel(instance, run)
        terminal = watch.until_end()
    assert (terminal["type"], terminal["code"]) == ("RUN_ERROR", "aborted")
    assert terminal["metadata"]["tanstack"]["runId"] == run


def test_a_run_whose_driver_was_just_killed_is_cancelled_all_the_same(instance: Instance) -> None:
    run = begun(instance, "cancel-dead")
    since = time.monotonic()
    kill(instance.driver(run))
    cancel(instance, run)
    check_aborted(instance, run, since, SILENT_S)


def test_a_stopped_driver_is_replaced_and_changes_nothing_when_it_goes_on(instance: Instance) -> None:
    run = begun(instance, "cancel-stopped")
    driver = instance.driver(run)
    pause(driver)
    since = time.monotonic()
    cancel(instance, run)
    record = check_aborted(instance, run, since, SILENT_S)
    first, *others = [claim["reason"] for claim in record["claims"]]
    assert first == "start"
    assert set(others) == {"cancel"}  # a busy machine's may not confirm within the second either, and is replaced too
    resume(driver)  # or Ray has killed it by now
    wait_dead([driver])
    told = instance.record(run)
    assert told == record | {"sandboxKey": told["sandboxKey"], "refusals": told["refusals"]}  # what it tried is told


def test_a_run_that_is_cancelled_before_anybody_claims_it_gets_no_sandbox(instance: Instance) -> None:
    run = unique("cancel-first")
    supervisor = instance.the_process("ray::SupervisorActor")
    pause(supervisor)
    instance.begin(run, SCRIPT)
    cancel(instance, run)
    since = time.monotonic()
    assert resume(supervisor)
    record = check_aborted(instance, run, since, SILENT_S)
    assert (record["sandboxKey"], record["launch"]) == (None, "none")


def test_a_second_cancel_changes_nothing(instance: Instance) -> None:
    run = begun(instance, "cancel-twice")
    since = time.monotonic()
    cancel(instance, run)
    cancel(instance, run)
    record = check_aborted(instance, run, since, ANSWERING_S)
    cancel(instance, run)
    assert instance.record(run) == record


def test_a_cancel_after_the_end_changes_nothing(instance: Instance) -> None:
    run = unique("cancel-late")
    with Watch(instance, run, "echo done") as watch:
        watch.until_end()
    record = instance.ended(run)
    cancel(instance, run)
    assert instance.record(run) == record
    assert (record["status"], record["cancelRequested"]) == ("completed", False)
