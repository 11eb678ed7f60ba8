"""`stop` ends the process that instance.json names, and no other."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_program import Outlast
from fake_instance import FakeInstance

from runtime.process import ProcessIdentity, identify
from runtime.settings import load
from serve_app.commands import draining, stop
from serve_app.http_client import Instance
from serve_app.trials import Patience

SERVE = "import signal\nprint('up', flush=True)\nwhile True: signal.pause()\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE


def begin(program: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


@pytest.fixture
def serving() -> Iterator[subprocess.Popen[bytes]]:
    child = begin(SERVE)
    yield child
    finish(child)


def finish(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def who(child: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = identify(child.pid)
    assert found is not None
    return found


def describe(fake: FakeInstance, child: subprocess.Popen[bytes]) -> None:
    fake.describe(child.pid, who(child).pid_started_at)


def test_stop_ends_the_process_and_waits_for_it(
    fake: FakeInstance, outlast: Outlast, serving: subprocess.Popen[bytes]
) -> None:
    describe(fake, serving)
    result = outlast("stop")
    assert (result.exit_code, result.stderr) == (0, "stopped\n")
    assert serving.wait(timeout=0) == -signal.SIGTERM


def test_stop_does_not_touch_a_process_that_only_has_the_pid(
    fake: FakeInstance, outlast: Outlast, serving: subprocess.Popen[bytes]
) -> None:
    fake.describe(serving.pid, who(serving).pid_started_at - 1)
    assert outlast("stop").exit_code == 5
    assert serving.poll() is None


def test_stop_of_a_dead_instance_finds_none(fake: FakeInstance, outlast: Outlast) -> None:
    child = begin(SERVE)
    describe(fake, child)
    finish(child)
    result = outlast("stop")
    assert (result.exit_code, "there is nothing to stop" in result.stderr) == (5, True)


def test_stop_cancel_runs_cancels_what_has_not_ended_first(
    fake: FakeInstance, outlast: Outlast, serving: subprocess.Popen[bytes]
) -> None:
    describe(fake, serving)
    fake.start("done").finish()
    fake.start("one")
    fake.start("two")
    fake.start("waits", status="interrupted")
    result = outlast("stop", "--cancel-runs")
    assert result.exit_code == 0
    cancelled = [asked.body["runId"] for asked in fake.asked if asked.path == "/api/chat/cancel"]
    assert sorted(cancelled) == ["one", "two", "waits"]
    assert fake.runs["done"].record["status"] == "completed"
    assert serving.wait(timeout=0) == -signal.SIGTERM


def test_without_the_flag_no_run_is_touched(
    fake: FakeInstance, outlast: Outlast, serving: subprocess.Popen[bytes]
) -> None:
    describe(fake, serving)
    fake.start("r")
    assert outlast("stop").exit_code == 0
    assert not fake.asked


def test_runs_that_do_not_end_keep_the_instance_up(fake: FakeInstance, tmp_path: Path) -> None:
    fake.ends_on_cancel = False
    fake.start("r")
    with (
        Instance(load({}, data_dir=str(tmp_path)), patience=Patience()) as instance,
        pytest.raises(stop.StillThere, match="not stopped: r"),
    ):
        stop.cancel_all(instance, within_s=0.0)
    assert [asked.path for asked in fake.asked].count("/api/chat/cancel") == 1


def test_a_process_that_does_not_end_is_named() -> None:
    child = begin(STUBBORN)
    with pytest.raises(stop.StillThere, match=str(child.pid)):
        stop.end(who(child), within_s=0.05)
    finish(child)


def test_a_drain_says_what_left_the_node_and_ends_when_it_has_gone() -> None:
    reports = [
        {
            "nodeId": "a1b2c3",
            "left": {"run:r-1": "is being moved", "run:r-2": "its sandbox is on local/m"},
            "gone": False,
        },
        {"nodeId": "a1b2c3", "left": {"run:r-2": "its sandbox is on local/m"}, "gone": False},
        {"nodeId": "a1b2c3", "left": {}, "gone": True},
    ]
    asked: list[str] = []
    said: list[str] = []

    def ask(node: str) -> dict[str, Any]:
        asked.append(node)
        return reports[len(asked) - 1]

    draining.follow(ask, "a1", 60, said.append)
    assert asked == ["a1", "a1b2c3", "a1b2c3"]
    assert said == [
        "draining node a1b2c3; on it: run:r-1, run:r-2",
        "run:r-1: is being moved",
        "run:r-2: its sandbox is on local/m",
        "run:r-1 is no longer there",
        "node a1b2c3 has gone, with run:r-2 moved",
    ]


def test_a_drain_that_is_not_done_in_time_names_what_stays_and_why() -> None:
    left = {"run:r-2": "its sandbox is on local/m, which no other node reaches"}
    with pytest.raises(draining.StillOn, match="run:r-2: its sandbox is on local/m, which no other node reaches"):
        draining.follow(lambda _: {"nodeId": "a1b2c3", "left": left, "gone": False}, "a1", 0, lambda _: None)
