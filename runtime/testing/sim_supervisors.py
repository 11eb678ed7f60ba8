"""The supervisor of a simulated deployment: one production `Supervisor` after another, some of them at once (P6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from runtime.core.ids import shard_of
from runtime.core.record import Claimant
from runtime.core.retention import Retention
from runtime.engine.pruning import Pruner
from runtime.engine.reaping import Reaper, Report
from runtime.engine.returning import Orphans, give_back
from runtime.engine.supervisor import Supervisor
from runtime.errors import OutlastError
from runtime.settings import Settings
from runtime.testing.sim_fleet import Heard, SimFleet
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_net import Net, NoAnswer, Process
from runtime.testing.sim_sandbox import SimProvider
from runtime.testing.sim_shards import SimShardClient, SimShards
from runtime.testing.sim_world import World

TOLD_TIMEOUT_S = 5.0
BUDGET_S = 10.0  # of one reaped run; short, so that it is exceeded


class Office:
    """One life of the supervisor."""

    def __init__(
        self,
        process: Process,
        shards: dict[int, SimShardClient],
        supervisor: Supervisor,
        providers: dict[str, SimProvider],
    ) -> None:
        self.process = process
        self.shards = shards
        self.supervisor = supervisor
        self.providers = providers
        self.orphans = Orphans(self.shard, providers)
        self.reports: list[Report] = []  # of its reaper
        self.opened: asyncio.Future[None] = process.loop.create_future()

    def shard(self, run_id: str) -> SimShardClient:
        """Return the shard that serves the run."""
        return self.shards[shard_of(run_id, len(self.shards))]


class SimSupervisors:
    """Opens supervisors; `current` has the name."""

    def __init__(
        self,
        loop: SimLoop,
        net: Net,
        shards: SimShards,
        fleet: SimFleet,
        world: World,
        settings: Settings,
        heard: Heard,
    ) -> None:
        self.current: Office | None = None
        self.all: list[Office] = []
        self._loop = loop
        self._net = net
        self._shards = shards
        self._fleet = fleet
        self._world = world
        self._settings = settings
        self._heard = heard

    def open(self) -> None:
        """Start another supervisor under the name, whatever has it."""
        name = f"supervisor {len(self.all) + 1}"
        heard = partial(self._heard, name)
        shards = {shard: SimShardClient(self._shards, shard, heard) for shard in range(self._shards.count)}
        providers = {"sim": SimProvider(self._world, name)}
        supervisor = Supervisor(
            shards,
            self._fleet,
            providers,
            Claimant(claimant=f"claimant of {name}", actor_id=name),
            settings=self._settings,
            clock=self._loop,
            shard_of=lambda run_id: shards[shard_of(run_id, len(shards))],
        )
        office = self.current = Office(
            Process(self._loop, name), shards, supervisor, {"sim": SimProvider(self._world, name)}
        )
        self.all.append(office)
        office.process.start(self._live(office))

    async def _live(self, office: Office) -> None:
        await office.supervisor.open()
        office.opened.set_result(None)
        office.process.start(self._give_back_forever(office))
        office.process.start(self._end_orphans_forever(office))
        office.process.start(self._reap_forever(office))
        await office.supervisor.stale.wait()
        if self.current is office:
            self.current = None
        office.process.kill()

    async def _give_back_forever(self, office: Office) -> None:
        while True:
            await give_back(office.shards.values(), office.providers, self._loop)
            await asyncio.sleep(self._settings.reap_interval_s)

    async def _reap_forever(self, office: Office) -> None:
        retention = Retention(self._settings.log_retention_s, self._settings.transcript_retention_s)
        pruner = Pruner(office.supervisor, office.shards, self._loop, retention)
        reaper = Reaper(office.supervisor, office.shards, office.shard, self._loop, office.orphans, pruner)
        while True:
            office.reports.append(await reaper.sweep(budget_s=BUDGET_S))
            await asyncio.sleep(self._settings.reap_interval_s)

    async def _end_orphans_forever(self, office: Office) -> None:
        while True:
            await office.orphans.end()
            await asyncio.sleep(self._settings.reap_interval_s)

    async def tell(self, what: Callable[[Supervisor], Coroutine[Any, Any, Any]]) -> None:
        """Tell the supervisor something, best effort: what is lost is found by lease (I7)."""
        office = self.current
        if office is None:
            return

        async def serve() -> None:
            await asyncio.shield(office.opened)
            try:
                await what(office.supervisor)
            except OutlastError:
                return  # a takeover of a run that has ended

        try:
            await self._net.call(office.process, serve, TOLD_TIMEOUT_S)
        except NoAnswer:
            return
