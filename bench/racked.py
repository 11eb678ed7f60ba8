"""Ray nodes that each have a network of their own and share everything else of this machine. Used by `lost_nodes.py`.

A switch and a node are each a network namespace that a process holds: what they are gone with. Each node reaches every
`local` sandbox, since the files and processes are the machine's; so a run can go on when its driver's node is lost.
`serve` is on node 0, and so is whoever asks it: an OS thread that has entered that network.

Needs root. No traffic leaves the switch.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import beside  # noqa: F401 - for the next
from lan import missing
from served import Served
from sse_client import BenchError

from actors.slots import RUN_MEMORY
from runtime import process
from runtime.process import ProcessIdentity

__all__ = ["Node", "Rack", "RackedServed", "missing"]

MARK = "OUTLAST_BENCH_NODE"  # in the environment of all of a node, and of no agent
RAY = (sys.executable, "-m", "ray.scripts.scripts")
RAY_PORT = 6379
SLOTS = 12
OBJECT_STORE_BYTES = 100 << 20
START_S = 90
WARM_S = 60.0
CLONE_NEWNET = 0x40000000
# Workers stay; the rest is Ray's own: it takes a silent node for dead after more than a minute.
SYSTEM_CONFIG = {"num_workers_soft_limit": 300, "idle_worker_killing_time_threshold_ms": 600_000_000}


class Network:
    """A network namespace, for as long as its holder lives."""

    def __init__(self) -> None:
        command = ["unshare", "-n", "sh", "-c", "echo && exec cat"]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            raise BenchError("a network namespace could not be made")
        self.pid = self._holder.pid
        self.inside = ("nsenter", f"--net=/proc/{self.pid}/ns/net", "--")

    def do(self, *command: str) -> None:
        """Run a short command in it."""
        subprocess.run([*self.inside, *command], check=True, capture_output=True)

    def close(self) -> None:
        """Let it go."""
        self._holder.kill()
        self._holder.communicate()


class Node:
    """One Ray node."""

    def __init__(self, number: int, mark: str, switch: Network) -> None:
        self.address = f"10.78.0.{number + 1}"
        self.network = Network()
        self._number = number
        self._mark = f"{mark}-{number}"
        self._switch = switch
        port, device = f"p{number}", f"v{number}"
        switch.do("ip", "link", "add", port, "type", "veth", "peer", "name", device, "netns", str(self.network.pid))
        switch.do("ip", "link", "set", port, "master", "br0", "up")
        self.network.do("ip", "link", "set", "lo", "up")
        self.network.do("ip", "addr", "add", f"{self.address}/24", "dev", device)
        self.network.do("ip", "link", "set", device, "up")

    def start(self, head: str, temp_dir: str, env: Mapping[str, str]) -> None:
        """Start Ray on it: the head on node 0, elsewhere a node that joins the one at `head`."""
        where = [f"--address={head}"]
        if self._number == 0:
            config = f"--system-config={json.dumps(SYSTEM_CONFIG)}"
            where = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false", f"--temp-dir={temp_dir}", config]
        options = [f"--node-ip-address={self.address}", "--num-cpus=4", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        room = SLOTS * RUN_MEMORY if self._number else RUN_MEMORY // 2  # the head, which stays, has none for a driver
        options += [f"--memory={room}", "--disable-usage-stats"]
        done = subprocess.run(
            [*self.network.inside, *RAY, "start", *where, *options],
            env={**env, MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_S,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"node {self._number} did not start:\n{done.stdout.decode(errors='replace')[-2000:]}")

    def processes(self, title: bytes = b"") -> Iterator[ProcessIdentity]:
        """Yield its living processes whose command line contains `title`."""
        mine = f"{MARK}={self._mark}".encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if title in (entry / "cmdline").read_bytes() and mine in (entry / "environ").read_bytes().split(b"\0"):
                    who = process.identify(int(entry.name))
                    if who is not None:
                        yield who

    def has(self, pid: int) -> bool:
        """Return whether a process is on its network."""
        with suppress(OSError):
            return Path(f"/proc/{pid}/ns/net").readlink() == Path(f"/proc/{self.network.pid}/ns/net").readlink()
        return False

    def kill(self) -> None:
        """SIGKILL every process of Ray on it."""
        while left := list(self.processes()):
            for who in left:
                process.send(who, signal.SIGKILL)

    def wait_warm(self) -> None:
        """Return when it has an idle worker."""
        deadline = time.monotonic() + WARM_S
        while not any(self.processes(b"ray::IDLE")):
            if time.monotonic() > deadline:
                raise BenchError(f"node {self._number} has no idle worker after {WARM_S:.0f} s")
            time.sleep(0.1)

    def cut(self) -> None:
        """Take its cable out."""
        self._switch.do("ip", "link", "set", f"p{self._number}", "down")

    def heal(self) -> None:
        """Put it back."""
        self._switch.do("ip", "link", "set", f"p{self._number}", "up")


class Rack:
    """The nodes and their switch; `close` ends all of it."""

    def __init__(self, nodes: int, env: Mapping[str, str]) -> None:
        self._temp_dir = tempfile.mkdtemp(prefix="outlast-bench-")  # short: Ray's socket paths are bounded
        self._env = dict(env)
        self._switch = Network()
        self._switch.do("ip", "link", "add", "br0", "type", "bridge")
        self._switch.do("ip", "link", "set", "br0", "up")
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.nodes = [Node(number, mark, self._switch) for number in range(nodes)]
        self.address = f"{self.nodes[0].address}:{RAY_PORT}"

    def start(self, node: Node) -> None:
        """Start a node, the first time or again."""
        node.start(self.address, self._temp_dir, self._env)

    def close(self) -> None:
        """End every process and every network."""
        for node in self.nodes:
            node.heal()
            node.kill()
            node.network.close()
        self._switch.close()
        shutil.rmtree(self._temp_dir, ignore_errors=True)

    def enter(self) -> None:
        """Let the calling OS thread make its connections from node 0 from now on."""
        with Path(f"/proc/{self.nodes[0].network.pid}/ns/net").open("rb") as network:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(network.fileno(), CLONE_NEWNET) != 0:
                raise BenchError(f"node 0 cannot be entered: {os.strerror(ctypes.get_errno())}")


class RackedServed(Served):
    """An instance over a rack of nodes, its `serve` on node 0. Ask it from a thread that has entered the rack."""

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder, {})
        self._env |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        self.rack = Rack(nodes, self._env)
        self._env |= {"OUTLAST_RAY_ADDRESS": self.rack.address}

    def _command(self) -> list[str]:
        return [*self.rack.nodes[0].network.inside, *super()._command()]


@contextmanager
def rack_served(build: Path, nodes: int) -> Iterator[RackedServed]:
    """Start Ray on `nodes` nodes and serve over them; afterwards nothing of it is left."""
    folder = build / f"rack-{time.monotonic_ns():x}"
    folder.mkdir(parents=True)
    served = RackedServed(folder, nodes)
    try:
        for node in served.rack.nodes:
            served.rack.start(node)
        yield served
    finally:
        served.rack.close()
        for left in (*served.ray_folders, folder):
            shutil.rmtree(left, ignore_errors=True)
