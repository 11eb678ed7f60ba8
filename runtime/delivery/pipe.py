"""One run's chunks into its log, and the run to one ending (contract 5.6).

    source ends             completed
    source ends, stopped    aborted: a RUN_ERROR `aborted` is appended, so that no reader waits for more. Where it was
                            the lost claim that stopped it, both writes are refused, and the run is its successor's
    RUN_ERROR from it       failed, as that chunk says; nothing after it is taken
    source or log raises    failed: a RUN_ERROR that says why is appended, if the log takes it

Every ending writes the status, then closes the log, whatever failed before. `pipe` therefore raises nothing but the
cancellation of its own task, which is no ending: the host goes, the run stays as it is, and a successor goes on.

A source is stopped by cancelling what it awaits, in the task that iterates it, and never in the middle of an append:
half of one may be stored. What it does then is its own: it may end, or raise something of its own (failed).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from runtime.core.chunk import RUN_ERROR, Event, encode
from runtime.core.record import Status
from runtime.delivery.durability import StreamDurability
from runtime.delivery.records import RowError, RunPatch, RunRecords, RunRow
from runtime.delivery.replay import generator
from runtime.errors import OutlastError

log = logging.getLogger("outlast.delivery")

T = TypeVar("T")

ABORTED = RowError(message="Request aborted", code="aborted")
UNKNOWN = RowError(message="The run failed for a reason that it does not tell.")


class Stop:
    """Asks a pipe to end its run as aborted: on a cancel, or when a lease is lost."""

    def __init__(self) -> None:
        self._asked = False
        self._interrupt: Callable[[], None] | None = None

    def is_set(self) -> bool:
        """Return whether somebody asked."""
        return self._asked

    def set(self) -> None:
        """Ask. Idempotent."""
        self._asked = True
        if self._interrupt is not None:
            self._interrupt()

    def watch(self, interrupt: Callable[[], None] | None) -> None:
        """Have `interrupt` called when somebody asks. A pipe's own business."""
        self._interrupt = interrupt


class Pipe:
    """One pass of one run's chunks. `records` and `log` are those of a claim, fenced."""

    def __init__(
        self, run_id: str, thread_id: str, records: RunRecords, log: StreamDurability, now_ms: Callable[[], int]
    ) -> None:
        self._run_id = run_id
        self._thread_id = thread_id
        self._records = records
        self._log = log
        self._now_ms = now_ms
        self._started_at = now_ms()
        self._pulling: asyncio.Task[Any] | None = None  # whom a stop may interrupt now

    async def run(self, source: AsyncIterable[Event], stop: Stop) -> RunRow:
        """Drive `source` to its ending and return the row as it is stored then: a successor's, if we have one."""
        try:
            await self._records.create_or_resume(self._run_id, self._thread_id, self._started_at)
            status, error = await self._drive(source, stop)
        except Exception as failure:
            log.warning("run %s failed: %r", self._run_id, failure, exc_info=failure)
            status, error = Status.FAILED, await self._tell(error_of(failure))
        return await self._finish(status, error)

    async def _drive(self, source: AsyncIterable[Event], stop: Stop) -> tuple[Status, RowError | None]:
        if stop.is_set():
            return Status.ABORTED, await self._tell(ABORTED)
        task = asyncio.create_task(self._take(source, stop), name=f"run {self._run_id} source")
        stop.watch(self._interrupt)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            stop.watch(None)
        error = None if task.cancelled() else task.result()
        if error is not None:
            return Status.FAILED, error
        if stop.is_set():
            return Status.ABORTED, await self._tell(ABORTED)
        return (Status.FAILED, await self._tell(ABORTED)) if task.cancelled() else (Status.COMPLETED, None)

    async def _take(self, source: AsyncIterable[Event], stop: Stop) -> RowError | None:
        """Append what `source` yields until it ends or somebody asks to stop; return the error it tells of."""
        async with aclosing(generator(source)) as events:
            self._pulling = asyncio.current_task()
            try:
                async for event in events:
                    self._pulling = None
                    if stop.is_set():
                        return None
                    await self._log.append([encode(event)])
                    if event.get("type") == RUN_ERROR:
                        return _told(event)
                    if stop.is_set():
                        return None
                    self._pulling = asyncio.current_task()
            finally:
                self._pulling = None
        return None

    def _interrupt(self) -> None:
        if self._pulling is not None:
            self._pulling.cancel()
            self._pulling = None

    async def _tell(self, error: RowError) -> RowError:
        """Append the terminal RUN_ERROR. Return `error`, with what went wrong with that, if anything did."""
        event: Event = {"type": RUN_ERROR, "message": error.message, "metadata": {"tanstack": {"runId": self._run_id}}}
        if error.code is not None:
            event["code"] = error.code
        try:
            await self._log.append([encode(event)])
        except Exception as failure:  # noqa: BLE001 - a log may raise anything
            return RowError(message=f"{error.message} (and its log could not be told: {failure})", code=error.code)
        return error

    async def _finish(self, status: Status, error: RowError | None) -> RunRow:
        finished_at = self._now_ms()
        patch = RunPatch(status=status, finished_at=finished_at)
        if error is not None:
            patch = RunPatch(status=status, finished_at=finished_at, error=error)
        stored = await self._try(self._records.update(self._run_id, patch), "its status could not be stored")
        await self._try(self._log.close(), "its log could not be closed")
        if stored is not None:
            row = await self._try(self._records.get(self._run_id), "its record could not be read back")
            if row is not None:
                return row
        return RunRow(
            run_id=self._run_id,
            thread_id=self._thread_id,
            started_at=self._started_at,
            status=status,
            finished_at=finished_at,
            error=error,
        )

    async def _try(self, work: Awaitable[T], what: str) -> T | None:
        try:
            return await work
        except Exception as failure:  # noqa: BLE001 - an ending goes on to its end
            log.warning("run %s: %s: %r", self._run_id, what, failure)
            return None


def error_of(failure: BaseException) -> RowError:
    """Return what a record and a RUN_ERROR say of an exception."""
    if isinstance(failure, asyncio.CancelledError):
        return ABORTED
    message = failure.message if isinstance(failure, OutlastError) else str(failure)
    code = _code(getattr(failure, "code", None)) or _code(getattr(failure, "status", None), numeric=True)
    if not message and code is None:
        return UNKNOWN
    return RowError(message=message or type(failure).__name__, code=code)


def _told(event: Event) -> RowError:
    message = event.get("message")
    return RowError(message=message if isinstance(message, str) else UNKNOWN.message, code=_code(event.get("code")))


def _code(value: object, *, numeric: bool = False) -> str | None:
    if isinstance(value, str) and value and not numeric:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        with suppress(OverflowError, ValueError):
            return str(int(value)) if value == int(value) else str(value)
    return None
