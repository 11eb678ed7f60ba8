"""Lanes: tests split by what must be running. The first folder below `tests/` is a test's lane.

    unit      nothing                                   store     a SQLite with its files
    sim       nothing; virtual time                     sandbox   real processes of Linux
    project   nothing; the checkout itself              ray       a Ray cluster that the test starts
    http      a whole instance                          node      npm clients against an instance
    browser   a Chromium with pages of React against an instance
    hosts     three hosts in namespaces of their own
    postgres  a PostgreSQL server that the test starts; for some tests a whole instance too
    docker    a Docker engine that the test starts; for some tests a whole instance too
    agents    the real coding agents from npm, against a stub of their models; for some tests a whole instance too

A lane whose need cannot be had on this machine is left out: its tests are skipped, and the summary ends with one line
that says how to get it. `OUTLAST_TEST_NEED=ray,node` turns that into a failure, so that a CI cannot go green on what it
did not run; in a run of everything, a needed lane without a test fails too. Lanes run in the order of `LANES`, cheap
ones first.

Tests wait more than they compute, so `make test` runs two processes side by side (pytest-xdist): the lanes of
`INSTANCES` in one, all others in the other. What a session shares is shared within a process.

Deliberately not: a lane as a marker. A folder cannot be forgotten.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
NEED = "OUTLAST_TEST_NEED"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def _nothing() -> str | None:
    return None


def _sqlite() -> str | None:
    return None if importlib.util.find_spec("_sqlite3") else "this Python was built without sqlite3"


def _postgres() -> str | None:
    from postgres_server import programs  # noqa: PLC0415 - as for hosts

    return None if programs() else "PostgreSQL's server is not installed"


def _linux_processes() -> str | None:
    if not hasattr(os, "pidfd_open") or not Path("/proc/self/stat").exists():
        return "no pidfd_open or no /proc"
    return None


def _ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "the package ray is not installed"


def _node() -> str | None:
    absent = [program for program in ("node", "npm") if shutil.which(program) is None]
    if absent:
        return f"not on the PATH: {', '.join(absent)}"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if not re.match(r"v([2-9]\d|\d{3})\.", version):
        return f"Node 20 or newer is needed, and this is {version or 'none that works'}"
    return _ray()


def _browser() -> str | None:
    return _node() or (None if any(map(shutil.which, CHROMIUMS)) else f"not on the PATH: {' or '.join(CHROMIUMS)}")


def _docker() -> str | None:
    from docker_engine import missing  # noqa: PLC0415 - as for hosts

    return missing() or _ray()


def _agents() -> str | None:
    machine = platform.machine()
    return _node() or (None if machine in ("x86_64", "aarch64") else f"npm has no agents for {machine}")


def _hosts() -> str | None:
    from lan import missing  # noqa: PLC0415 - of chaos/: this file is also used without it

    return _ray() or missing()


@dataclass(frozen=True)
class Lane:
    """One lane. `missing` returns why it cannot run here, or None; `get` says how to change that."""

    name: str
    missing: Callable[[], str | None]
    get: str = ""
    may_start_ray: bool = False


LANES = {
    lane.name: lane
    for lane in (
        Lane("unit", _nothing),
        Lane("store", _sqlite, "a Python 3.11 with sqlite3 (Debian's has it)"),
        Lane("sim", _nothing),
        Lane(
            "postgres",
            _postgres,
            "install Debian's postgresql, or name the folder of its programs in OUTLAST_TEST_POSTGRES",
            may_start_ray=True,
        ),
        Lane("sandbox", _linux_processes, "Linux 5.3 or newer with /proc mounted"),
        Lane(
            "docker",
            _docker,
            "be root, with Debian's docker.io and busybox-static installed",
            may_start_ray=True,
        ),
        Lane("project", _nothing, may_start_ray=True),
        Lane("ray", _ray, "run `make test`, which installs requirements/dev.txt", may_start_ray=True),
        Lane("http", _ray, "run `make test`, which installs requirements/dev.txt", may_start_ray=True),
        Lane(
            "hosts",
            _hosts,
            "be root, with iproute2 and util-linux installed, where namespaces may be made",
            may_start_ray=True,
        ),
        Lane("node", _node, "put Node 20 or newer and its npm on the PATH", may_start_ray=True),
        Lane(
            "browser",
            _browser,
            "install Debian's chromium, and put Node 20 or newer and its npm on the PATH",
            may_start_ray=True,
        ),
        Lane("agents", _agents, "put Node 20 or newer and its npm on the PATH", may_start_ray=True),
    )
}

# The lanes of the second process; both take about as long.
INSTANCES = frozenset({"ray", "http", "hosts"})

# They compute and wait for nobody. Beside another process's instances, which answer in time, they yield the processor.
YIELDING = frozenset({"unit", "store", "sim", "project"})


def lane_of(path: Path) -> Lane:
    """Return the lane of a test file. Raises UsageError for a file that is in none."""
    inside = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    lane = LANES.get(inside[0]) if len(inside) > 1 else None
    if lane is None:
        raise pytest.UsageError(f"{path} is in no lane: move it to one of tests/{{{','.join(LANES)}}}/")
    return lane


def needed(env: str) -> list[Lane]:
    """Return the lanes that `OUTLAST_TEST_NEED` names. Raises UsageError for a name that is no lane."""
    names = [name.strip() for name in env.split(",") if name.strip()]
    unknown = [name for name in names if name not in LANES]
    if unknown:
        raise pytest.UsageError(f"{NEED}: {', '.join(unknown)}: no such lane; there are {', '.join(LANES)}")
    return [LANES[name] for name in names]


class LanePlugin:
    """Sorts, skips and counts by lane in one session."""

    def __init__(self, config: pytest.Config, needed_lanes: list[Lane]) -> None:
        self.needed = needed_lanes
        self.with_long = bool(config.getoption("--long"))
        self.root = config.rootpath
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tests: defaultdict[str, int] = defaultdict(int)
        self.left_out: dict[str, str] = {}
        self.long_left_out = 0

    def refuse_unmet(self) -> None:
        """Raise UsageError if a needed lane cannot run here, whatever was selected."""
        unmet = [f"{lane.name}: {why}. To get it: {lane.get}" for lane in self.needed if (why := lane.missing())]
        if unmet:
            raise pytest.UsageError(f"{NEED} names lanes that cannot run here:\n  " + "\n  ".join(unmet))

    def refuse_empty(self, config: pytest.Config) -> None:
        """Raise UsageError if everything is to be run and a needed lane has no file of tests."""
        everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        selected = config.getoption("keyword") or config.getoption("markexpr") or config.getoption("last_failed", None)
        empty = [lane.name for lane in self.needed if not any((TESTS / lane.name).rglob("test_*.py"))]
        if everything and not selected and empty:
            raise pytest.UsageError(f"{NEED} names lanes that have no test: {', '.join(empty)}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Return who says, where there are several processes, which of them runs a test."""
        from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # noqa: PLC0415

        class Halves(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
            def _split_scope(self, nodeid: str) -> str:
                lane = lane_of(config.rootpath / nodeid.partition("::")[0])
                return "instances" if lane.name in INSTANCES else "others"

        return Halves(config, log)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what cannot run or was not asked for, and put cheap lanes first."""
        ids = [item.nodeid for item in items]
        if twice := {one for one in ids if ids.count(one) > 1} if len(set(ids)) < len(ids) else set():
            raise pytest.UsageError(f"of several tests with one id, two processes run one: {', '.join(sorted(twice))}")
        order = list(LANES)
        lanes = {path: lane_of(path) for path in {item.path for item in items}}
        items.sort(key=lambda item: order.index(lanes[item.path].name))
        if not self.with_long:
            long = [item for item in items if item.get_closest_marker("long")]
            items[:] = [item for item in items if not item.get_closest_marker("long")]
            self.long_left_out = len(long)
            config.hook.pytest_deselected(items=long)
        whys = {lane.name: why for lane in lanes.values() if (why := lane.missing())}
        for item in items:
            lane = lanes[item.path]
            if lane.name in whys:
                self.left_out[lane.name] = whys[lane.name]
                item.add_marker(pytest.mark.skip(reason=f"lane {lane.name}: {whys[lane.name]}"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Yield to the other process where a lane may; only root can take that back, so nobody else does it."""
        if hasattr(item.config, "workerinput") and os.geteuid() == 0:
            os.setpriority(os.PRIO_PROCESS, 0, 10 if lane_of(item.path).name in YIELDING else 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the seconds of set-up, call and teardown."""
        lane = lane_of(self.root / report.nodeid.partition("::")[0]).name
        self.seconds[lane] += report.duration
        self.tests[lane] += report.when == "setup"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that prints the summary, if this is one of several, what was left out."""
        told = getattr(session.config, "workeroutput", None)
        if told is not None:
            told["lanes"] = (self.left_out, self.long_left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what one of the processes says; each has collected everything, so all say the same."""
        self.left_out, self.long_left_out = getattr(node, "workeroutput", {}).get("lanes", (self.left_out, 0))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """Print, after everything else, seconds per lane, then what was left out and how to get it."""
        yield
        terminalreporter.write_sep("=", "lanes")
        for name in [name for name in LANES if name in self.tests]:
            terminalreporter.write_line(f"{name:<8} {self.seconds[name]:7.1f} s {self.tests[name]:5} tests")
        if self.long_left_out:
            terminalreporter.write_line(f"left out: {self.long_left_out} long tests. To get them: make test-long")
        for name, why in self.left_out.items():
            terminalreporter.write_line(f"left out: lane {name}: {why}. To get it: {LANES[name].get}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long."""
    parser.addoption("--long", action="store_true", help="run the tests marked long too")


def pytest_configure(config: pytest.Config) -> None:
    """Check `OUTLAST_TEST_NEED` before anything is collected, then register the plugin."""
    plugin = LanePlugin(config, needed(os.environ.get(NEED, "")))
    plugin.refuse_unmet()
    plugin.refuse_empty(config)
    config.pluginmanager.register(plugin, "outlast-lanes")


def _ray_is_up() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@pytest.fixture(autouse=True)
def _lane_starts_no_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of a lane without Ray that starts one: seconds, processes and a global state nobody asked for."""
    before = _ray_is_up()
    yield
    lane = lane_of(request.path)
    if not lane.may_start_ray and not before and _ray_is_up():
        pytest.fail(f"a test of lane {lane.name} started Ray; it belongs in tests/ray/ or tests/http/")
