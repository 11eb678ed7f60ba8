"""A supervisor over a real shard, and a fleet whose run actors do only what a test says."""

from __future__ import annotations

import asyncio

from unit.engine.stage import RUN, Stage, claim, claimant, create

from runtime.core.record import ClaimReason
from runtime.engine.concluding import DriveEnd
from runtime.engine.shard import Shard
from runtime.engine.supervisor import DriverDied, RunHandle, Supervisor
from runtime.testing.sim_loop import elapse
from runtime.testing.sim_sandbox import SimProvider


class Handle:
    """A run actor that does what the test says: nothing by itself."""

    def __init__(self, fleet: Fleet, run_id: str, expected_epoch: int, reason: ClaimReason) -> None:
        self.actor_id = f"actor-{len(fleet.made) + 1}"
        self.run_id = run_id
        self.expected_epoch = expected_epoch
        self.reason = reason
        self.killed = False
        self.receipt = True
        self.cancelled = 0
        self.end: asyncio.Future[DriveEnd] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        pass

    async def ended(self) -> DriveEnd:
        return await asyncio.shield(self.end)

    async def cancel(self) -> bool:
        self.cancelled += 1
        if not self.receipt:
            await elapse(3600.0)
        return True

    def kill(self) -> None:
        self.killed = True

    def die(self) -> None:
        self.end.set_exception(DriverDied(self.actor_id))
        self.end.exception()


class Fleet:
    """Makes handles; `fail` makes the next ones fail."""

    def __init__(self) -> None:
        self.made: list[Handle] = []
        self.living: dict[str, Handle] = {}
        self.fail: list[Exception] = []
        self.lost_in: set[str] = set()  # runs whose actor is looked for without an answer

    async def create(self, run_id: str, expected_epoch: int, reason: ClaimReason) -> RunHandle:
        if self.fail:
            raise self.fail.pop(0)
        handle = Handle(self, run_id, expected_epoch, reason)
        self.made.append(handle)
        self.living[run_id] = handle
        return handle

    async def find(self, run_id: str) -> RunHandle | None:
        if run_id in self.lost_in:
            await elapse(3600.0)
        return self.living.get(run_id)


class Acts:
    stage: Stage
    shard: Shard
    fleet: Fleet
    supervisor: Supervisor

    @classmethod
    async def open(cls, *, attempts: int = 8) -> Acts:
        self = cls()
        self.stage = Stage(takeover_attempts=attempts)
        self.shard = await self.stage.open()
        self.fleet = Fleet()
        self.supervisor = await self.another("supervisor")
        return self

    async def another(self, name: str) -> Supervisor:
        supervisor = Supervisor(
            {0: self.shard},
            self.fleet,
            {"sim": SimProvider(self.stage.world, name)},
            claimant(name),
            settings=self.stage.settings,
            clock=self.stage.loop,
            shard_of=lambda _run_id: self.shard,
        )
        await supervisor.open()
        return supervisor

    async def begun(self) -> Handle:
        """Start a run; return its driver, which has claimed."""
        await self.shard.submit(create())
        await self.supervisor.start(RUN)
        await elapse(0.1)
        await self.claimed(0)
        return self.fleet.made[-1]

    async def claimed(self, expected: int) -> None:
        await self.shard.submit(claim(expected, f"driver-{expected + 1}"))

    @property
    def made(self) -> list[tuple[int, str]]:
        return [(handle.expected_epoch, handle.reason.value) for handle in self.fleet.made]
