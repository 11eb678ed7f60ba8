"""`doctor` finds what is wrong, with and without an instance, and keeps to what it can know."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_program import PACKAGES, Outlast
from fake_instance import FakeInstance

from runtime.settings import Settings, load
from serve_app.commands import checks, doctor
from serve_app.commands.checks import Check

QUICK = tuple(check for check in checks.CHECKS if check not in (checks.ray, checks.packages, checks.port))


def settings(**overrides: object) -> Settings:
    return load({}, **overrides)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing Ray takes seconds; one test does it."""
    monkeypatch.setattr(doctor, "CHECKS", QUICK)


def by_name(stdout: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(stdout)["checks"]}


def test_json_lists_actors_and_checks(fake: FakeInstance, outlast: Outlast) -> None:
    actor = {"name": "log:0", "nodeId": "n", "pid": 7, "alive": True}
    fake.readiness = (
        200,
        {"ready": True, "checks": [{"name": "log:0", "ok": True, "detail": "epoch 1"}], "actors": [actor]},
    )
    result = outlast("doctor", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {"actors", "checks"}
    assert report["actors"] == [actor]
    assert all(set(check) == {"name", "ok", "detail"} for check in report["checks"])
    assert by_name(result.stdout)["instance.log:0"]["ok"]
    assert by_name(result.stdout)["instance"]["detail"].startswith(fake.url)


def test_an_instance_that_is_not_ready_is_a_failed_check(fake: FakeInstance, outlast: Outlast) -> None:
    part = {"name": "supervisor", "ok": False, "detail": "no answer within 2 s"}
    fake.readiness = (503, {"ready": False, "checks": [part]})
    result = outlast("doctor", "--json")
    assert result.exit_code == 1
    found = by_name(result.stdout)
    assert not found["instance"]["ok"]
    assert found["instance.supervisor"] == {**part, "name": "instance.supervisor"}


def test_no_instance_is_no_failure(outlast: Outlast) -> None:
    result = outlast("doctor", "--json")
    assert (result.exit_code, json.loads(result.stdout)["actors"]) == (0, [])
    assert "none runs in" in by_name(result.stdout)["instance"]["detail"]


def test_a_stale_instance_json_is_no_failure(fake: FakeInstance, outlast: Outlast) -> None:
    fake.down()
    result = outlast("doctor", "--json")
    assert result.exit_code == 0
    assert "the last one was lost without a stop" in by_name(result.stdout)["instance"]["detail"]


def test_a_named_instance_that_does_not_answer_is_a_failure(fake: FakeInstance, outlast: Outlast) -> None:
    url = fake.url
    fake.down()
    result = outlast("doctor", "--url", url)
    assert result.exit_code == 1
    assert "FAIL  instance" in result.stdout


def test_text_is_a_line_for_each_check(outlast: Outlast) -> None:
    lines = outlast("doctor").stdout.splitlines()
    assert len(lines) == len(QUICK) + 1
    assert all(line.startswith(("ok    ", "FAIL  ")) for line in lines)


def test_it_says_plainly_that_local_does_not_isolate() -> None:
    check = checks.sandbox(settings())
    assert check.ok
    assert "does not isolate the agent (isolated_agent is false)" in check.detail


def test_a_port_of_another_program_is_found() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        check = checks.port(settings(port=number))
        assert (check.ok, "OUTLAST_PORT" in check.detail) == (False, True)
    assert checks.port(settings(port=number)).ok
    assert not checks.port(settings(host="192.0.2.1")).ok


def test_the_port_of_our_own_instance_is_not_taken_for_another(fake: FakeInstance, outlast: Outlast) -> None:
    doctor_checks = by_name(outlast("doctor", "--json").stdout)
    assert "port" not in doctor_checks


def test_a_data_directory_that_cannot_be_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert checks.data_dir(settings(data_dir=str(tmp_path))).ok
    assert checks.data_dir(settings(data_dir=str(tmp_path / "new" / "er"))).ok
    assert not checks.data_dir(settings(data_dir=str(tmp_path / "file"))).ok
    assert not checks.data_dir(settings(data_dir="/proc/outlast")).ok
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_of_the_user_that_shadows_a_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "actors").mkdir()
    (tmp_path / "actors" / "__init__.py").touch()
    code = "from serve_app.commands.checks import *; from runtime.settings import load; print(packages(load({})))"
    env = {"PYTHONPATH": f"{tmp_path}:{PACKAGES}"}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "ok=False" in done.stdout
    assert f"Python takes actors from {tmp_path}" in done.stdout


def test_low_limits_of_file_watches_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.inotify(settings()).name == "inotify"
    monkeypatch.setattr(checks, "INOTIFY", {"max_user_instances": 1 << 62})
    check = checks.inotify(settings())
    assert (check.ok, "sysctl" in check.detail) == (False, True)


def test_optional_programs_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert checks.claude(settings()) == Check("claude", True, "not on the PATH: only the harness claude-code needs it")
    assert checks.codex(settings()) == Check("codex", True, "not on the PATH: only the harness codex needs it")
    assert checks.git(settings()).ok


def test_ray_is_imported_in_the_right_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.ray(settings()).ok
    monkeypatch.setattr(sys, "executable", "/bin/false")
    check = checks.ray(settings())
    assert (check.ok, "`import ray` fails" in check.detail) == (False, True)
