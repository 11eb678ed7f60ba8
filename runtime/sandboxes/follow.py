"""Following a journal in milliseconds, without holding up the loop.

Chunk path 2/6. Before: `recorder.py` writes the journal. After: the driver cuts what is yielded here into lines.

inotify says that there is something to read, the recorder's pidfd that it has ended, and a look each second covers what
neither can say (a network file system, a successor elsewhere). The end is an exit record and every byte up to its
`journal_length`; nothing after that belongs to the run (P16).

Deliberately not: a limit on how long the journal may stay empty or silent (P15); agents think.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from types import TracebackType
from typing import Self

from runtime.core.launch import AgentExit, LaunchRecord
from runtime.errors import JournalUnavailable
from runtime.process import ProcessIdentity, alive, open_pidfd
from runtime.sandboxes.recording import Recording

PIECE_BYTES = 128 << 10  # a page-cache read of some 20 us: short enough to do in the loop
LOOK_S = 1.0
POLL_S = 0.02  # where inotify is used up (128 instances a user by default): slower, and still correct
IN_MODIFY, IN_MOVED_TO = 0x2, 0x80

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Wakes its one waiter when a file was written, a process ended, or LOOK_S have passed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._inotify: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._look_s = LOOK_S if self._inotify >= 0 else POLL_S
        self._pidfd = -1
        if self._inotify >= 0:
            self._loop.add_reader(self._inotify, self._written)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended()
        if self._inotify >= 0:
            self._loop.remove_reader(self._inotify)
            os.close(self._inotify)

    def file(self, fd: int) -> None:
        """Wake at each write to the open file `fd`."""
        if self._inotify >= 0 and _libc.inotify_add_watch(self._inotify, b"/proc/self/fd/%d" % fd, IN_MODIFY) < 0:
            self._look_s = POLL_S

    def folder(self, path: str) -> None:
        """Wake whenever a file was moved into the folder."""
        if self._inotify >= 0 and _libc.inotify_add_watch(self._inotify, path.encode(), IN_MOVED_TO) < 0:
            self._look_s = POLL_S

    def process(self, who: LaunchRecord) -> None:
        """Wake when that very process ends, or at once if it has."""
        identity = ProcessIdentity(boot_id=who.boot_id, pid=who.pid, pid_started_at=who.pid_started_at)
        pidfd = open_pidfd(who.pid)
        if pidfd is not None:
            self._pidfd = pidfd
            self._loop.add_reader(pidfd, self._ended)
        if not alive(identity):
            self._ended()

    async def wait(self) -> None:
        """Return when there may be something new since the last return."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._look_s):
                await self._event.wait()
        self._event.clear()

    def _written(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._inotify, 4096)
        self._event.set()

    def _ended(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._event.set()


class JournalFollower:
    """Reads one journal from a position to its end."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes from `start` on, at most PIECE_BYTES at once, until the recorded end. Raises JournalUnavailable
        if the journal cannot be read, or ends before its recorded length."""
        journal = await self._open()
        if journal is None:
            return
        try:
            with Watch() as watch:
                self._watch(watch, journal)
                position, exit = start, await self.look()
                while True:
                    size = PIECE_BYTES if exit is None else min(PIECE_BYTES, exit.journal_length - position)
                    if size > 0 and (piece := os.pread(journal, size, position)):
                        position += len(piece)
                        yield piece
                        if len(piece) == PIECE_BYTES:
                            await asyncio.sleep(0)  # a long journal is read in turns with everything else
                    elif exit is None:
                        exit = await self.look()
                        if exit is None:
                            await watch.wait()
                    elif size > 0:
                        raise JournalUnavailable(
                            f"The journal ends at {position}, its record says {exit.journal_length}."
                        )
                    else:
                        return
        except OSError as error:
            raise JournalUnavailable(f"The journal cannot be read: {error}.") from error
        finally:
            os.close(journal)

    async def wait_until_made(self) -> None:
        """Return when journal and exit file are there, or whoever was to make them has ended."""
        # Another program's few system calls: nothing could tell us sooner that they are over.
        while not self._recording.made() and not self._recording.take():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S / 4)

    async def look(self) -> AgentExit | None:
        """Return how the agent ended, None while it lives. Decides `lost` (P15). Raises JournalUnavailable."""
        try:
            exit = self._recording.exit()
            if exit is None and self._recording.take():
                exit = await asyncio.to_thread(self._recording.settle)
        except OSError as error:
            raise JournalUnavailable(f"The exit record cannot be read: {error}.") from error
        return exit

    async def _open(self) -> int | None:
        await self.wait_until_made()
        with suppress(FileNotFoundError):
            return self._recording.open_journal()
        await self.look()  # the recorder ended before it made one: writes down that it did
        return None

    def _watch(self, watch: Watch, journal: int) -> None:
        watch.file(journal)
        with suppress(FileNotFoundError):
            fd = self._recording.open_exit()
            watch.file(fd)
            os.close(fd)  # the watch is on the file, not on the descriptor
        recorder = self._recording.recorder()
        if recorder is not None:
            watch.process(recorder)
