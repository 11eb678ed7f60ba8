"""What a container may do: nothing that is not said here, and what a setting loosens is named beside it.

The agent is a user of its own without capabilities, who can get none (`no-new-privileges`, and the engine's own seccomp
filter). Root in the container is our recorder and attendant alone; its three capabilities are for them. The engine's
socket, folders of the host and the host's environment are never given; pid 1 reaps what agents leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.core.record import Struct
from runtime.sandboxes.attendant import BASELINES, HOME, JOURNAL_FOLDER
from runtime.sandboxes.container_python import FOLDER, keeper, waiter

WORKSPACE = "/workspace"
CAPABILITIES = ["SETUID", "SETGID", "KILL"]
OF_A_RUN = ("outlast.key", "outlast.run")
NOBODYS_NETWORK = "none"
READING_S = 3600
READING_BYTES = 512 << 20
# What an image may say to the loader of root's programs; of Python's own variables it hears nothing (`-I`).
UNSAID = dict.fromkeys(("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES"), "")


class Limits(Struct, frozen=True, kw_only=True):
    """What the OUTLAST_DOCKER_* settings say."""

    network: str = NOBODYS_NETWORK
    memory_bytes: int = 2 << 30
    cpus: float = 2.0
    pids: int = 512


class Volumes(Struct, frozen=True, kw_only=True):
    """The names of a container's volumes."""

    python: str
    journal: str
    workspace: str
    home: str
    baselines: str


def config(labels: Mapping[str, str]) -> dict[str, Any]:
    """Return how a container is made, but for what the host gives it."""
    return {
        "entrypoint": keeper(),
        "command": [],
        "user": "0:0",
        "working_dir": WORKSPACE,
        "environment": UNSAID,
        "labels": dict(labels),
        "healthcheck": {"test": ["NONE"]},
    }


def host(limits: Limits, volumes: Volumes, cpus: int, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return what the host gives a container. `cpus` is how many there are: more than that an engine refuses. The
    container's `labels` go on the volumes that are made with it, but for the run's on what outlives the run."""
    lasting = {name: labels[name] for name in labels if name not in OF_A_RUN}
    return {
        "mounts": [
            _mount(volumes.python, FOLDER, read_only=True),
            _mount(volumes.journal, JOURNAL_FOLDER, labels),
            _mount(volumes.workspace, WORKSPACE, lasting),
            _mount(volumes.home, HOME, lasting),
            _mount(volumes.baselines, BASELINES, lasting),
        ],
        "init": True,
        "cap_drop": ["ALL"],
        "cap_add": CAPABILITIES,
        "security_opt": ["no-new-privileges"],
        "network_mode": limits.network,
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "nano_cpus": int(min(limits.cpus, cpus) * 1e9),
        "pids_limit": limits.pids,
        "log_config": {"Type": "none"},
        "restart_policy": {"Name": "no"},
    }


def filler(python: str) -> dict[str, Any]:
    """Return what the host gives the container through which the volume `python` is filled; it is never started."""
    return {"mounts": [_mount(python, FOLDER)], "network_mode": NOBODYS_NETWORK, "log_config": {"Type": "none"}}


def reading() -> dict[str, Any]:
    """Return how a container is made in which results are read; it ends by itself if nobody ends it."""
    return {**config({}), "entrypoint": waiter(READING_S), "working_dir": "/", "labels": {"outlast.reads": "result"}}


def reader(volumes: Volumes) -> dict[str, Any]:
    """Return what the host gives it: nothing to write to, nobody to talk to, and no agent is in it. What an agent has
    hidden even from its own user is read too."""
    return {
        "mounts": [
            _mount(volumes.python, FOLDER, read_only=True),
            _mount(volumes.workspace, WORKSPACE, read_only=True),
            _mount(volumes.baselines, BASELINES, read_only=True),
        ],
        "init": True,
        "auto_remove": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "cap_add": ["DAC_READ_SEARCH"],
        "security_opt": ["no-new-privileges"],
        "network_mode": NOBODYS_NETWORK,
        "mem_limit": READING_BYTES,
        "memswap_limit": READING_BYTES,
        "nano_cpus": 10**9,
        "pids_limit": 16,
        "log_config": {"Type": "none"},
    }


def _mount(
    volume: str, target: str, labels: Mapping[str, str] | None = None, *, read_only: bool = False
) -> dict[str, Any]:
    return {
        "Type": "volume",
        "Source": volume,
        "Target": target,
        "ReadOnly": read_only,
        "VolumeOptions": {"NoCopy": True, "Labels": {"outlast.volume": target, **(labels or {})}},
    }
