"""The lanes do what `tests/lanes.py` promises; each test runs a small suite of its own in another process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
INI = """\
[pytest]
testpaths = tests
pythonpath = tests
addopts = --import-mode=importlib --strict-markers -p no:cacheprovider
markers = long
"""


class Suite:
    """A checkout with nothing but the lanes and what a test writes into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "pytest.ini").write_text(INI)
        (root / "tests").mkdir()
        shutil.copy(TESTS / "lanes.py", root / "tests")
        (root / "tests" / "conftest.py").write_text('pytest_plugins = ["lanes"]\n')

    def write(self, path: str, text: str) -> None:
        """Write one file below tests/."""
        place = self.root / "tests" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def run(self, *args: str, **env: str) -> tuple[int, str]:
        """Return pytest's exit code and what it printed."""
        argv = [sys.executable, "-m", "pytest", *args]
        whole = {"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **env}
        done = subprocess.run(argv, cwd=self.root, env=whole, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_a_lane_that_cannot_run_is_skipped_and_named_at_the_end(suite: Suite) -> None:
    suite.write("unit/test_a.py", "def test_a(): pass\n")
    suite.write("node/test_b.py", "def test_b(): pass\n")
    code, output = suite.run(PATH="/nowhere")
    assert code == 0
    assert "1 passed, 1 skipped" in output
    end = output[output.rindex("= lanes =") :]
    assert "left out: lane node: not on the PATH: node, npm. To get it: put Node 20 or newer and" in end
    assert "unit " in end


def test_the_node_lane_is_left_out_with_an_old_node(suite: Suite, tmp_path: Path) -> None:
    suite.write("node/test_b.py", "def test_b(): pass\n")
    for program in ("node", "npm"):
        (tmp_path / program).write_text("#!/bin/sh\necho v18.19.0\n")
        (tmp_path / program).chmod(0o755)
    _, output = suite.run(PATH=f"{tmp_path}:/usr/bin:/bin")
    assert "left out: lane node: Node 20 or newer is needed, and this is v18.19.0" in output


def test_the_browser_lane_is_left_out_without_a_browser(suite: Suite, tmp_path: Path) -> None:
    suite.write("browser/test_b.py", "def test_b(): pass\n")
    for program in ("node", "npm"):
        (tmp_path / program).write_text("#!/bin/sh\necho v20.1.0\n")
        (tmp_path / program).chmod(0o755)
    _, output = suite.run(PATH=str(tmp_path))
    assert "left out: lane browser: not on the PATH: chromium or chromium-browser or google-chrome. To get" in output
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    (tmp_path / "chromium").chmod(0o755)
    assert "1 passed" in suite.run(PATH=str(tmp_path))[1]


def test_a_needed_lane_that_cannot_run_fails_the_run(suite: Suite) -> None:
    suite.write("unit/test_a.py", "def test_a(): pass\n")
    code, output = suite.run(PATH="/nowhere", OUTLAST_TEST_NEED="unit,node")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "node: not on the PATH" in output
    assert suite.run(PATH="/nowhere", OUTLAST_TEST_NEED="unit")[0] == 0


def test_a_needed_lane_that_does_not_exist_fails_the_run(suite: Suite) -> None:
    suite.write("unit/test_a.py", "def test_a(): pass\n")
    code, output = suite.run(OUTLAST_TEST_NEED="nodes")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "nodes: no such lane" in output


def test_a_needed_lane_without_a_test_fails_a_run_of_everything(suite: Suite) -> None:
    suite.write("unit/test_a.py", "def test_a(): pass\n")
    code, output = suite.run(OUTLAST_TEST_NEED="unit,sim")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "lanes that have no test: sim" in output
    assert suite.run("tests/unit", OUTLAST_TEST_NEED="unit,sim")[0] == 0
    assert suite.run("-k", "test_a", OUTLAST_TEST_NEED="unit,sim")[0] == 0


@pytest.mark.parametrize("path", ["test_a.py", "elsewhere/test_a.py"])
def test_a_test_outside_every_lane_fails_the_run(suite: Suite, path: str) -> None:
    suite.write(path, "def test_a(): pass\n")
    code, output = suite.run()
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "is in no lane" in output


def test_long_tests_run_only_when_asked_for(suite: Suite) -> None:
    suite.write("unit/test_a.py", "import pytest\n@pytest.mark.long\ndef test_a(): pass\ndef test_b(): pass\n")
    assert "left out: 1 long tests. To get them: make test-long" in suite.run()[1]
    assert "2 passed" in suite.run("--long")[1]


def test_cheap_lanes_run_first(suite: Suite) -> None:
    for lane in ("http", "project", "sim", "unit"):
        suite.write(f"{lane}/test_a.py", "def test_a(): pass\n")
    output = suite.run("-v")[1]
    places = [output.index(f"tests/{lane}/test_a.py::test_a") for lane in ("unit", "sim", "project", "http")]
    assert places == sorted(places)


def test_a_unit_test_that_starts_ray_fails(suite: Suite) -> None:
    # A stand-in for ray: what counts is whether the guard looks.
    suite.write(
        "ray.py", "up = False\ndef is_initialized():\n    return up\ndef init():\n    global up\n    up = True\n"
    )
    suite.write("unit/test_a.py", "import ray\ndef test_a(): ray.init()\n")
    suite.write("http/test_b.py", "import ray\ndef test_b(): ray.init()\n")
    code, output = suite.run("tests/unit")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "a test of lane unit started Ray" in output
    assert suite.run("tests/http")[0] == 0


SIDE_BY_SIDE = ("-p", "xdist", "--numprocesses", "2", "--dist", "loadscope")


def test_two_processes_each_have_their_lanes_and_one_summary_tells_of_both(suite: Suite) -> None:
    for lane in ("unit", "store", "ray", "http"):
        suite.write(
            f"{lane}/test_a.py", f"import os\ndef test_a(): open('{suite.root}/{lane}', 'w').write(str(os.getpid()))\n"
        )
    suite.write("node/test_b.py", "def test_b(): pass\n")
    suite.write("unit/test_long.py", "import pytest\n@pytest.mark.long\ndef test_a(): pass\n")
    code, output = suite.run(*SIDE_BY_SIDE, PATH="/nowhere")
    assert code == 0
    process = {lane: (suite.root / lane).read_text() for lane in ("unit", "store", "ray", "http")}
    assert process["unit"] == process["store"] != process["ray"] == process["http"]
    assert "4 passed, 1 skipped" in output
    end = output[output.rindex("= lanes =") :]
    assert "left out: lane node: not on the PATH" in end
    assert "left out: 1 long tests" in end


def test_a_needed_lane_without_a_test_fails_two_processes_too(suite: Suite) -> None:
    suite.write("unit/test_a.py", "def test_a(): pass\n")
    code, output = suite.run(*SIDE_BY_SIDE, OUTLAST_TEST_NEED="unit,sim")
    assert code != 0
    assert "lanes that have no test: sim" in output


def test_tests_that_share_an_id_are_refused(suite: Suite) -> None:
    suite.write("unit/test_a.py", "def test_a(): pass\n")
    hook = "def pytest_collection_modifyitems(items): items.append(items[0])\n"
    suite.write("conftest.py", f'pytest_plugins = ["lanes"]\n{hook}')
    code, output = suite.run()
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "of several tests with one id, two processes run one: tests/unit/test_a.py::test_a" in output
