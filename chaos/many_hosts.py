"""Outlast on several hosts: `outlast serve` on host 0 over a Ray node on each, and what a client there sees.

HTTP listens on host 0's loopback; who asks enters that host's network first, one OS thread for each client.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from afterwards import read_workspaces
from host import Host
from lan import Lan
from one_host import NotServed
from ray_nodes import RayNodes

from runtime.process import ProcessIdentity

PORT = 8000
START_S = 120.0
SERVE_TRIES = 3
STOP_S = 30.0
LOOK_S = 0.1
ASK_S = 10.0
TERMINAL = ("completed", "failed", "aborted")


class ManyHosts:
    """One instance over the hosts of a `Lan`."""

    url = f"http://127.0.0.1:{PORT}"

    def __init__(self, lan: Lan, settings: Mapping[str, str] | None = None) -> None:
        self.lan = lan
        self.nodes = RayNodes(lan)
        self._settings = dict(settings or {})
        self._serve: subprocess.Popen[bytes] | None = None
        self._asking: ThreadPoolExecutor | None = None

    # --- life ---

    @property
    def head(self) -> Host:
        """Return the host of Ray's head, of `serve` and of the store."""
        return self.lan.hosts[0]

    def env(self, host: Host) -> dict[str, str]:
        """Return the environment of the instance's processes on a host."""
        return {
            **self.nodes.env(host),
            "OUTLAST_DATA_DIR": str(host.folder / "data"),
            "OUTLAST_RAY_ADDRESS": self.nodes.address,
            "OUTLAST_PORT": str(PORT),
            **self._settings,
        }

    def serve(self, within_s: float = START_S) -> None:
        """Start `outlast serve` on the head; return once runs can be started. Raises NotServed."""
        self._forget_connections()
        mark = self.head.disk / "data" / "instance.json"
        mark.unlink(missing_ok=True)
        with (self.head.disk / "serve.out").open("ab") as output:
            self._serve = self.head.start([sys.executable, "-m", "serve_app.cli", "serve"], self.env(self.head), output)
        self.wait(lambda: mark.exists() or self._serve_ended(), "instance.json", within_s)
        self.wait(lambda: self.ready or self._serve_ended(), "every check of /readyz", within_s)
        if self._serve_ended():
            raise NotServed(f"`outlast serve` ended:\n{self.said}")

    def start(self) -> None:
        """Start Ray on every host, and serve on the head."""
        self.nodes.start()
        self.serve()

    def mend(self, within_s: float = 60.0) -> None:
        """Bring back whatever a test took: cables, hosts, Ray's nodes; return once all answers."""
        for host in self.lan.hosts:
            if not host.up:
                host.boot()
            host.thaw()
            self.lan.heal(host.number)
        if not self.nodes.raylets(self.head):
            self.restart_head()
        for host in self.lan.hosts[1:]:
            self.nodes.rejoin(host)
        self.wait(lambda: self.ready, "every check of /readyz", within_s)

    def restart_head(self) -> None:
        """End whatever is left of the head's Ray, start a new one and serve again; the others join the new one."""
        for host in self.lan.hosts:
            self.nodes.kill_node(host)
        self.nodes.start_node(self.head)
        for left in reversed(range(SERVE_TRIES)):  # as a service manager does; chaos may break it as it starts
            try:
                self.serve()
                return
            except NotServed:
                if not left:
                    raise

    def _serve_ended(self) -> bool:
        return self._serve is not None and self._serve.poll() is not None

    def close(self) -> None:
        """Let go of the connections; the hosts themselves are the `Lan`'s."""
        self._forget_connections()

    @property
    def said(self) -> str:
        """Return the end of what every `serve` of this instance printed."""
        return (self.head.disk / "serve.out").read_text(errors="replace")[-4000:]

    # --- HTTP ---

    def enter_network(self) -> None:
        """Let the calling OS thread be a client on the head's host."""
        self.head.enter_network()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request from the head's host; return the response. Raises httpx.TransportError."""
        if self._asking is None:
            self._asking = ThreadPoolExecutor(4, "asking", self.head.enter_network)
        return self._asking.submit(self._ask, method, path, options).result()

    def _ask(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        with httpx.Client(base_url=self.url, timeout=ASK_S, trust_env=False) as client:
            return client.request(method, path, **options)

    def _forget_connections(self) -> None:
        if self._asking is not None:
            self._asking.shutdown(wait=True, cancel_futures=True)
            self._asking = None

    @property
    def ready(self) -> bool:
        """Return whether /readyz says so."""
        try:
            response = self.ask("GET", "/readyz")
            return response.status_code == httpx.codes.OK and bool(response.json()["ready"])
        except (httpx.TransportError, ValueError):
            return False

    def record(self, run_id: str, within_s: float = 30.0) -> dict[str, Any]:
        """Return a run's record; asked again while nobody answers."""

        def asked() -> dict[str, Any] | None:
            try:
                response = self.ask("GET", f"/api/runs/{run_id}")
            except httpx.TransportError:
                return None
            if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                return None
            found: dict[str, Any] = response.raise_for_status().json()
            return found

        return self.wait(asked, f"the record of {run_id}", within_s) or {}

    def claims(self, run_id: str) -> list[tuple[int, str]]:
        """Return (epoch, reason) of each claim."""
        return [(claim["epoch"], claim["reason"]) for claim in self.record(run_id)["claims"]]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        rows = [line.rpartition(" ") for line in self.ask("GET", "/metrics").text.split("\n")]
        found = [float(value) for key, _, value in rows if key.partition("{")[0] == name]
        if not found:
            raise NotServed(f"/metrics has no {name}")
        return sum(found)

    def shard_epochs(self) -> dict[str, str]:
        """Return what /readyz says of each shard: its epoch, as long as it answers."""
        checks = self.ask("GET", "/readyz").json()["checks"]
        return {
            check["name"]: check["detail"].partition(",")[0] for check in checks if check["name"].startswith("log:")
        }

    # --- where things are ---

    def driver(self, run_id: str) -> tuple[Host, ProcessIdentity]:
        """Return the host and the process of the run's newest driver, as soon as it lives."""

        def found() -> tuple[Host, ProcessIdentity] | None:
            claims = self.record(run_id)["claims"]
            who = self.process_of(claims[-1]) if claims else None
            host = self.host_of(who) if who is not None else None
            return (host, who) if host is not None and who is not None else None

        where: tuple[Host, ProcessIdentity] = self.wait(found, f"the driver of {run_id}")
        return where

    def process_of(self, claim: Mapping[str, Any]) -> ProcessIdentity | None:
        """Return the living process that a claim names."""
        host = next((host for host in self.lan.hosts if host.up and host.boot_id == claim["bootId"]), None)
        return host.outer(claim["pid"]) if host is not None else None

    def processes(self, title: str = "") -> list[ProcessIdentity]:
        """Return the living processes of Ray and the instance, on all hosts, whose command line contains `title`."""
        return [who for host in self.lan.hosts for who in self.nodes.processes(host, title)]

    def host_of(self, who: ProcessIdentity) -> Host | None:
        """Return the host that a process runs on."""
        return next((host for host in self.lan.hosts if host.has(who)), None)

    def sandbox_host(self, record: Mapping[str, Any]) -> Host | None:
        """Return the host that a run's sandbox key names."""
        key = record["sandboxKey"]
        return next((host for host in self.lan.hosts if key and f"/{host.machine_id}/" in key), None)

    def launches(self, file: str) -> list[str]:
        """Return the lines of this file of every workspace on every host: `<workspace> <line>`."""
        return [line for host in self.lan.hosts for line in read_workspaces(host.disk / "data", file)]

    def run_beside(self, program: list[str], input: str) -> str:
        """Run a program of this Python on the head's host, with the instance's settings; return what it printed."""
        return self.head.run([sys.executable, *program], self.env(self.head), input=input)

    # --- waiting ---

    def wait(self, condition: Any, what: str, within_s: float = 20.0) -> Any:
        """Return the first truthy value of `condition`. Raises NotServed."""
        deadline = time.monotonic() + within_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise NotServed(f"after {within_s} s still not: {what}")
            time.sleep(LOOK_S)
        return value
