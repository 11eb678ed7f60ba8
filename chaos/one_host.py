"""Outlast on one host, this machine: an `outlast serve` with its own Ray, and no namespaces. Needs no root.

Everything of the instance is found by its data directory, which all that it starts has in its environment; an agent
has not. Only what is found so is ever signalled.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
from afterwards import read_workspaces

from runtime import process
from runtime.process import ProcessIdentity
from runtime.settings import load
from serve_app.ray_environment import default_temp_dir, folders_of, free_port

START_S = 120.0
STOP_S = 40.0
ASK_S = 10.0
LOOK_S = 0.1
T = TypeVar("T")


class NotServed(Exception):
    """`outlast serve` did not start, or does not answer in time."""


def wait(condition: Callable[[], T], what: str, within_s: float) -> T:
    """Return the first truthy value of `condition`. Raises NotServed."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise NotServed(f"after {within_s} s still not: {what}")
        time.sleep(LOOK_S)
    return value


class OneHost:
    """One instance on this machine."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.folder = folder
        self.data_dir = folder / "data"
        self._settings = dict(settings)
        self._serve: subprocess.Popen[bytes] | None = None

    # --- life ---

    def env(self) -> dict[str, str]:
        """Return the environment that names this instance."""
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {
            **inherited,
            **self._settings,
            "OUTLAST_DATA_DIR": str(self.data_dir),
            "OUTLAST_PORT": str(self._port),
        }

    def start(self) -> None:
        """Start `outlast serve`; return once runs can be started. Raises NotServed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "instance.json").unlink(missing_ok=True)
        with (self.folder / "serve.out").open("ab") as output:
            self._serve = subprocess.Popen(
                [Path(sys.executable).with_name("outlast"), "serve"],
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait(lambda: self._ended() or (self.data_dir / "instance.json").exists(), "instance.json", START_S)
        wait(lambda: self._ended() or self.ready, "every check of /readyz", START_S)
        if self._ended():
            raise NotServed(f"`outlast serve` ended:\n{self.said}")

    def _ended(self) -> bool:
        return self._serve is not None and self._serve.poll() is not None

    def mend(self) -> None:
        """Serve again if nobody does; return once all answers."""
        if self._ended():
            self.kill_everything()
            self.start()
        wait(lambda: self.ready, "every check of /readyz", START_S)

    def kill_everything(self) -> None:
        """SIGKILL every process of the instance; agents go on."""
        while left := self.processes():
            for who in left:
                process.send(who, signal.SIGKILL)
            time.sleep(LOOK_S)
        if self._serve is not None:
            self._serve.wait()

    def close(self) -> None:
        """Stop, and remove the folder."""
        if self._serve is not None and self._serve.poll() is None:
            self._serve.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._serve.wait(STOP_S)
        self.kill_everything()
        for folder in (*folders_of(default_temp_dir(load(self.env()))), self.folder):
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def said(self) -> str:
        """Return the end of what every `serve` of this instance printed."""
        return (self.folder / "serve.out").read_text(errors="replace")[-4000:]

    # --- what is there ---

    def enter_network(self) -> None:
        """It listens on this machine's loopback, which everybody reaches."""

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request. Raises httpx.TransportError."""
        with httpx.Client(base_url=self.url, timeout=ASK_S, trust_env=False) as client:
            return client.request(method, path, **options)

    @property
    def ready(self) -> bool:
        """Return whether /readyz says so."""
        try:
            response = self.ask("GET", "/readyz")
            return response.status_code == httpx.codes.OK and bool(response.json()["ready"])
        except (httpx.TransportError, ValueError):
            return False

    def processes(self, title: str = "") -> list[ProcessIdentity]:
        """Return the living processes of the instance whose command line contains `title`."""
        mark = f"OUTLAST_DATA_DIR={self.data_dir}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                if mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if title in command and (who := process.identify(int(entry.name))) is not None:
                found.append(who)
        return found

    def process_of(self, claim: Mapping[str, Any]) -> ProcessIdentity | None:
        """Return the living process that a claim names."""
        who = ProcessIdentity(boot_id=claim["bootId"], pid=claim["pid"], pid_started_at=claim["pidStartedAt"])
        return who if process.alive(who) else None

    def launches(self, file: str) -> list[str]:
        """Return the lines of this file of every workspace: `<workspace> <line>`."""
        return read_workspaces(self.data_dir, file)

    def run_beside(self, program: list[str], input: str) -> str:
        """Run a program of this Python that can open the instance's store; return what it printed."""
        done = subprocess.run(
            [sys.executable, *program], env=self.env(), input=input, capture_output=True, text=True, check=True
        )
        return done.stdout
