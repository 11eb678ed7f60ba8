"""`DATA_DIR/instance.json`: where the running instance of a data directory is found."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from runtime.core.record import Struct
from runtime.process import ProcessIdentity, alive

NAME = "instance.json"
OPERATOR_FILE = "operator-token"  # by which `outlast` on this machine is the operator


class InstanceInfo(Struct, frozen=True, kw_only=True):
    """A running instance. `pidStartedAt` and `bootId` name its `serve` process for ever (P5)."""

    url: str
    ray_address: str
    ray_temp_dir: str
    namespace: str
    pid: int
    started_at: int
    version: str
    boot_id: str = ""
    pid_started_at: int = 0

    @property
    def process(self) -> ProcessIdentity:
        """Return the identity of the `serve` process."""
        return ProcessIdentity(boot_id=self.boot_id, pid=self.pid, pid_started_at=self.pid_started_at)

    @property
    def alive(self) -> bool:
        """Return whether that process lives on this machine."""
        return alive(self.process)


def read(data_dir: Path) -> InstanceInfo | None:
    """Return what the data directory says; None if it says nothing readable."""
    try:
        return msgspec.json.decode((data_dir / NAME).read_bytes(), type=InstanceInfo)
    except (OSError, msgspec.MsgspecError):
        return None


def write(data_dir: Path, info: InstanceInfo) -> None:
    """Replace the file in one step."""
    temporary = data_dir / f".{NAME}.{os.getpid()}"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")
    temporary.replace(data_dir / NAME)


def remove(data_dir: Path, info: InstanceInfo) -> None:
    """Remove the file if it is still ours."""
    if read(data_dir) == info:
        (data_dir / NAME).unlink(missing_ok=True)
