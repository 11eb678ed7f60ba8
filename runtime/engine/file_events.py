"""Tells in the log what an agent does to its files, beside the driver that follows it: live chunks, each with a key.

    CUSTOM sandbox.file         {type: create | change | delete, path, timestamp}
    CUSTOM sandbox.file.diff    {path, diff}: against what the file was when the agent was launched
    CUSTOM file.changed         {path: ".", diff, truncated?}: the whole diff, once; the finish takes it along

Nothing of it stops, holds up or fails a run: one live chunk is under way at a time, so the journal's have every other
turn; what cannot be looked at is not told. None comes before RUN_STARTED is stored (P26). A successor tells again what
it sees, and the keys of what was told already keep that out of the log (P8). A log's bound ends its run, so a share of
it is all that is told, and what a predecessor has told counts: then the log is that much fuller.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from runtime.core import chunk
from runtime.errors import OutlastError
from runtime.ports import Clock, FileChange, TellsDiff, WatchesFiles

log = logging.getLogger("outlast.driver")

T = TypeVar("T")

LOOK_S = 1.0
SHARE = 10  # a look that takes long is followed by a pause this many times as long
LAST_S = 3.0  # for what is told after the agent's exit
WHOLE_S = 3.0  # for the whole diff; what is not found in LOOKED_S of it is left out
LOOKED_S = 2.0
WHOLE_BYTES = 256 << 10
MAX_EVENTS = 20_000  # of one driver
KEY_CHARS = 200  # of a longer one the digest: a driver holds them all
OWN_SHARE = 16  # one part in so many of what a log may hold is one driver's to tell of files
LOG_SHARE = 2  # and of one that is full to this part nobody tells any more: its bound would end the run


class FileEvents:
    """One drive's. `tell` stores a live chunk under a key; `started` says whether RUN_STARTED is stored, `log_bytes`
    how large the log is."""

    def __init__(
        self,
        run_id: str,
        sandbox: WatchesFiles,
        clock: Clock,
        tell: Callable[[bytes, str], Awaitable[object]],
        started: Callable[[], bool],
        log_bytes: Callable[[], int],
        *,
        max_log_bytes: int,
        diffs: bool,
    ) -> None:
        self._run_id = run_id
        self._sandbox = sandbox
        self._clock = clock
        self._tell = tell
        self._started = started
        self._log_bytes = log_bytes
        self._max_log_bytes = max_log_bytes
        self._diffs = diffs
        self._left = MAX_EVENTS
        self._told_bytes = 0
        self._enough = False
        self._untold: list[FileChange] = []
        self._over = asyncio.Event()

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, telling meanwhile; and at its end what came last."""
        telling = asyncio.create_task(self._run())
        try:
            done = await work
            self._over.set()
            await self._last(telling)
            return done
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def whole(self) -> bytes | None:
        """Return the chunk of the whole diff, to be stored with the finish and thus once, whoever drives. None if no
        diffs are told, if there is no difference, or if it cannot be had soon."""
        sandbox = self._sandbox
        if not self._diffs or not isinstance(sandbox, TellsDiff):
            return None
        max_bytes = min(WHOLE_BYTES, self._max_log_bytes // OWN_SHARE)
        told = None
        with self._at_no_cost():
            try:
                async with asyncio.timeout(WHOLE_S):
                    found = await sandbox.whole_diff(max_bytes, LOOKED_S)
            except TimeoutError:
                log.info("run %s: its whole diff could not be had in %g s, and is not told", self._run_id, WHOLE_S)
                return None
            if found is None or not (found.diff or found.truncated):
                return None
            told = _changed(found.diff, truncated=found.truncated)
            if len(told) > 2 * max_bytes:
                told = _changed("", truncated=True)
        return told

    async def _run(self) -> None:
        with self._at_no_cost():
            while not self._over.is_set():
                begun = self._clock.monotonic()
                more = await self._turn()
                took = self._clock.monotonic() - begun
                with suppress(TimeoutError):
                    async with asyncio.timeout(0 if more else max(LOOK_S, SHARE * took)):
                        await self._over.wait()

    async def _last(self, telling: asyncio.Task[None]) -> None:
        """Tell what came last, after the look that is under way: one that is cancelled may go on in a thread, beside
        the next one, and what it finds is lost."""
        try:
            async with asyncio.timeout(LAST_S):
                await telling
                with self._at_no_cost():
                    while await self._turn(settled=True):
                        pass
        except TimeoutError:
            log.info("run %s: not all that became of its files is told", self._run_id)

    @contextmanager
    def _at_no_cost(self) -> Iterator[None]:
        try:
            yield
        except OutlastError as error:
            log.debug("run %s: its files are not told of any more: %s", self._run_id, error)
        except Exception:
            log.exception("run %s: its files are not told of any more", self._run_id)

    async def _turn(self, *, settled: bool = False) -> bool:
        """Look once and tell; return whether there may be more. Raises OutlastError when there is nobody to tell."""
        if self._enough or not self._started():
            return False
        if not self._untold:
            self._untold = list(await self._sandbox.file_changes(diffs=self._diffs, settled=settled))
        told = bool(self._untold)
        while self._untold and not self._enough:
            await self._tell_one(self._untold[0])
            del self._untold[0]
            self._left -= 1
            if self._left <= 0:
                self._end(f"there were {MAX_EVENTS} changes")
        return told and not self._enough

    async def _tell_one(self, change: FileChange) -> None:
        value = {"type": change.type, "path": change.path, "timestamp": change.timestamp}
        key = change.key
        if len(key) > KEY_CHARS:
            key = f"file:{hashlib.sha256(key.encode()).hexdigest()}"
        await self._store(chunk.custom("sandbox.file", value), key)
        if change.diff:
            digest = hashlib.sha256(change.diff.encode()).hexdigest()[:12]
            await self._store(
                chunk.custom("sandbox.file.diff", {"path": change.path, "diff": change.diff}),
                f"{key}:diff:{digest}",
            )

    async def _store(self, data: bytes, key: str) -> None:
        before = self._log_bytes()
        if (
            before + len(data) > self._max_log_bytes // LOG_SHARE
            or self._told_bytes + len(data) > self._max_log_bytes // OWN_SHARE
        ):
            self._end(f"they would take too much of the {self._max_log_bytes} bytes of its log")
        if not self._enough:
            await self._tell(data, key)
            self._told_bytes += min(len(data), self._log_bytes() - before)  # what was told before takes nothing

    def _end(self, why: str) -> None:
        if not self._enough:
            self._enough = True
            log.warning("run %s: no more changes of its files are told: %s", self._run_id, why)


def _changed(diff: str, *, truncated: bool) -> bytes:
    return chunk.custom("file.changed", {"path": ".", "diff": diff} | ({"truncated": True} if truncated else {}))
