"""Runs beyond one node's room make Ray's autoscaler add a node, and nobody is refused meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import leftovers
import pytest
from instance import Instance
from shell_runs import numbered, unique
from waiting import wait_until

from serve_app.ray_environment import free_port

SLOT = 64 << 20
HEAD_SLOTS = 3
RUNS = 6
MARK = "OUTLAST_TEST_CLUSTER"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a head that adds nodes by itself."""
    mark, port = str(tmp_path), free_port()
    temp_dir = f"/tmp/outlast-scaled-{os.getpid()}"
    gcs = f"127.0.0.1:{port}"
    config = tmp_path / "autoscaler.yaml"
    config.write_text(json.dumps(_config(gcs)))
    options = {
        "port": port,
        "node-ip-address": "127.0.0.1",
        "num-cpus": 2,
        "memory": HEAD_SLOTS * SLOT,
        "object-store-memory": 100 << 20,
        "include-dashboard": "false",
        "ray-client-server-port": free_port(),
        "dashboard-agent-listen-port": free_port(),
        "autoscaling-config": config,
        "temp-dir": temp_dir,
    }
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--disable-usage-stats"]
    command += [f"--{name}={value}" for name, value in options.items()]
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    env |= {MARK: mark, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(Path(__file__).parents[1])}
    env |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "0"}
    try:
        subprocess.run(command, env=env, cwd="/", check=True, timeout=60, capture_output=True)
        yield gcs
    finally:
        leftovers.end(MARK, mark)
        shutil.rmtree(temp_dir, ignore_errors=True)


def _config(gcs: str) -> dict[str, object]:
    worker = {"resources": {"CPU": 2, "memory": 8 * SLOT}, "node_config": {}, "min_workers": 0, "max_workers": 2}
    head = {"resources": {"CPU": 2, "memory": HEAD_SLOTS * SLOT}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": "scaled",
        "max_workers": 2,
        "upscaling_speed": 20.0,
        "idle_timeout_minutes": 10,
        "provider": {
            "type": "external",
            "module": "autoscaled_nodes.HereProvider",
            "gcs_address": gcs,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "auth": {},
        "docker": {},
        "head_node_type": "ray.head.default",
        "available_node_types": {"ray.head.default": head, "worker": worker},
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
    }


@pytest.mark.long
@pytest.mark.timeout(300)
def test_runs_beyond_one_nodes_room_make_the_autoscaler_add_a_node(tmp_path: Path, address: str) -> None:
    guest = Instance(tmp_path, {"OUTLAST_RAY_ADDRESS": address, "OUTLAST_MAX_RUNS": "20"})
    try:
        guest.start()
        runs = [unique(f"scaled-{number}") for number in range(RUNS)]
        for run in runs:
            guest.begin(run, numbered(200, 20.0))
        for run in runs:
            wait_until(lambda run=run: guest.record(run)["claims"], f"a driver of {run}", 90.0)  # type: ignore[misc]
        nodes = {guest.record(run)["claims"][0]["nodeId"] for run in runs}
        assert len(nodes) > 1
        for run in runs:
            assert guest.ended(run, within_s=60)["status"] == "completed"
        assert guest.stop() == 0
    finally:
        guest.close()
