"""A real instance: `outlast serve` as a process of its own, with Ray, gateway, shard and agents below it.

Everything is found by identity. What an instance starts inherits its environment, so the data
directory there names exactly its processes; an agent carries its sandbox's key, which holds the deployment's id; a
driver is named by the claim in its run's record. A test ends only what it finds in one of these ways.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import leftovers
from processes import GONE_S, carries_sandbox, command_line, every_process
from shell_runs import body
from waiting import wait_until

from runtime import process
from runtime.core.launch import decode_launch
from runtime.process import ProcessIdentity
from serve_app import instance_file
from serve_app.instance_file import InstanceInfo
from serve_app.ray_environment import folders_of, free_port

START_S = 120.0  # 8 to 12 s on two idle cores
STOP_S = 30.0  # promised to users (design 8)
CHECKOUT = Path(__file__).resolve().parents[1]
OUTLAST = Path(sys.executable).with_name("outlast")
# Silence is short here, so that a heartbeat is worth waiting for; the other bounds are what the tests run into.
SETTINGS = {
    "OUTLAST_HEARTBEAT_S": "0.5",
    "OUTLAST_DISCONNECT_GRACE_S": "0.5",
    "OUTLAST_MAX_BODY_BYTES": "65536",
    "OUTLAST_MAX_RUNS": "12",
    "OUTLAST_WARM_WORKERS": "2",
    "OUTLAST_HARNESSES": "spy=spy_harness:SpyHarness",
    "PYTHONPATH": str(Path(__file__).parent),
}


class Instance:
    """One data directory and whatever serves it now."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = folder / "data"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.namespace = f"test-{self.port}"
        # Socket paths are bounded by 107 bytes, so Ray's folder lies nearer to the root than pytest's.
        self.temp_dir = f"/tmp/outlast-test-{os.getpid()}-{self.port}"
        self.printed = folder / "serve.out"
        self.serve: subprocess.Popen[bytes] | None = None
        self._settings = {**SETTINGS, **(settings or {})}
        self._http: httpx.Client | None = None

    @property
    def env(self) -> dict[str, str]:
        """Return the environment that names this instance."""
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            **self._settings,
            "OUTLAST_DATA_DIR": str(self.data_dir),
            "OUTLAST_PORT": str(self.port),
            "OUTLAST_NAMESPACE": self.namespace,
            "OUTLAST_RAY_TEMP_DIR": self.temp_dir,
        }

    # --- life ---

    def configure(self, **settings: str) -> None:
        """Change settings for the next `start`."""
        self._settings |= settings

    def start(self, within_s: float = START_S) -> None:
        """Start `outlast serve`; return once runs can be started."""
        if self.serve is not None:
            self.serve.wait(GONE_S)
        with self.printed.open("ab") as output:
            self.serve = subprocess.Popen(
                [OUTLAST, "serve"],
                cwd="/",
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a process group of its own, which a test may signal as a terminal would
            )
        wait_until(lambda: self.exit_code is not None or self._begun(), "instance.json of this serve", within_s)
        assert self.exit_code is None, self.said
        self.wait_ready()

    def wait_ready(self, within_s: float = 20.0) -> None:
        """Return once every part answers."""
        wait_until(lambda: self.ready, f"every check of {self.url}/readyz", within_s)

    def stop(self) -> int:
        """SIGTERM the serve; return its exit code. Raises TimeoutExpired after STOP_S."""
        assert self.serve is not None
        self.serve.send_signal(signal.SIGTERM)
        return self.serve.wait(STOP_S)

    def kill_everything(self) -> None:
        """SIGKILL every process of this instance, agents excepted, and see them gone. Nothing gets to clean up."""
        leftovers.end("OUTLAST_DATA_DIR", str(self.data_dir))
        if self.serve is not None:
            self.serve.wait(GONE_S)

    def close(self) -> None:
        """Leave nothing: no process, no agent, no folder outside pytest's."""
        if self._http is not None:
            self._http.close()
        self.kill_everything()
        for pid in self.agents():
            with suppress(ProcessLookupError):  # its recorder was quicker
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.agents(), "the end of every agent", GONE_S)
        for folder in folders_of(self.temp_dir):
            shutil.rmtree(folder, ignore_errors=True)

    # --- what it says ---

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of `serve`, None while it runs."""
        assert self.serve is not None
        return self.serve.poll()

    @property
    def said(self) -> str:
        """Return what every `serve` of this instance printed."""
        return self.printed.read_text(errors="replace")

    @property
    def info(self) -> InstanceInfo:
        """Return instance.json."""
        info = instance_file.read(self.data_dir)
        assert info is not None, f"no instance.json; {self.said}"
        return info

    def _begun(self) -> bool:
        info = instance_file.read(self.data_dir)
        return info is not None and self.serve is not None and info.pid == self.serve.pid

    @property
    def ready(self) -> bool:
        """Return whether /readyz says so."""
        try:
            response = self.http.get("/readyz")
            return response.status_code == httpx.codes.OK and bool(response.json()["ready"])
        except (httpx.TransportError, ValueError):
            return False

    # --- HTTP ---

    def enter_network(self) -> None:
        """It listens on this machine's loopback, which everybody reaches."""

    @property
    def http(self) -> httpx.Client:
        """Return a client of this instance."""
        if self._http is None:
            limits = httpx.Limits(max_keepalive_connections=0)  # a connection of before a restart is no use after it
            self._http = httpx.Client(base_url=self.url, timeout=10.0, trust_env=False, limits=limits)
        return self._http

    def begin(self, run_id: str, script: str, thread_id: str | None = None, **forwarded: Any) -> None:
        """Start a shell run and leave at once, as a closed tab does."""
        headers = {"X-Run-Id": run_id}
        with self.http.stream("POST", "/api/chat", headers=headers, json=body(run_id, script, thread_id, **forwarded)):
            pass

    def record(self, run_id: str) -> dict[str, Any]:
        """Return the record of a run, whichever shard answers; asked again while none does."""

        def asked() -> dict[str, Any] | None:
            try:
                response = self.http.get(f"/api/runs/{run_id}")
            except httpx.TransportError:
                return None
            if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                return None
            record: dict[str, Any] = response.raise_for_status().json()
            return record

        return wait_until(asked, f"the record of {run_id}", 30.0) or {}

    def ended(self, run_id: str, within_s: float = 20.0) -> dict[str, Any]:
        """Wait until a run has ended and its sandbox is destroyed; return its record."""

        def finished() -> dict[str, Any] | None:
            record = self.record(run_id)
            return record if record["status"] in ("completed", "failed", "aborted") else None

        record = wait_until(finished, f"the end of {run_id}", within_s) or {}
        wait_until(lambda: not self.left_of(run_id), f"no sandbox of {run_id} left")
        return record

    def claims(self, run_id: str) -> list[tuple[int, str]]:
        """Return (epoch, reason) of each claim."""
        return [(claim["epoch"], claim["reason"]) for claim in self.record(run_id)["claims"]]

    def metric(self, name: str) -> float:
        """Return one number of /metrics."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"{name} is not in /metrics")

    # --- processes ---

    def processes(self, title: str = "") -> list[ProcessIdentity]:
        """Return the living processes of this instance (agents carry nothing of it) whose command line begins so."""
        pids = leftovers.carrying("OUTLAST_DATA_DIR", str(self.data_dir))
        return [who for pid in pids if command_line(pid).startswith(title) and (who := process.identify(pid))]

    def the_process(self, title: str) -> ProcessIdentity:
        """Return the only process of that title, once there is one."""
        (found,) = wait_until(lambda: self.processes(title), f"a process {title}")
        return found

    def driver(self, run_id: str, epoch: int = 0) -> ProcessIdentity:
        """Return the process that the newest claim of the run names; wait until it is of `epoch` or higher."""

        def claimed() -> dict[str, Any] | None:
            claims = self.record(run_id)["claims"]
            return claims[-1] if claims and claims[-1]["epoch"] >= epoch else None

        claim = wait_until(claimed, f"a claim of {run_id} from epoch {epoch} on") or {}
        return ProcessIdentity(boot_id=claim["bootId"], pid=claim["pid"], pid_started_at=claim["pidStartedAt"])

    def agents(self, run_id: str | None = None) -> list[int]:
        """Return the agents' processes, of one run or of all runs of this instance."""
        mark = self.data_dir / "deployment"
        if not mark.exists():
            return []
        key = f"/{mark.read_text().strip()}/".encode()
        if run_id is not None:
            key += f"{run_id}\0".encode()
        return [pid for pid in every_process() if carries_sandbox(pid, key)]

    def recorders(self, run_id: str) -> list[ProcessIdentity]:
        """Return the recorder of a run, as its launch file names it; empty before the launch."""
        try:
            launch = decode_launch((self.sandbox(run_id) / "journal.launch").read_bytes())
        except FileNotFoundError:
            launch = None
        if launch is None:
            return []
        return [ProcessIdentity(boot_id=launch.boot_id, pid=launch.pid, pid_started_at=launch.pid_started_at)]

    def sandbox(self, run_id: str) -> Path:
        """Return the folder of a run's sandbox; only for ids that are their own name."""
        return self.data_dir / "sandboxes" / run_id

    def left_of(self, run_id: str) -> list[str]:
        """Return what there is of a run's sandbox: folders, a half-destroyed one too, and processes."""
        folders = [name for name in self.sandboxes() if name.partition("_")[0] == run_id]
        return folders + [command_line(pid) for pid in self.agents(run_id)]

    def sandboxes(self) -> list[str]:
        """Return the names of all sandboxes' folders."""
        return sorted(path.name for path in (self.data_dir / "sandboxes").glob("*"))
