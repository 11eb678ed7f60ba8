"""One instance of the product, as a user starts it: `outlast serve` on its own data directory, ports and Ray.

The agents' program `claude` is first on its PATH, so that the `claude-code` harness launches `replay_agent.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from rows import Figures
from sse_client import BenchError, Stream, fetch, open_stream

from runtime.settings import load
from runtime.testing.stream_json import stream_json
from serve_app.ray_environment import default_temp_dir, folders_of, free_port

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 40
GATE_TIMEOUT_S = 90
CANCEL_S = 5
SEED = 7
TEXT = b'"type":"TEXT_MESSAGE_CONTENT"'


class Served:
    """A running instance."""

    def __init__(self, folder: Path, settings: Mapping[str, object], given: Mapping[str, str] | None = None) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder
        self.data_dir = folder / "data"
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OUTLAST_", "RAY_"))}
        env |= {f"OUTLAST_{name.upper()}": str(value) for name, value in settings.items()}
        env |= {"OUTLAST_DATA_DIR": str(self.data_dir), "OUTLAST_PORT": str(port), "OUTLAST_LOG_LEVEL": "warning"}
        env["PATH"] = f"{_agents(folder)}:{env.get('PATH', '/usr/bin:/bin')}"
        env |= given or {}
        self._env = env
        self._log = folder / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ray_folders(self) -> list[Path]:
        """Return what its Ray leaves behind outside `folder`."""
        return folders_of(default_temp_dir(load(self._env)))

    # --- life ---

    async def start(self) -> None:
        """Start `outlast serve`, the first one or another on the same data; return once it listens. Raises
        BenchError."""
        if self._process is not None:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        self._process = self._spawn()
        for _ in range(START_TIMEOUT_S * 10):
            if self._listens():
                return
            if self._process.poll() is not None:
                break
            await asyncio.sleep(0.1)
        raise BenchError(f"`outlast serve` did not start:\n{self._log.read_text()[-2000:]}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as output:
            return subprocess.Popen(
                self._command(), env=self._env, stdout=output, stderr=output, start_new_session=True
            )

    def _command(self) -> list[str]:
        return [str(Path(sys.executable).with_name("outlast")), "serve"]

    def _listens(self) -> bool:
        assert self._process is not None
        try:
            told = json.loads((self.data_dir / "instance.json").read_text())
        except (FileNotFoundError, ValueError):
            return False
        return bool(told["pid"] == self._process.pid)

    async def stop(self) -> None:
        """End it, and see it gone."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # --- runs ---

    async def post(self, run_id: str, harness: str, message: str, **forwarded: str) -> Stream:
        """Start a run; return its stream."""
        body = {
            "threadId": run_id,
            "messages": [{"role": "user", "content": message}],
            "forwardedProps": {"harness": harness, **forwarded},
        }
        return await open_stream(self.url, "POST", "/api/chat", body, {"X-Run-Id": run_id})

    async def shell(self, command: str) -> Stream:
        """Start a run of the `shell` harness."""
        return await self.post(new_run(), "shell", command)

    async def replay(self, run_id: str, lines: int, **orders: Any) -> Stream:
        """Start a run whose agent replays a session of one long text with at least `lines` pieces."""
        orders["lines"] = str(self.session(lines))
        return await self.post(run_id, "claude-code", json.dumps(orders))

    async def attach(self, run_id: str) -> Stream:
        """Follow a run from the start of its log."""
        return await open_stream(self.url, "GET", f"/api/chat?runId={run_id}&offset=-1")

    async def record(self, run_id: str) -> dict[str, Any]:
        """Return the run's record."""
        found: dict[str, Any] = json.loads(await fetch(self.url, "GET", f"/api/runs/{run_id}"))
        return found

    async def driver_pid(self, run_id: str) -> int:
        """Return the process of the run's newest driver."""
        return int((await self.record(run_id))["claims"][-1]["pid"])

    async def end(self, run_id: str, stream: Stream) -> None:
        """Cancel a run and see its stream end."""
        await fetch(self.url, "POST", "/api/chat/cancel", {"runId": run_id})
        await stream.end()

    async def cancel_all(self) -> None:
        """Cancel what a failed measurement left running: agents outlive their instance."""
        with suppress(BenchError, OSError):
            found = json.loads(await fetch(self.url, "GET", "/api/runs?status=running"))
            for run in found["runs"]:
                await fetch(self.url, "POST", "/api/chat/cancel", {"runId": run["runId"]})
            if found["runs"]:
                await asyncio.sleep(CANCEL_S)

    async def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        text = (await fetch(self.url, "GET", "/metrics")).decode()
        rows = [line.rpartition(" ") for line in text.split("\n") if line.startswith(name)]
        if not rows:
            raise BenchError(f"/metrics has no {name}")
        return sum(float(value) for _, _, value in rows)

    # --- inputs ---

    def session(self, lines: int) -> Path:
        """Return the file of a session of one text with stamps; the same bytes on every machine."""
        path = self.folder.parent / f"text-{lines}.ndjson"
        if not path.exists():
            made = b"".join(line + b"\n" for line in stream_json(lines, seed=SEED, stamp=True, text_only=True))
            path.write_bytes(made)
        return path

    def gate(self) -> Gate:
        """Return a gate that is closed."""
        return Gate(self.folder / f"gate-{uuid.uuid4().hex[:8]}")


class Gate:
    """Holds agents until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._file = path

    async def reached(self, agents: int) -> None:
        """Return when so many agents wait here. Raises BenchError."""
        for _ in range(GATE_TIMEOUT_S * 10):
            if len(list(self._file.parent.glob(f"{self._file.name}.*"))) >= agents:
                return
            await asyncio.sleep(0.1)
        raise BenchError(f"{agents} agents did not reach the gate within {GATE_TIMEOUT_S} s")

    def open(self) -> None:
        """Let them go."""
        self._file.touch()


Measure = Callable[[Served, bool], Awaitable[Figures]]  # the bool: quick


def new_run() -> str:
    """Return a run id that was never used."""
    return f"bench-{uuid.uuid4().hex[:12]}"


def instance(build: Path, **settings: object) -> AbstractAsyncContextManager[Served]:
    """Serve from an empty data directory below `build` until the context ends, then remove it."""
    return instance_with({}, build, settings)


@asynccontextmanager
async def instance_with(given: Mapping[str, str], build: Path, settings: Mapping[str, object]) -> AsyncIterator[Served]:
    """The same, with `given` in its environment."""
    folder = build / f"instance-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    served = Served(folder, settings, given)
    try:
        await served.start()
        try:
            yield served
        finally:
            await served.cancel_all()
    finally:
        await served.stop()
        for left in (*served.ray_folders, folder):
            shutil.rmtree(left, ignore_errors=True)


def _agents(folder: Path) -> Path:
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    claude = bin_folder / "claude"
    claude.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{HERE / "replay_agent.py"}"\n')
    claude.chmod(0o755)
    return bin_folder
