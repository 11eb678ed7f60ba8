"""What the tests of claims and drivers share: an application's records and logs, with trouble on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from runtime.core.chunk import Event, decode_chunk, encode
from runtime.delivery.driver import RunDriver
from runtime.delivery.durability import Entry
from runtime.delivery.locks import Lease, LockStore
from runtime.delivery.memory import MemoryStreamDurability, MemoryStreams
from runtime.delivery.records import MemoryRunRecords, RunPatch, RunRow
from runtime.errors import StoreUnavailable
from runtime.testing.sim_loop import SimLoop, play

RUN = "run-1"
THREAD = "thread-1"


def played(work: Coroutine[Any, Any, None], seed: int = 5) -> None:
    play(seed, work)


def loop() -> SimLoop:
    return cast("SimLoop", asyncio.get_running_loop())


def text(n: int, **more: Any) -> Event:
    return {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": f"d{n}", **more}


async def sleep(seconds: float) -> None:
    """Let virtual time pass."""
    done = asyncio.Event()
    loop().call_later(seconds, done.set)
    await done.wait()


async def events(*given: Event | BaseException) -> AsyncGenerator[Event, None]:
    """Yield what is given; raise the exceptions among it."""
    for event in given:
        if isinstance(event, BaseException):
            raise event
        yield event


class Records(MemoryRunRecords):
    """Counts reads, and fails where it is told to (by the method's name)."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0
        self.updates: list[RunPatch] = []
        self.failing: set[str] = set()

    def _fail(self, name: str) -> None:
        if name in self.failing:
            raise StoreUnavailable(f"{name} fails")

    async def create_or_resume(self, run_id: str, thread_id: str, started_at: int) -> RunRow:
        self._fail("create_or_resume")
        return await super().create_or_resume(run_id, thread_id, started_at)

    async def get(self, run_id: str) -> RunRow | None:
        self.gets += 1
        self._fail("get")
        return await super().get(run_id)

    async def advance_epoch(self, run_id: str, expected_epoch: int, claimant: str) -> RunRow | None:
        row = await super().advance_epoch(run_id, expected_epoch, claimant)
        if "advance_epoch.answer" in self.failing:
            self.failing.remove("advance_epoch.answer")
            raise StoreUnavailable("written, and the answer is lost")
        return row

    async def update(self, run_id: str, patch: RunPatch, if_epoch: int | None = None) -> bool:
        self._fail("update")
        self.updates.append(patch)
        return await super().update(run_id, patch, if_epoch)

    async def row(self, run_id: str = RUN) -> RunRow:
        row = await MemoryRunRecords.get(self, run_id)
        assert row is not None
        return row


class Log(MemoryStreamDurability):
    """Counts what it is asked, waits and fails where it is told to."""

    def __init__(self, logs: Logs, run_id: str) -> None:
        super().__init__(logs.streams, run_id, None)
        self._all = logs

    async def append(self, chunks: Sequence[bytes]) -> list[str]:
        self._all.appends += 1
        await self._all.gate.wait()
        if self._all.failing is not None:
            raise self._all.failing
        return await super().append(chunks)

    async def snapshot(self) -> list[Entry]:
        self._all.snapshots.append(loop().time())
        return await super().snapshot()

    def read(self, offset: str) -> AsyncGenerator[Entry, None]:
        self._all.reads += 1
        return super().read(offset)

    async def close(self) -> None:
        self._all.closes += 1
        if "close" in self._all.broken:
            raise StoreUnavailable("close fails")
        await super().close()


class Logs:
    """The logs of one application; all handles share its counters."""

    def __init__(self, *, fences: bool = False) -> None:
        self.streams = MemoryStreams(loop(), fences=fences)
        self.made: list[str] = []
        self.appends = self.closes = self.reads = 0
        self.snapshots: list[float] = []
        self.failing: BaseException | None = None
        self.broken: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    def __call__(self, run_id: str) -> Log:
        self.made.append(run_id)
        return Log(self, run_id)

    async def stored(self, run_id: str = RUN) -> list[Event]:
        """Return what the log holds."""
        return [decode_chunk(entry.chunk) for entry in await self.streams.log(run_id).snapshot()]

    async def put(self, *given: Event, run_id: str = RUN) -> None:
        """Append as somebody else does."""
        await self.streams.log(run_id).append([encode(event) for event in given])


class Host:
    """One application: records, logs, and drivers of it. Make it inside `played`."""

    def __init__(self, *, fences: bool = False, locks: LockStore | None = None) -> None:
        self.records = Records()
        self.logs = Logs(fences=fences)
        self.locks = locks

    def driver(self, **settings: Any) -> RunDriver:
        return RunDriver(records=self.records, logs=self.logs, clock=loop(), locks=self.locks, **settings)

    async def create(self, run_id: str = RUN) -> None:
        await self.records.create_or_resume(run_id, THREAD, 1)


class Lossy:
    """LockStore whose lease can be lost."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.held = 0
        self.lease = Lease()

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[Lease]:
        self.keys.append(key)
        self.held += 1
        try:
            yield self.lease
        finally:
            self.held -= 1


async def supersede(host: Host) -> None:
    """Claim as another host does."""
    row = await host.records.row()
    assert await host.records.advance_epoch(RUN, row.driver_epoch, "another host") is not None
