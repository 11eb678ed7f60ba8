"""The log shard of a simulated deployment: incarnation after incarnation of the production `Shard`, and the way there.

An old incarnation may live on beside its successor, held or not; the store refuses what it then writes (P11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any

from runtime.core.batch import Batch
from runtime.core.ops import Op, Outcome
from runtime.core.record import Head, RunSpec
from runtime.engine.shard import Shard
from runtime.errors import ShardSuperseded, StoreError, StoreUnavailable
from runtime.ports import Due, Pulse, ReadReply, RunPage, RunQuery, Store
from runtime.settings import Settings
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_net import Net, NoAnswer, Process
from runtime.testing.sim_store import SimThreads

# Longer than a parked read; a caller of a held shard learns nothing before.
CALL_TIMEOUT_S = 40.0


class SimSegments:
    """Keeps sealed bytes for a process; `lose` drops some, as an object store under pressure does (P14)."""

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}
        self._made = 0

    def put(self, data: bytes) -> int:
        """Keep `data`; return its ref."""
        self._made += 1
        self._kept[self._made] = data
        return self._made

    def get(self, ref: int) -> bytes | None:
        """Return the bytes, or None if they are lost."""
        return self._kept.get(ref)

    def lose(self) -> None:
        """Lose everything kept so far."""
        self._kept.clear()


class Incarnation:
    """One life of the shard."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.segments = SimSegments()
        self.opened: asyncio.Future[Shard] = process.loop.create_future()


class SimShards:
    """Opens incarnations; `current` is the one that has the name."""

    def __init__(self, loop: SimLoop, net: Net, store: Store, settings: Settings) -> None:
        self.net = net
        self.current: Incarnation | None = None
        self.all: list[Incarnation] = []
        self.threads_slow_s = 0.004
        self._loop = loop
        self._store = store
        self._settings = settings

    def open(self) -> None:
        """Start another incarnation under the name, whatever has it."""
        incarnation = Incarnation(Process(self._loop, f"shard {len(self.all) + 1}"))
        self.all.append(incarnation)
        self.current = incarnation
        incarnation.process.start(self._live(incarnation))

    async def _live(self, incarnation: Incarnation) -> None:
        threads = SimThreads(self._loop.rng, self.threads_slow_s)
        while not incarnation.opened.done():
            try:
                shard = await Shard.open(
                    self._store,
                    0,
                    incarnation.process.name,
                    settings=self._settings,
                    clock=self._loop,
                    threads=threads,
                    segments=incarnation.segments,
                )
            except StoreError:
                await asyncio.sleep(0.3)
            else:
                incarnation.opened.set_result(shard)

    def superseded(self, incarnation: Incarnation) -> None:
        """Let an incarnation that was refused exit a little later, as its process does."""
        if self.current is incarnation:
            self.current = None
        self._loop.call_later(0.5, incarnation.process.kill, context=Context())


class SimShardClient:
    """A shard as one process sees it: `ports.ShardPort`. `heard` is told of each answer as this process gets it."""

    def __init__(
        self,
        shards: SimShards,
        heard: Callable[[str, tuple[Any, ...], Any], None] = lambda _method, _args, _value: None,
    ) -> None:
        self._shards = shards
        self._heard = heard
        self._handle: Incarnation | None = None
        self._epoch = 0

    async def _call(self, method: str, *args: Any) -> Any:
        if self._handle is None:
            self._handle = self._shards.current
        incarnation = self._handle
        if incarnation is None:
            raise StoreUnavailable("simulated: no shard has the name")

        async def serve() -> Any:
            try:
                return await getattr(await asyncio.shield(incarnation.opened), method)(*args)
            except ShardSuperseded:
                self._shards.superseded(incarnation)
                raise

        try:
            value = await self._shards.net.call(incarnation.process, serve, CALL_TIMEOUT_S)
        except (NoAnswer, ShardSuperseded) as error:
            self._handle = None
            raise StoreUnavailable("simulated: the shard does not answer") from error
        self._heard(method, args, value)
        return value

    def segment(self, ref: Any) -> bytes | None:
        """Return the bytes of a segment of the incarnation that answered last; None if they are lost."""
        return self._handle.segments.get(ref) if self._handle is not None else None

    async def submit(self, op: Op) -> Outcome:
        """See ports.LogPort."""
        outcome: Outcome = await self._call("submit", op)
        return outcome

    async def pulse(self, run_id: str, epoch: int, tick: int) -> Pulse:
        """See ports.LogPort."""
        pulse: Pulse = await self._call("pulse", run_id, epoch, tick)
        return pulse

    async def read(self, run_id: str, after: int, wait_s: float, inline: bool = False) -> ReadReply:
        """See ports.LogPort. Drops the answers of older incarnations (P11)."""
        reply: ReadReply = await self._call("read", run_id, after, wait_s, inline)
        if reply.shard_epoch < self._epoch:
            self._handle = None
            raise StoreUnavailable("simulated: an old incarnation answered")
        self._epoch = reply.shard_epoch
        return reply

    async def record(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """See ports.LogPort."""
        record: tuple[Head, RunSpec] | None = await self._call("record", run_id)
        return record

    async def batches(self, run_id: str, after: int) -> list[Batch]:
        """See ports.LogPort."""
        batches: list[Batch] = await self._call("batches", run_id, after)
        return batches

    async def attach(self, run_id: str, viewer: str, number: int) -> bool:
        """See ports.ShardPort."""
        known: bool = await self._call("attach", run_id, viewer, number)
        return known

    async def set_viewers(self, viewer: str, number: int, counts: Mapping[str, int]) -> None:
        """See ports.ShardPort."""
        await self._call("set_viewers", viewer, number, dict(counts))

    async def due(self, wait_s: float) -> list[Due]:
        """See ports.ShardPort."""
        due: list[Due] = await self._call("due", wait_s)
        return due

    async def unfinished(self) -> list[Head]:
        """See ports.ShardPort."""
        heads: list[Head] = await self._call("unfinished")
        return heads

    async def destroy_pending(self) -> list[Head]:
        """See ports.ShardPort."""
        heads: list[Head] = await self._call("destroy_pending")
        return heads

    async def list_runs(self, query: RunQuery) -> RunPage:
        """See ports.ShardPort."""
        page: RunPage = await self._call("list_runs", query)
        return page

    async def find_active(self, owner: str, thread_id: str) -> Head | None:
        """See ports.ShardPort."""
        head: Head | None = await self._call("find_active", owner, thread_id)
        return head

    async def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """See ports.ShardPort."""
        runs: list[tuple[Head, RunSpec]] = await self._call("list_thread", owner, thread_id)
        return runs

    async def log(self, run_id: str) -> list[Batch]:
        """See ports.ShardPort."""
        batches: list[Batch] = await self._call("log", run_id)
        return batches

    async def stderr(self, run_id: str) -> bytes | None:
        """See ports.ShardPort."""
        tail: bytes | None = await self._call("stderr", run_id)
        return tail

    async def stats(self) -> dict[str, Any]:
        """See ports.ShardPort."""
        stats: dict[str, Any] = await self._call("stats")
        return stats
