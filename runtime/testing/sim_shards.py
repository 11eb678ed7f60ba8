"""The log shards of a simulated deployment: incarnation after incarnation of the production `Shard`, and the way there.

An old incarnation may live on beside its successor, held or not; the store refuses what it then writes (P11).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextvars import Context
from typing import Any

from runtime.engine.remote_shard import RemoteShard
from runtime.engine.shard import Shard
from runtime.errors import ShardSuperseded, StoreError, StoreUnavailable
from runtime.ports import Store
from runtime.settings import Settings
from runtime.testing.sim_loop import THREAD_SLOW_S, SimLoop
from runtime.testing.sim_net import Net, NoAnswer, Process
from runtime.testing.sim_store import Crossing, SimThreads

Served = Callable[[int, int, str, tuple[Any, ...]], None]

# Longer than a parked read; a caller of a held shard learns nothing before.
CALL_TIMEOUT_S = 40.0


class SimSegments:
    """Keeps sealed bytes for a process; `lose` drops some, as an object store under pressure does (P14)."""

    _refs = itertools.count(1)  # of all: what one incarnation refers to is nothing of another's

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}

    def put(self, data: bytes) -> int:
        """Keep `data`; return its ref."""
        ref = next(self._refs)
        self._kept[ref] = data
        return ref

    def get(self, ref: int) -> bytes | None:
        """Return the bytes, or None if they are lost."""
        return self._kept.get(ref)

    def lose(self) -> None:
        """Lose everything kept so far."""
        self._kept.clear()


class Incarnation:
    """One life of a shard."""

    def __init__(self, shard: int, process: Process) -> None:
        self.shard = shard
        self.process = process
        self.segments = SimSegments()
        self.opened: asyncio.Future[Shard] = process.loop.create_future()


class SimShards:
    """Opens incarnations; `current` are the ones that have the names, by number of shard."""

    def __init__(
        self, loop: SimLoop, net: Net, open_store: Callable[[], Store], crossing: Crossing, settings: Settings
    ) -> None:
        self.net = net
        self.count = settings.shards
        self.current: dict[int, Incarnation | None] = dict.fromkeys(range(settings.shards))
        self.all: list[Incarnation] = []
        self.served: Served = lambda _shard, _epoch, _method, _args: None
        self._loop = loop
        self._open_store = open_store  # as a new process does
        self._crossing = crossing
        self._settings = settings

    def open(self, shard: int) -> None:
        """Start another incarnation under the shard's name, whatever has it."""
        life = 1 + sum(each.shard == shard for each in self.all)
        incarnation = Incarnation(shard, Process(self._loop, f"log:{shard} life {life}"))
        self.all.append(incarnation)
        self.current[shard] = incarnation
        incarnation.process.start(self._live(incarnation))

    async def _live(self, incarnation: Incarnation) -> None:
        threads = SimThreads(self._loop.rng, THREAD_SLOW_S, self._crossing)
        while not incarnation.opened.done():
            try:
                shard = await Shard.open(
                    self._open_store(),
                    incarnation.shard,
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
        if self.current[incarnation.shard] is incarnation:
            self.current[incarnation.shard] = None
        self._loop.call_later(0.5, incarnation.process.kill, context=Context())


class SimShardClient(RemoteShard):
    """A shard as one process sees it: `ports.ShardPort`. `heard` is told of each answer as this process gets it."""

    def __init__(
        self,
        shards: SimShards,
        shard: int,
        heard: Callable[[str, tuple[Any, ...], Any], None] = lambda _method, _args, _value: None,
    ) -> None:
        super().__init__()
        self._shards = shards
        self._shard = shard
        self._heard = heard
        self._handle: Incarnation | None = None

    async def _call(self, method: str, *args: Any) -> Any:
        if self._handle is None:
            self._handle = self._shards.current[self._shard]
        incarnation = self._handle
        if incarnation is None:
            raise StoreUnavailable("simulated: no shard has the name")

        async def serve() -> Any:
            try:
                shard = await asyncio.shield(incarnation.opened)
                value = await getattr(shard, method)(*args)
                self._shards.served(self._shard, shard.epoch, method, args)
                return value
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

    def _forget(self) -> None:
        self._handle = None

    def segment(self, ref: Any) -> bytes | None:
        """Return the bytes of a segment of the incarnation that answered last; None if they are lost."""
        return self._handle.segments.get(ref) if self._handle is not None else None
