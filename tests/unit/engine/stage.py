"""A shard over a memory store, a world of sandboxes, and drivers, in virtual time: what the engine's tests play on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

from runtime.core.batch import Band, Batch, pack_ends
from runtime.core.ops import Append, Claimed, ClaimRun, Create, Created, Finish, Op, Outcome
from runtime.core.record import Claimant, ClaimReason, Head, Limits, OnDisconnect, RunError, RunSpec, Status
from runtime.engine.checkpointing import Pace
from runtime.engine.concluding import DriveEnd
from runtime.engine.driver import Driver
from runtime.engine.shard import Shard
from runtime.engine.tails import Segments
from runtime.engine.tools import Past, Tools
from runtime.ports import Clock, Harness, LogPort
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_agent import Script, SimHarness
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_sandbox import SimProvider
from runtime.testing.sim_store import SimThreads, StoreTrouble, WatchedStore
from runtime.testing.sim_world import World

RUN = "run-1"
THREAD = "thread-1"


def spec(limits: Limits | None = None, on_disconnect: OnDisconnect = OnDisconnect.DETACH) -> RunSpec:
    return RunSpec(
        harness="sim",
        translator_version=1,
        provider="sim",
        input={"threadId": THREAD, "messages": []},
        limits=limits or Limits(max_line_bytes=2048),
        on_disconnect=on_disconnect,
    )


def create(run_id: str = RUN, thread_id: str = THREAD, on_busy: str = "reject", **kinds: Any) -> Create:
    return Create(run_id=run_id, thread_id=thread_id, owner="", spec=spec(**kinds), digest="d", on_busy=on_busy)


def claimant(name: str) -> Claimant:
    return Claimant(claimant=name, actor_id=f"actor-{name}", node_id=f"actor-{name}-node")


def rng(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - a seeded generator is the point


def claim(expected: int = 0, name: str = "driver", run_id: str = RUN) -> ClaimRun:
    return ClaimRun(run_id=run_id, expected_epoch=expected, claimant=claimant(name), reason=ClaimReason.START)


def batch(seq: int, *texts: str, epoch: int = 1, band: Band = Band.JOURNAL, run_id: str = RUN) -> Batch:
    data = b"\n".join(b'{"type":"%s"}' % text.encode() for text in texts)
    ends = pack_ends(list(range(seq, seq + len(texts)))) if band is Band.JOURNAL else b""
    return Batch(run_id=run_id, seq=seq, count=len(texts), epoch=epoch, band=band, data=data, ends=ends)


def append(seq: int, *texts: str, epoch: int = 1) -> Append:
    return Append(batch=batch(seq, *texts, epoch=epoch))


def finish(seq: int, epoch: int = 1, status: Status = Status.COMPLETED, run_id: str = RUN) -> Finish:
    error = None if status is Status.COMPLETED else RunError(message="m", code="c")
    ending = batch(seq, "RUN_FINISHED", epoch=epoch, band=Band.LIVE, run_id=run_id)
    return Finish(batch=ending, status=status, error=error)


class Stage:
    """Make it inside `run`; `open` opens (another incarnation of) the shard."""

    def __init__(self, script: Script | None = None, *, slow_s: float = 0.001, **settings: Any) -> None:
        self.loop = cast("SimLoop", asyncio.get_running_loop())
        self.settings = Settings(**settings)
        self.trouble = StoreTrouble(self.loop.rng)
        self.commits: list[tuple[Sequence[Op], Sequence[Outcome]]] = []
        self.memory = MemoryStore()
        self.store = WatchedStore(
            self.memory, self.trouble, lambda _shard, _epoch, ops, outcomes: self.commits.append((ops, outcomes))
        )
        self.harness: Harness = SimHarness()
        self.scripts: dict[str, Script] = {RUN: script or Script()}
        self.world = World(self.loop, self.scripts)
        self.threads = SimThreads(self.loop.rng, slow_s)
        self.pace = Pace()
        self.clock: Clock = self.loop  # of the drivers

    async def open(self, segments: Segments | None = None) -> Shard:
        return await Shard.open(
            self.store,
            0,
            "test",
            settings=self.settings,
            clock=self.loop,
            threads=SimThreads(self.loop.rng, self.threads.slow_s),
            segments=segments,
        )

    def driver(self, log: LogPort, name: str = "driver", run_id: str = RUN, home: str | None = None) -> Driver:
        async def history(_head: Head) -> Past:
            return Past()

        tools = Tools(
            log=log,
            clock=self.clock,
            providers={"sim": SimProvider(self.world, name)},
            harnesses={"sim": self.harness},
            agent_env={},
            history=history,
            lease_ttl_s=self.settings.lease_ttl_s,
            sandbox_return_s=30.0,
            home=home,
            pace=self.pace,
        )
        return Driver(run_id, tools, claimant(name))

    async def drive(self, log: LogPort, expected_epoch: int = 0, name: str = "driver") -> DriveEnd:
        return await self.driver(log, name).drive(expected_epoch, ClaimReason.START)

    def head(self, run_id: str = RUN) -> Head:
        stored = self.memory.read_run(run_id)
        assert stored is not None
        return stored[0]

    def log(self, run_id: str = RUN) -> list[bytes]:
        return [chunk for batch in self.memory.read_batches(run_id, 0, 1 << 40) for chunk in batch.chunks()]


async def started(stage: Stage) -> Shard:
    shard = await stage.open()
    assert isinstance(await shard.submit(create()), Created)
    assert isinstance(await shard.submit(claim()), Claimed)
    return shard
