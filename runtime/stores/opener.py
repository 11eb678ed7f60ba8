"""Who has the store's file open: `<path>.opener`, a ProcessIdentity as JSON (P12).

A successor ends the process that is named there before it takes the shard's epoch: a predecessor that was frozen in
the middle of a transaction holds the file's write lock, and would keep it as long as it is frozen. The epoch in each
transaction is what protects the data (P11); this file only makes sure that nobody stands in the way.

The file needs no fsync: after a power loss nobody that it names is alive.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import msgspec

from runtime import process
from runtime.errors import StoreRefused, StoreUnavailable
from runtime.process import ProcessIdentity

KILL_WAIT_MS = 5000  # a killed process ends within some ms, unless it is stuck in the kernel


def opener_path(path: Path) -> Path:
    """Return the place of the opener file of the store at `path`."""
    return path.with_name(path.name + ".opener")


def read_opener(path: Path) -> ProcessIdentity | None:
    """Return who opened the store last; None if nobody did, or the file is not whole."""
    try:
        return msgspec.json.decode(opener_path(path).read_bytes(), type=ProcessIdentity)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def write_opener(path: Path) -> None:
    """Name this process as the opener, atomically. Raises OSError."""
    place = opener_path(path)
    private = place.with_name(f"{place.name}.{os.getpid()}")
    private.write_bytes(msgspec.json.encode(process.current()))
    private.replace(place)


def end_predecessor(path: Path) -> None:
    """Return when the process that opened the store last is dead, killing it if need be; at once if that is this one.

    Raises StoreUnavailable if it does not end in KILL_WAIT_MS, StoreRefused if it may not be killed."""
    who = read_opener(path)
    if who is None or who == process.current() or not process.alive(who):
        return
    fd = process.open_pidfd(who.pid)
    if fd is None:
        return
    try:
        # The pid may have passed to another process before the handle was opened; `send` checks in the same way.
        if not process.send(who, signal.SIGKILL):
            return
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(KILL_WAIT_MS) and process.alive(who):
            raise StoreUnavailable(f"{path} is open in process {who.pid}, which was killed and has not ended yet.")
    except PermissionError:
        raise StoreRefused(
            f"{path} is open in process {who.pid} of another user. End it, or choose another OUTLAST_DATA_DIR."
        ) from None
    finally:
        os.close(fd)


def forget_opener(path: Path) -> None:
    """Remove the file if it names this process: nobody needs to end it any more."""
    if read_opener(path) == process.current():
        opener_path(path).unlink(missing_ok=True)
