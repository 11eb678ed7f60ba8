"""Ends every process of a sandbox, whoever is left to help (P5, P16).

Three nets, each for what the one before lets through:

    the recorder       told by SIGTERM, ends its descendants and records the exit
    its process tree   if it does not answer: it is stopped, so that nobody leaves the tree, and the tree is killed
    the marker         `AGENT_SANDBOX=<key>` in the environment of whatever lost its recorder

What throws away its environment and outlives a recorder that was killed gets through all three. On `local` an agent is
trusted as much as its user (P16), so this is about accidents, and no accident does both.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from runtime.core.launch import LaunchRecord
from runtime.process import boot_id, open_pidfd
from runtime.sandboxes.recorder import KILL_S, MARKER, Process, descendants, end_all, read_stat, send


def marked(sandbox: str) -> set[Process]:
    """Return the running processes that carry the sandbox's marker, as far as this user may see."""
    marker = f"\0{MARKER}={sandbox}\0".encode()
    found = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or not (stat := read_stat(int(entry.name))) or not stat[2]:
            continue
        try:
            environ = b"\0" + Path(entry.path, "environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if marker in environ:
            found.add((int(entry.name), stat[1]))
    return found


def end_sandbox(sandbox: str, launch: LaunchRecord | None, patience_s: float) -> set[Process]:
    """End the recorder that `launch` names and all processes of the sandbox; return what could not be ended.

    The recorder gets `patience_s` to do it and to record the exit. Blocks."""
    recorder = (launch.pid, launch.pid_started_at) if launch and launch.boot_id == boot_id() else None
    if recorder and not ask_to_end(recorder, patience_s):
        send(recorder, signal.SIGSTOP)
        end_all(lambda: (tree(recorder) | marked(sandbox)) - {recorder}, KILL_S)
        send(recorder, signal.SIGKILL)
    return end_all(lambda: marked(sandbox), KILL_S)


def tree(root: Process) -> set[Process]:
    """Return the descendants of that very process; none if it has ended."""
    found = descendants(root[0])
    stat = read_stat(root[0])  # the same after the scan, so it was the same during it
    return found if stat and stat[1] == root[1] else set()


def ask_to_end(process: Process, patience_s: float) -> bool:
    """Send SIGTERM to that very process; return whether it has ended within `patience_s`."""
    fd = open_pidfd(process[0])
    if fd is None:
        return True
    try:
        stat = read_stat(process[0])
        if not stat or not stat[2] or stat[1] != process[1]:
            return True
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        return bool(ended.poll(patience_s * 1000))
    except ProcessLookupError:
        return True
    finally:
        os.close(fd)
