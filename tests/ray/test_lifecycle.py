"""Takeover by a person, viewers that leave, queued runs, and limits: through every real part."""

from __future__ import annotations

from pathlib import Path

import pytest
from instance import Instance
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

pytestmark = pytest.mark.timeout(90)


def test_an_operator_may_take_a_run_from_a_healthy_driver(instance: Instance) -> None:
    run = unique("operator")
    with Watch(instance, run, numbered(100)) as watch:
        watch.until_lines(20)
        answer = instance.http.post(f"/api/runs/{run}/takeover")
        assert (answer.status_code, answer.json()) == (202, {"runId": run, "fromEpoch": 1})
        watch.until_end()
    check_whole(watch, 100)
    assert instance.ended(run)["status"] == "completed"
    assert instance.claims(run) == [(1, "start"), (2, "operator")]
    late = instance.http.post(f"/api/runs/{run}/takeover")
    assert (late.status_code, late.json()["error"]["code"]) == (409, "run_ended")


def test_a_run_goes_on_without_viewers_and_says_since_when(instance: Instance) -> None:
    run = unique("detached")
    with Watch(instance, run, numbered(3000)) as watch:
        watch.until_lines(5)
        wait_until(lambda: instance.record(run)["detachedSince"] is None, "a run with a viewer")
    wait_until(lambda: instance.record(run)["detachedSince"] is not None, "detachedSince", 20.0)
    assert instance.record(run)["status"] == "running"
    with Watch(instance, run) as watch:
        watch.until_lines(5)
        assert instance.record(run)["detachedSince"] is None
    instance.http.post("/api/chat/cancel", json={"runId": run})
    assert instance.ended(run)["cancelReason"] == "user"


def test_on_disconnect_cancel_ends_the_run_after_the_grace_and_not_before_the_viewer_left(instance: Instance) -> None:
    run = unique("disconnect")
    with Watch(instance, run, numbered(6000), onDisconnect="cancel") as watch:
        watch.until_lines(200)
        assert instance.record(run)["cancelRequested"] is False
    record = instance.ended(run, within_s=30)
    assert (record["status"], record["cancelReason"]) == ("aborted", "disconnect")


def test_a_kept_sandbox_stays_until_the_threads_next_run_which_has_its_files(instance: Instance) -> None:
    run, failing, later = unique("kept"), unique("not-kept"), unique("after-kept")
    thread = f"thread-{run}"
    instance.begin(run, "echo work > result", thread, keepAlive=True)
    record = wait_until(lambda: found if (found := instance.record(run))["finishedAt"] else None, "its end") or {}
    assert (record["status"], record["sandboxKeptUntil"]) == ("completed", record["finishedAt"] + 3_600_000)
    instance.begin(failing, "exit 3", keepAlive=True)
    assert instance.ended(failing)["sandboxKeptUntil"] is None
    wait_until(lambda: instance.left_of(run) == [run], "its sandbox, in which nothing runs any more")
    with Watch(instance, later, "cat result", thread_id=thread) as watch:
        watch.until_end()
    assert watch.lines == ["work"]
    assert instance.left_of(run) == []
    assert instance.ended(later)["sandboxKeptUntil"] is None
    wait_until(lambda: instance.record(run)["sandboxKeptUntil"] is None, "a record that says so")


def test_an_enqueued_run_starts_when_the_one_before_it_ends(instance: Instance) -> None:
    first, second = unique("queue-1"), unique("queue-2")
    thread = f"thread-{first}"
    with Watch(instance, first, numbered(60), thread_id=thread) as watch:
        watch.until_lines(5)
        with Watch(instance, second, "echo 1", thread_id=thread, onBusy="enqueue") as queued:
            wait_until(lambda: queued.events, "run.accepted of the queued run")
            record = instance.record(second)
            assert (record["queued"], record["startedAt"]) == (True, None)
            assert instance.http.get("/api/chat/active", params={"threadId": thread}).json() == {"runId": first}
            watch.until_end()
            queued.until_end()
    check_whole(queued, 1)
    before, after = instance.ended(first), instance.ended(second)
    assert after["startedAt"] >= before["finishedAt"]


def test_cancel_previous_ends_the_active_run_and_starts(instance: Instance) -> None:
    first, second = unique("previous-1"), unique("previous-2")
    thread = f"thread-{first}"
    with Watch(instance, first, numbered(3000), thread_id=thread) as watch:
        watch.until_lines(5)
        with Watch(instance, second, "echo 1", thread_id=thread, onBusy="cancel-previous") as queued:
            queued.until_end()
    check_whole(queued, 1)
    assert instance.ended(first)["status"] == "aborted"
    assert instance.ended(second)["status"] == "completed"


def test_who_presses_stop_and_types_on_is_queued_and_never_refused(instance: Instance) -> None:
    first, second = unique("stop-1"), unique("stop-2")
    thread = f"thread-{first}"
    with Watch(instance, first, numbered(3000), thread_id=thread) as watch:
        watch.until_lines(5)
        assert instance.http.post("/api/chat/cancel", json={"threadId": thread}).status_code == 204
        with Watch(instance, second, "echo 1", thread_id=thread) as next_run:
            next_run.until_end()
    check_whole(next_run, 1)
    assert instance.ended(first)["cancelReason"] == "user"


def test_a_run_limit_ends_the_run_and_its_agent(instance: Instance) -> None:
    run = unique("limit")
    with Watch(instance, run, "echo 1; sleep 300", runLimitS=1) as watch:
        terminal = watch.until_end()
    assert (terminal["type"], terminal["code"]) == ("RUN_ERROR", "run_limit")
    record = instance.ended(run)
    assert (record["status"], record["error"]["code"]) == ("failed", "run_limit")


def test_runs_that_nobody_comes_back_for_end_and_are_told_of(instance: Instance, tmp_path: Path) -> None:
    itself, never = unique("itself"), unique("never")
    instance.begin(never, "echo 1; sleep 3000", detachedTtlS=2)
    with Watch(instance, itself, f"echo 1; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done") as watch:
        watch.until_lines(1)
    wait_until(lambda: instance.record(itself)["detachedSince"], "nobody who watches", 30.0)
    (tmp_path / "go").touch()

    def reaped() -> bool:
        instance.http.post("/api/reap", timeout=40.0).raise_for_status()
        return all(instance.record(run)["reaped"] for run in (itself, never))

    wait_until(reaped, "what became of both runs", 60.0)
    expired, finalized = instance.ended(never), instance.ended(itself)
    assert (expired["status"], expired["error"]["code"]) == ("aborted", "detached_expired")
    assert (finalized["status"], finalized["exitCode"], finalized["reaped"]) == ("completed", 0, "finalized")
    assert expired["finishedAt"] - expired["detachedSince"] >= 2000
    assert (expired["reaped"], expired["closed"]) == ("expired", True)
    assert instance.metric('outlast_reaped_total{outcome="expired"}') >= 1.0
    with Watch(instance, never) as watch:
        assert watch.until_end()["code"] == "detached_expired"


def test_two_posts_of_one_run_at_once_start_one_agent(instance: Instance, tmp_path: Path) -> None:
    run = unique("twice")
    script = f"echo started >> {tmp_path}/starts; {numbered(20)}"
    with Watch(instance, run, script) as one, Watch(instance, run, script) as other:
        one.until_end()
        other.until_end()
    check_whole(one, 20)
    check_whole(other, 20)
    assert instance.http.get(f"/api/runs/{run}").json()["driverEpoch"] == 1
    assert (tmp_path / "starts").read_text() == "started\n"
