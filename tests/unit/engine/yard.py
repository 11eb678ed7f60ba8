"""A run with a TTL, a reaper, and who else is there."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from msgspec.structs import replace
from unit.engine.fleet_by_hand import Acts
from unit.engine.stage import RUN, create, finish

from runtime.core.ops import Note
from runtime.core.record import Limits, Status
from runtime.core.retention import Retention
from runtime.engine.concluding import DriveEnd
from runtime.engine.pruning import Pruner
from runtime.engine.reaping import Reaper, Report
from runtime.engine.returning import Orphans
from runtime.ports import ShardPort
from runtime.testing.sim_loop import elapse

TTL_S = 60


class Yard:
    """A run with a TTL and its driver, a gateway replica that counts viewers, and a reaper."""

    acts: Acts
    reaper: Reaper
    orphans: Orphans
    pruner: Pruner
    replica: asyncio.Task[None]

    def __init__(self) -> None:
        self.number = 0
        self.retention = Retention(0, 0)

    @classmethod
    async def open(cls, ttl_s: int | None = TTL_S, **how: Any) -> Yard:
        self = cls()
        self.acts = await Acts.open(lease_ttl_s=3600.0, **how)
        self.reaper = self.another()
        self.replica = asyncio.create_task(self._count())
        await self.acts.shard.submit(create(limits=Limits(detached_ttl_s=ttl_s)))
        await self.acts.supervisor.start(RUN)
        while not self.acts.fleet.made:
            await elapse(0.1)
        await self.acts.claimed(0)
        return self

    def another(self, shard: Any = None) -> Reaper:
        shard = cast("ShardPort", shard or self.acts.shard)
        self.orphans = Orphans(lambda _run_id: shard, {})
        supervisor, shards, clock = self.acts.supervisor, {0: shard}, self.acts.stage.loop
        self.pruner = Pruner(supervisor, shards, clock, self.retention)
        return Reaper(supervisor, shards, lambda _run_id: shard, clock, self.orphans, self.pruner)

    async def _count(self) -> None:
        while True:
            self.number += 1
            await self.acts.shard.set_viewers("replica", self.number, {})
            await elapse(1.0)

    async def end(self, status: Status = Status.COMPLETED, *, given_back: bool = True, keep_s: int = 0) -> None:
        """Let the driver end the run."""
        head = self.acts.stage.head()
        op = finish(head.next_seq, epoch=head.driver_epoch, status=status)
        await self.acts.shard.submit(replace(op, keep_s=keep_s))
        if given_back and not keep_s:
            await self.acts.shard.submit(Note(run_id=RUN, epoch=head.driver_epoch, destroy_pending=False))
        if not self.acts.fleet.made[-1].end.done():
            self.acts.fleet.made[-1].end.set_result(DriveEnd("finished"))

    async def close(self) -> None:
        self.replica.cancel()
        await self.acts.supervisor.close()


def told(report: Report) -> list[tuple[str, str, str | None]]:
    """Return the lines of a report."""
    return [(run.run_id, run.outcome.value, run.status) for run in report.runs]
