"""What only a process of its own shows: signals, pipes, imports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import PACKAGES, Outlast
from fake_instance import FakeInstance, text
from waiting import wait_until

HEAVY = {"ray", "fastapi", "starlette", "pydantic", "uvicorn", "numpy", "prometheus_client"}


@pytest.mark.parametrize("command", ["run", "tail"])
def test_ctrl_c_detaches_and_says_how_to_come_back(fake: FakeInstance, outlast: Outlast, command: str) -> None:
    run = fake.start("r")
    run.add(text("hello\n"))
    child = outlast.begin(*(["tail", "r"] if command == "tail" else ["run", "--run", "r", "x"]))
    assert child.stdout is not None
    assert child.stdout.readline() == b"hello\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, b"")
    last = err.decode().splitlines()[-1]
    assert "outlast tail r" in last
    assert b"Traceback" not in err
    assert "/api/chat/cancel" not in [asked.path for asked in fake.asked]
    run.add(text("more\n"))
    run.finish()
    here = re.search(r"--from (\S+?)\)", last)
    assert here is not None
    assert outlast("tail", "r", "--from", here[1]).stdout == "more\n"


def test_ctrl_c_before_anything_was_answered_detaches_too(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r").chunks.clear()
    child = outlast.begin("run", "--run", "r", "x")
    wait_until(fake.streams, "the stream is open")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, b"outlast tail r" in err) == (130, True)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_broken_pipe_ends_quietly(fake: FakeInstance, outlast: Outlast, flags: list[str]) -> None:
    run = fake.start("r")
    run.add(text("hello\n"))
    child = outlast.begin("tail", "r", *flags)
    assert child.stdout is not None
    assert child.stdout.readline()
    child.stdout.close()
    run.add(*(text(f"{number}\n") for number in range(10)))
    assert child.stderr is not None
    assert child.stderr.read() == b""
    assert child.wait(timeout=20) == 141
    assert "/api/chat/cancel" not in [asked.path for asked in fake.asked]


def test_text_comes_while_the_run_goes_on(fake: FakeInstance, outlast: Outlast) -> None:
    run = fake.start("r")
    child = outlast.begin("tail", "r")
    assert child.stdout is not None
    for number in range(3):
        run.add(text(f"{number}\n"))
        assert child.stdout.readline() == b"%d\n" % number
    run.finish()
    assert child.wait(timeout=20) == 0


@pytest.mark.parametrize(
    "command",
    [["--help"], ["ps"], ["tail", "r"], ["stop"], ["restore", "--check", "f"]],
    ids=lambda command: command[0],
)
def test_no_command_but_serve_imports_what_is_heavy(
    fake: FakeInstance, outlast: Outlast, command: list[str], tmp_path: Path
) -> None:
    fake.start("r").finish()
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('MODULES', *sorted({name.split('.')[0] for name in sys.modules})))\n"
        f"sys.argv = ['outlast', *{command!r}]\n"
        "from serve_app.cli import main\n"
        "main()\n"
    )
    env = {"OUTLAST_DATA_DIR": str(tmp_path), "PYTHONPATH": str(PACKAGES)}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=False)
    (modules,) = re.findall(r"^MODULES (.*)$", done.stdout, re.MULTILINE)
    assert HEAVY.isdisjoint(modules.split())
    assert "click" in modules.split()


def test_a_folder_that_shadows_runtime_is_named(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "__init__.py").touch()
    # Without site-packages: an editable install of a developer would find our modules in spite of the shadow.
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{PACKAGES}"}
    argv = [sys.executable, "-P", "-S", "-m", "serve_app.cli", "ps"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert str(tmp_path / "runtime") in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_is_given_the_settings(outlast: Outlast, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = outlast("serve", "--data-dir", str(tmp_path / "taken" / "in"), "--port", "8123")
    assert result.exit_code == 5, result.output
    assert str(tmp_path / "taken" / "in") in result.stderr
