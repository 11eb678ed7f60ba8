"""A whole instance without Ray: a real shard over a memory store, a supervisor that only takes notes, the real app.

The shard can be made to fail, to hang or to be slow, and counts its calls; runs are driven by the test itself through
the same operations as a run actor's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from fastapi import FastAPI

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.ops import Append, Appended, Claimed, ClaimRun, Finish, Finished, Note
from runtime.core.record import Claimant, ClaimReason, Head, Launch, Status
from runtime.core.result import ResultAsk
from runtime.engine.clock import StoreThreads, SystemClock
from runtime.engine.shard import Shard
from runtime.errors import InputInvalid, RunEnded, StoreUnavailable
from runtime.harnesses.shell import ShellHarness
from runtime.ports import ShardPort, SupervisorPort
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from serve_app.access import Access
from serve_app.app import build_app
from serve_app.gateway import Gateway
from serve_app.log_reader import SegmentReader
from serve_app.replica import Replica


class TroubledShard:
    """A shard behind a line that the test can cut. `down`: every call fails at once. `hung` holds the names of calls
    that are not answered, those under way included, until `release`; or "all"."""

    def __init__(self, shard: Shard) -> None:
        self.real = shard
        self.down = False
        self.hung: set[str] = set()
        self._released = asyncio.Event()
        self.calls: Counter[str] = Counter()
        self.running: Counter[str] = Counter()

    def release(self) -> None:
        """Answer what hangs."""
        self.hung.clear()
        self._released.set()
        self._released = asyncio.Event()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            self.running[name] += 1
            try:
                if self.down:
                    raise StoreUnavailable("log:0 is not there yet.")
                answer = await getattr(self.real, name)(*args, **kwargs)
                while self.hung & {name, "all"}:
                    await self._released.wait()
                if self.down:
                    raise StoreUnavailable("log:0 does not answer; it is being replaced.")
                return answer
            finally:
                self.running[name] -= 1

        return call


class NotingSupervisor:
    """Notes what it is told. `on_start` is run for each start, as if it made a driver."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.down = False
        self.epoch_of_takeover: int | None = 1
        self.on_start: Callable[[str], Awaitable[None]] | None = None

    async def _note(self, what: str, run_id: str) -> None:
        if self.down:
            raise StoreUnavailable("The supervisor is not there yet.")
        self.told.append((what, run_id))

    async def start(self, run_id: str) -> None:
        await self._note("start", run_id)
        if self.on_start is not None:
            await self.on_start(run_id)

    async def ensure(self, run_id: str) -> None:
        await self._note("ensure", run_id)

    async def cancel(self, run_id: str) -> None:
        await self._note("cancel", run_id)

    async def takeover(self, run_id: str) -> int:
        await self._note("takeover", run_id)
        if self.epoch_of_takeover is None:
            raise RunEnded(run_id, "completed")
        return self.epoch_of_takeover

    async def drain_node(self, node: str, within_s: float) -> dict[str, Any]:
        await self._note(f"drain within {within_s:g} s", node)
        if node != "a1b2":
            raise InputInvalid(f"{node!r} names no node; there are a1b2.", code="node_unknown", field="node")
        return {"nodeId": "a1b2c3", "deadline": 7, "left": {"run:r-1": "is being moved"}, "gone": False}

    async def reap(self, dry_run: bool) -> dict[str, Any]:
        await self._note("reap", str(dry_run))
        run = {"runId": "r-1", "outcome": "expired", "status": "aborted", "exitCode": None, "error": None}
        facts = {"at": 7, "dryRun": dry_run, "considered": 1, "failures": [], "orphans": 0, "kept": {}}
        return {**facts, "outcomes": {"expired": 1}, "runs": [run], "pruned": {"logs": 2, "transcripts": 0}}

    async def status(self) -> dict[str, Any]:
        if self.down:
            raise StoreUnavailable("The supervisor is not there yet.")
        return {
            "epoch": 3,
            "actors": [],
            "takeovers": 2,
            "takeoverSeconds": 0.5,
            "reasons": {"driver_lost": 2},
            "reaped": {"expired": 1},
            "pruned": {"log": 2},
        }


class LocalCluster:
    """Implements `ports.Cluster` in this process."""

    def __init__(self, shard: TroubledShard, supervisor: NotingSupervisor) -> None:
        self.troubled = shard
        self.noting = supervisor
        self.pieces: list[bytes | Exception] = []  # of every result
        self.asked: list[ResultAsk] = []
        self.open = 0  # results that are being read

    def shard(self, run_id: str) -> ShardPort:
        del run_id
        return cast("ShardPort", self.troubled)

    def shards(self) -> list[ShardPort]:
        return [cast("ShardPort", self.troubled)]

    def supervisor(self) -> SupervisorPort:
        return cast("SupervisorPort", self.noting)

    async def result(self, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        self.asked.append(ask)
        self.open += 1
        try:
            for piece in self.pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            await asyncio.sleep(0)  # as the real one, it has somebody to tell
            self.open -= 1


class Driver:
    """Drives one run as a run actor does, by hand."""

    def __init__(self, shard: Shard, run_id: str) -> None:
        self._shard = shard
        self.run_id = run_id
        self.head: Head | None = None

    async def claim(self) -> Driver:
        known = await self._shard.record(self.run_id)
        assert known is not None
        claimant = Claimant(claimant=f"driver-{known[0].driver_epoch}")
        outcome = await self._shard.submit(
            ClaimRun(
                run_id=self.run_id,
                expected_epoch=known[0].driver_epoch,
                claimant=claimant,
                reason=ClaimReason.START,
            )
        )
        assert isinstance(outcome, Claimed), outcome
        self.head = outcome.head
        return self

    async def launch(self, key: str = "local/here/d/run") -> None:
        assert self.head is not None
        for note in ({"sandbox_key": key, "launch": Launch.KEYED}, {"launch": Launch.INTENDED}):
            await self._shard.submit(Note(run_id=self.run_id, epoch=self.head.driver_epoch, **note))

    def _batch(self, chunks: Sequence[bytes]) -> Batch:
        assert self.head is not None
        return Batch(
            run_id=self.run_id,
            seq=self.head.next_seq,
            count=len(chunks),
            epoch=self.head.driver_epoch,
            band=Band.LIVE,
            data=b"\n".join(chunks),
        )

    async def append(self, *chunks: bytes) -> None:
        outcome = await self._shard.submit(Append(batch=self._batch(chunks)))
        assert isinstance(outcome, Appended), outcome
        self.head = outcome.head

    async def begin(self) -> None:
        assert self.head is not None
        await self.append(chunk.run_started(self.run_id, self.head.thread_id))

    async def say(self, *words: str) -> None:
        await self.append(*(text(word) for word in words))

    async def finish(self, status: Status = Status.COMPLETED, stderr: bytes = b"", last: bytes | None = None) -> None:
        assert self.head is not None
        last = last or (
            chunk.run_finished(self.run_id, self.head.thread_id)
            if status is Status.COMPLETED
            else chunk.run_error(self.run_id, "It failed.", "agent_exit")
        )
        outcome = await self._shard.submit(Finish(batch=self._batch([last]), status=status, stderr=stderr))
        assert isinstance(outcome, Finished), outcome
        self.head = outcome.head


def text(word: str) -> bytes:
    """Return one chunk that holds `word`."""
    return chunk.encode({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m-0", "delta": word})


class World:
    """What a test has in hand."""

    def __init__(self, app: FastAPI, cluster: LocalCluster, replica: Replica, store: MemoryStore) -> None:
        self.app = app
        self.cluster = cluster
        self.replica = replica
        self.store = store

    @property
    def gateway(self) -> Gateway:
        made: Gateway = self.app.state.gateway
        return made

    @property
    def shard(self) -> TroubledShard:
        return self.cluster.troubled

    @property
    def supervisor(self) -> NotingSupervisor:
        return self.cluster.noting

    async def driver(self, run_id: str) -> Driver:
        """Return a driver that has claimed the run."""
        return await Driver(self.shard.real, run_id).claim()

    async def head(self, run_id: str) -> Head:
        found = await self.shard.real.record(run_id)
        assert found is not None
        return found[0]


@asynccontextmanager
async def world(
    segments: SegmentReader | None = None,
    *,
    shard_segments: Any = None,
    lifespan: bool = True,
    access: Access | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    """Make everything, run the app's lifespan, and take it down again."""
    chosen = Settings(**settings)
    threads = StoreThreads()
    store = MemoryStore()
    shard = await Shard.open(
        store, 0, "test", settings=chosen, clock=SystemClock(), threads=threads, segments=shard_segments
    )
    cluster = LocalCluster(TroubledShard(shard), NotingSupervisor())
    replica = Replica("replica-1", segments, access)
    app = build_app(cluster, chosen, {"shell": ShellHarness()}, replica)
    made = World(app, cluster, replica, store)
    try:
        if lifespan:
            async with app.router.lifespan_context(app):
                yield made
        else:
            yield made
    finally:
        made.shard.release()
        await shard.close()
        threads.close()
