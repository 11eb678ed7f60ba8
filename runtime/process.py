"""The identity of an OS process: (boot id, pid, start time) (P5).

A pid alone is reused; a pid with its start time in this boot is not. Signals go through a pidfd that is opened first
and checked after, so the process that is signalled is the one that was named, or none.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from runtime.core.record import Struct


class ProcessIdentity(Struct, frozen=True, kw_only=True):
    """One process, for ever. `pid_started_at` is in clock ticks since boot."""

    boot_id: str
    pid: int
    pid_started_at: int


def boot_id() -> str:
    """Return the id of this boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started_at(pid: int) -> int | None:
    """Return the start time of `pid` in clock ticks since boot; None if there is no such process or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a living process; None if there is none."""
    ticks = started_at(pid)
    return None if ticks is None else ProcessIdentity(boot_id=boot_id(), pid=pid, pid_started_at=ticks)


def current() -> ProcessIdentity:
    """Return the identity of this process."""
    found = identify(os.getpid())
    assert found is not None
    return found


def alive(who: ProcessIdentity) -> bool:
    """Return whether that very process lives. Another boot: dead."""
    return who.boot_id == boot_id() and started_at(who.pid) == who.pid_started_at


def open_pidfd(pid: int) -> int | None:
    """Return a handle of whatever process has this id now, the caller's to close; None if none has.

    An id may have passed to an OS thread that is not the first of its process, most of all after a boot, where ids
    begin anew: then Linux says EINVAL, and newer ones ENOENT."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            raise
        return None


def send(who: ProcessIdentity, signum: signal.Signals) -> bool:
    """Signal that very process; return False if it is dead."""
    if who.boot_id != boot_id():
        return False
    fd = open_pidfd(who.pid)
    if fd is None:
        return False
    try:
        if started_at(who.pid) != who.pid_started_at:
            return False
        signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True
