"""The recorder of an agent that is another user than we are (P16, I8). Runs inside a container, as its root.

Root there has three capabilities: SETUID and SETGID, to start the agent as its user, and KILL. It can neither read the
agent's files nor give any away, and the agent can neither signal, trace nor read a process of root's.

What is left of the agent is whatever runs as its user: SIGKILL goes to all of that by one kill(-1), which no fork
outruns. Who sends it takes the agent's user for a moment as its *effective* user only. Its real one is nobody's
(`OUTSIDER`), since kill(-1) would reach the real one's processes too, and its saved one is root, so that in this moment
no process of the agent can signal or trace it.
"""

# ruff: noqa: PTH123, PTH208
from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from runtime.sandboxes.recorder import GRACE_S, KILL_S, Process, Recorder, end_all, read_stat

AGENT_UID = AGENT_GID = 10001  # in no image's /etc/passwd by accident, and no user of the host
OUTSIDER = 65533
PIPE_MODES = (0o644, 0o622, 0o622)  # a program may open /dev/stdin, /dev/stdout and /dev/stderr once more
LOOK_S = 0.01
OOM_SCORE = "500"  # counts as half of the container's memory: without it we are the largest of many small processes

TYPE_CHECKING = False  # as in `recorder.py`
if TYPE_CHECKING:
    from collections.abc import Callable


def agents() -> set[Process]:
    """Return the running processes of the agent's user."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and user_of(int(name)) == AGENT_UID and (stat := read_stat(int(name))) and stat[2]:
            found.add((int(name), stat[1]))
    return found


def user_of(pid: int) -> int:
    """Return the real user of a process, -1 if it is gone. Who owns /proc/<pid> is something that it can change."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        return int(file.read().partition(b"\nUid:")[2].split(None, 1)[0])
    return -1


def become_agent() -> None:
    """Become the agent's user for good."""
    os.setgroups([])
    os.setresgid(AGENT_GID, AGENT_GID, AGENT_GID)
    os.setresuid(AGENT_UID, AGENT_UID, AGENT_UID)


def kill_agents() -> None:
    """SIGKILL every process of the agent's user at once."""
    os.setresuid(OUTSIDER, AGENT_UID, 0)
    try:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    finally:
        os.setresuid(0, 0, 0)


def end_agents(find: Callable[[], set[Process]] = agents, within_s: float = KILL_S) -> set[Process]:
    """Kill all of the agent's user until `find` names nothing; return what is left after `within_s`."""

    def left() -> set[Process]:
        kill_agents()
        return find()

    return end_all(left, within_s)


class IsolatedRecorder(Recorder):
    """Records an agent that runs as its own user."""

    def enter(self, fds: tuple[int, int, int]) -> None:
        """Become the agent's user, and the first whom the OOM killer takes; lowering ours is not for us to do."""
        for fd, mode in zip(fds, PIPE_MODES, strict=True):
            os.fchmod(fd, mode)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(OOM_SCORE)
        become_agent()

    def left(self) -> set[Process]:
        """Kill all of the agent's user; return what that left of our descendants."""
        kill_agents()
        return super().left()

    def record(self) -> bytes:
        """Record the agent; return when nothing of its user is left, whosever child it is.

        A command in the workspace (`Sandbox.exec`) runs as that user too, and gets the grace to end by itself."""
        record = super().record()
        grace = time.monotonic() + (0.0 if self.stop or self.over else GRACE_S)
        while agents() and time.monotonic() < grace:
            time.sleep(LOOK_S)
        end_agents()
        return record
