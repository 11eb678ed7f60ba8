"""Which processes carry a variable in their environment: how a test finds what it started, children of children too.

Everything that an instance starts inherits its environment, so a value that only this test used names exactly its own
processes, whoever their parent is by now. Nothing else on the machine is ever touched.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from waiting import wait_until


def carrying(name: str, value: str) -> list[int]:
    """Return the ids of the living processes whose environment at their start had `name=value`, this one excepted."""
    wanted = f"{name}={value}".encode()
    others = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal())
    return [pid for pid in others if pid != os.getpid() and wanted in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return []


def end(name: str, value: str) -> None:
    """Kill every process that carries `name=value`, until there is none: for teardowns, after a test failed."""

    def gone() -> bool:
        for pid in (left := carrying(name, value)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    wait_until(gone, f"the end of every process with {name}={value}")
