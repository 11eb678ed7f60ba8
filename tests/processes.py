"""Signals to processes that a test names by identity (pid and start time), and what /proc says of them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable
from pathlib import Path

from waiting import wait_until

from runtime import process
from runtime.process import ProcessIdentity

GONE_S = 15.0


def command_line(pid: int) -> str:
    """Return how a process calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def every_process() -> list[int]:
    """Return the id of every process of this machine."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def carries_sandbox(pid: int, key: bytes) -> bool:
    """Return whether the environment of a process names a sandbox whose key contains `key`; a NUL ends each."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(entry.startswith(b"AGENT_SANDBOX=") and key in entry + b"\0" for entry in environ.split(b"\0"))


def kill(who: ProcessIdentity) -> None:
    """SIGKILL that very process and see it gone."""
    assert process.send(who, signal.SIGKILL), f"{who} was dead before"
    wait_until(lambda: not process.alive(who), f"the end of {who}")


def pause(who: ProcessIdentity) -> None:
    """SIGSTOP that very process and see it stopped."""
    assert process.send(who, signal.SIGSTOP), f"{who} was dead before"
    wait_until(lambda: state(who) in ("T", "gone"), f"the stop of {who}")


def resume(who: ProcessIdentity) -> bool:
    """SIGCONT that very process; False if it has been killed meanwhile."""
    return process.send(who, signal.SIGCONT)


def state(who: ProcessIdentity) -> str:
    """Return the state letter of a process as /proc says it, or `gone`."""
    if not process.alive(who):
        return "gone"
    try:
        stat = Path(f"/proc/{who.pid}/stat").read_bytes()
    except OSError:
        return "gone"
    return chr(stat[stat.rindex(b")") + 2])


def wait_dead(processes: Iterable[ProcessIdentity], within_s: float = GONE_S) -> None:
    """Return once every one of these is gone; what stays is named."""
    left = {who: command_line(who.pid) for who in processes}
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not any(process.alive(who) for who in left), "the end of all", within_s)
    survivors = [f"{who.pid} {command[:100]}" for who, command in left.items() if process.alive(who)]
    assert not survivors, survivors
