"""What lies beside a journal, read from outside its recorder: was it launched, does it run, how did it end (P15, P16).

The recorder holds the lock of the launch file while it lives. Whoever finds it free takes it, keeps it, and only then
reads the exit: recorded, or for ever lost. `lost` is written down by whoever holds the lock, so that all who come
after read the same end. The files are opened through their directory, which a destroy may rename meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from runtime.core.launch import (
    EXIT_RECORD_BYTES,
    AgentExit,
    ExitKind,
    LaunchRecord,
    decode_exit,
    decode_launch,
    encode_exit,
)
from runtime.sandboxes.recorder import KILL_S, end_all
from runtime.sandboxes.strays import marked

JOURNAL = "journal"


class Recording:
    """One journal of a sandbox that was launched. Nothing here blocks longer than a small file takes, but `settle`."""

    def __init__(self, directory: int, lock: int, sandbox: str) -> None:
        self._directory = directory
        self._lock = lock
        self._sandbox = sandbox
        self._ours = False
        weakref.finalize(self, os.close, directory)
        weakref.finalize(self, os.close, lock)  # and lets go of it

    @classmethod
    def open(cls, home: Path, sandbox: str) -> Recording | None:
        """Return the recording in the sandbox's directory, or None if nothing was launched there. Raises
        FileNotFoundError if there is no such directory."""
        directory = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            lock = os.open(f"{JOURNAL}.launch", os.O_RDWR | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            os.close(directory)
            return None
        return cls(directory, lock, sandbox)

    def open_journal(self) -> int:
        """Return a descriptor of the journal, the caller's to close. Raises FileNotFoundError: not made yet."""
        return os.open(JOURNAL, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)

    def open_exit(self) -> int:
        """Return a descriptor of the exit file, the caller's to close. Raises FileNotFoundError: not made yet."""
        return os.open(f"{JOURNAL}.exit", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)

    def made(self) -> bool:
        """Return whether journal and exit file are there."""
        try:
            for name in (JOURNAL, f"{JOURNAL}.exit"):
                os.stat(name, dir_fd=self._directory)
        except FileNotFoundError:
            return False
        return True

    def recorder(self) -> LaunchRecord | None:
        """Return who records, dead or alive."""
        return decode_launch(os.pread(self._lock, 4096, 0))

    def exit(self) -> AgentExit | None:
        """Return the exit as recorded; None while there is none."""
        try:
            fd = self.open_exit()
        except FileNotFoundError:
            return None
        try:
            return decode_exit(os.pread(fd, 2 * EXIT_RECORD_BYTES, 0))
        finally:
            os.close(fd)

    def take(self) -> bool:
        """Take the recorder's lock if it is free, and keep it; return whether it is ours. Another may have it."""
        if not self._ours:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._ours = True
        return True

    def settle(self) -> AgentExit:
        """Return how the agent ended, now that the lock is ours. Without a record: what is left of the agent is
        killed, and it is lost (P15, P16). Blocks while there is something to kill."""
        assert self._ours, "take() first"
        recorded = self.exit()
        if recorded is not None:
            return recorded
        end_all(lambda: marked(self._sandbox), KILL_S)
        size = 0
        with suppress(FileNotFoundError):
            size = os.stat(JOURNAL, dir_fd=self._directory).st_size
        lost = AgentExit(kind=ExitKind.LOST, journal_length=size)
        with suppress(OSError):  # we keep the lock, so nobody can come to another answer
            fd = os.open(f"{JOURNAL}.exit", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self._directory)
            try:
                os.pwrite(fd, encode_exit(lost), 0)
                os.fsync(fd)
            finally:
                os.close(fd)
        return lost
