"""A supervisor over a real shard, and a fleet whose run actors do only what a test says."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import structs
from unit.engine.stage import RUN, Stage, claim, claimant, create, finish

from runtime.core.ops import Note
from runtime.core.record import ClaimReason, Launch
from runtime.engine.concluding import DriveEnd
from runtime.engine.fleet import DriverDied, NameTaken, NotStarted, RunHandle
from runtime.engine.placing import Node, Place
from runtime.engine.shard import Shard
from runtime.engine.supervisor import Supervisor
from runtime.ports import Capabilities
from runtime.testing.sim_loop import elapse
from runtime.testing.sim_sandbox import SimProvider


class Handle:
    """A run actor that does what the test says: nothing by itself."""

    def __init__(
        self, fleet: Fleet, run_id: str, expected_epoch: int, reason: ClaimReason, place: Place | None = None
    ) -> None:
        self.actor_id = f"actor-{len(fleet.made) + 1}"
        self.node_id: str | None = None
        self.fleet = fleet
        self.run_id = run_id
        self.expected_epoch = expected_epoch
        self.reason = reason
        self.killed = False
        self.receipt = True
        self.place = place or Place()
        self.starts = fleet.starts
        self.cancelled = 0
        self.end: asyncio.Future[DriveEnd] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        if not self.starts:
            await elapse(30.0)
            raise NotStarted("it hangs")
        self.node_id = self.place.node_id

    async def ended(self) -> DriveEnd:
        return await asyncio.shield(self.end)

    async def cancel(self) -> bool:
        self.cancelled += 1
        if not self.receipt:
            await elapse(3600.0)
        return True

    def kill(self) -> None:
        self.killed = True
        if self.fleet.living.get(self.run_id) is self:
            del self.fleet.living[self.run_id]

    def die(self) -> None:
        self.end.set_exception(DriverDied(self.actor_id))
        self.end.exception()
        self.kill()


class Fleet:
    """Makes handles; `fail` makes the next ones fail, and without `starts` they never come up."""

    def __init__(self) -> None:
        self.made: list[Handle] = []
        self.living: dict[str, Handle] = {}
        self.fail: list[Exception] = []
        self.lost_in: set[str] = set()  # runs whose actor is looked for without an answer
        self.starts = True
        self.asleep: asyncio.Event | None = None  # a create sleeps until it is set
        self.seen: list[Node] = []
        self.unseeing: list[Exception] = []  # what the next looks at the nodes raise
        self.silent: set[str] = set()  # nodes that do not answer, although `seen` does not know yet

    def nodes(self) -> list[Node]:
        if self.unseeing:
            raise self.unseeing.pop()
        return self.seen

    async def answers(self, node_id: str) -> bool:
        if node_id in self.silent:
            self.seen = [
                structs.replace(node, answers=False) if node.node_id == node_id else node for node in self.seen
            ]
        return node_id not in self.silent

    async def create(self, run_id: str, expected_epoch: int, reason: ClaimReason, place: Place) -> RunHandle:
        if self.asleep is not None:
            await self.asleep.wait()
        if self.fail:
            raise self.fail.pop(0)
        if run_id in self.living:
            raise NameTaken(self.living[run_id])
        handle = Handle(self, run_id, expected_epoch, reason, place)
        self.made.append(handle)
        self.living[run_id] = handle
        return handle

    async def find(self, run_id: str) -> RunHandle | None:
        if run_id in self.lost_in:
            await elapse(3600.0)
        return self.living.get(run_id)


class BoundProvider(SimProvider):
    """A key is `<host>:<run id>`."""

    capabilities = Capabilities(one_host=True)

    def host(self, key: str) -> str:
        return key.partition(":")[0]


class Acts:
    stage: Stage
    bound: bool
    shard: Shard
    fleet: Fleet
    supervisor: Supervisor

    @classmethod
    async def open(cls, *, attempts: int = 8, bound: bool = False, **settings: Any) -> Acts:
        """`bound`: sandboxes are bound to the host that their key begins with."""
        self = cls()
        self.bound = bound
        self.stage = Stage(takeover_attempts=attempts, **settings)
        self.shard = await self.stage.open()
        self.fleet = Fleet()
        self.supervisor = await self.another("supervisor")
        return self

    async def another(self, name: str) -> Supervisor:
        supervisor = Supervisor(
            {0: self.shard},
            self.fleet,
            {"sim": (BoundProvider if self.bound else SimProvider)(self.stage.world, name)},
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
        await self.shard.submit(claim(expected, str(expected + 1)))  # by actor-1, actor-2, ...

    async def sandbox_on(self, host: str, epoch: int = 1) -> None:
        """Let the driver note that its sandbox is there."""
        await self.shard.submit(Note(run_id=RUN, epoch=epoch, sandbox_key=f"{host}:{RUN}", launch=Launch.INTENDED))

    async def finished(self, epoch: int = 1, keep_s: int = 0) -> None:
        """Let the driver end the run."""
        await self.shard.submit(structs.replace(finish(1, epoch=epoch), keep_s=keep_s))
        self.fleet.made[-1].end.set_result(DriveEnd("finished"))
        await elapse(0.1)

    async def another_run(self, run_id: str) -> None:
        """Start another run of the thread."""
        await self.shard.submit(create(run_id))
        await self.supervisor.start(run_id)

    @property
    def made(self) -> list[tuple[int, str]]:
        return [(handle.expected_epoch, handle.reason.value) for handle in self.fleet.made]

    @property
    def watching(self) -> dict[str, str | None]:
        return watching(self.supervisor)


def watching(supervisor: Supervisor) -> dict[str, str | None]:
    """Return run id -> actor id of what is watched; None while it is being made."""
    return {run: one.handle.actor_id if one.handle else None for run, one in supervisor.watching.items()}
