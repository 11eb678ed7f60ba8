"""One simulated deployment, wired together: the only place that knows all of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runtime.ports import Store
from runtime.settings import Settings
from runtime.testing.sim_agent import Script
from runtime.testing.sim_check import Checker
from runtime.testing.sim_clients import Outside
from runtime.testing.sim_fleet import SimFleet
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_net import Net
from runtime.testing.sim_postgres import SimPostgres
from runtime.testing.sim_shards import SimShards
from runtime.testing.sim_store import Crossing, StoreTrouble, WatchedStore
from runtime.testing.sim_supervisors import SimSupervisors
from runtime.testing.sim_world import World


class Deployment:
    """A store, a network, a world of sandboxes, the processes of Outlast, and everybody outside."""

    def __init__(self, loop: SimLoop, store: Store | None, scripts: Mapping[str, Script], settings: Settings) -> None:
        """Without a `store` there is a PostgreSQL server."""
        self.loop = loop
        self.world = World(loop, scripts)
        self.trouble = StoreTrouble(loop.rng)
        self.crossing = Crossing(loop, self._write)
        self.net = Net(loop)
        self._postgres: SimPostgres | None = None
        if store is None:
            self._postgres = SimPostgres(loop, settings.shards, self.trouble, self.crossing, self._write)
            store = self._postgres.truth
        self.store = store
        self.checker = Checker(loop, self.store, self.world, settings)
        self.world.watch = self.checker.did
        if self._postgres is not None:
            self._postgres.went_back = self.checker.went_back
        self.shards = SimShards(loop, self.net, self._open_store(), self.crossing, settings)
        self.shards.served = self.checker.served
        heard = self.checker.heard
        self.fleet = SimFleet(loop, self.net, self.shards, self.world, settings, heard)
        self.supervisors = SimSupervisors(loop, self.net, self.shards, self.fleet, self.world, settings, heard)
        self.outside = Outside(loop, self.net, self.shards, self.supervisors, self.fleet, self.checker)

    @property
    def unsettled(self) -> bool:
        """Return whether a process is held, or a message is under way that comes late."""
        late = self.net.late + self.world.late + (self._postgres.late if self._postgres else 0)
        return self.loop.holding or late > 0

    def lose_the_end(self, within_s: float) -> None:
        """Have the server, if the store is one, lose what is stored from now on until then (P10)."""
        if self._postgres is not None:
            self._postgres.lose_the_end(within_s)

    def _write(self, text: str) -> None:
        self.checker.write(text)

    def _open_store(self) -> Callable[[], Store]:
        if self._postgres is not None:
            self._postgres.server.committed = lambda note: self.checker.committed(*note)
            return self._postgres.open
        watched = WatchedStore(self.store, self.trouble, self.checker.committed)
        return lambda: watched

    def open(self) -> None:
        """Start the shards, the supervisor and a replica."""
        for shard in range(self.shards.count):
            self.shards.open(shard)
        self.supervisors.open()
        self.outside.open()
