"""One simulated deployment, wired together: the only place that knows all of its parts."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.ports import Store
from runtime.settings import Settings
from runtime.testing.sim_agent import Script
from runtime.testing.sim_check import Checker
from runtime.testing.sim_clients import Outside
from runtime.testing.sim_fleet import SimFleet
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_net import Net
from runtime.testing.sim_shards import SimShards
from runtime.testing.sim_store import StoreTrouble, WatchedStore
from runtime.testing.sim_supervisors import SimSupervisors
from runtime.testing.sim_world import World


class Deployment:
    """A store, a network, a world of sandboxes, the processes of Outlast, and everybody outside."""

    def __init__(self, loop: SimLoop, store: Store, scripts: Mapping[str, Script], settings: Settings) -> None:
        self.loop = loop
        self.store = store
        self.world = World(loop, scripts)
        self.checker = Checker(loop, store, self.world, settings)
        self.world.watch = self.checker.did
        self.trouble = StoreTrouble(loop.rng)
        self.net = Net(loop)
        watched = WatchedStore(store, self.trouble, self.checker.committed)
        self.shards = SimShards(loop, self.net, watched, settings)
        self.shards.served = self.checker.served
        heard = self.checker.heard
        self.fleet = SimFleet(loop, self.net, self.shards, self.world, settings, heard)
        self.supervisors = SimSupervisors(loop, self.net, self.shards, self.fleet, self.world, settings, heard)
        self.outside = Outside(loop, self.net, self.shards, self.supervisors, self.fleet, self.checker)

    def open(self) -> None:
        """Start the shards, the supervisor and a replica."""
        for shard in range(self.shards.count):
            self.shards.open(shard)
        self.supervisors.open()
        self.outside.open()
