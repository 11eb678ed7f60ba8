"""Run actors and supervisors of a simulated deployment: production drivers, each in a process of its own.

As with Ray: a name leads to the newest actor; killing is best effort, so an older one may live on and write on until
the store refuses it; the death of a process is noticed soon by whoever waits for its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from runtime.core.ids import shard_of
from runtime.core.record import Claimant, ClaimReason, Head
from runtime.engine.checkpointing import Pace
from runtime.engine.concluding import DriveEnd
from runtime.engine.driver import Driver
from runtime.engine.fleet import DriverDied, NameTaken
from runtime.engine.placing import Node, Place
from runtime.engine.tools import Past, Tools
from runtime.settings import Settings
from runtime.testing.sim_agent import SimHarness
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_net import Net, NoAnswer, Process
from runtime.testing.sim_sandbox import SimProvider
from runtime.testing.sim_shards import SimShardClient, SimShards
from runtime.testing.sim_world import World

CALL_TIMEOUT_S = 600.0  # of `ended`, which parks as long as the drive takes
READY_TIMEOUT_S = 30.0

Heard = Callable[[str, str, tuple[Any, ...], Any], None]


class Actor:
    """One run actor: a process, a driver in it, and how its drive ended."""

    def __init__(self, process: Process, run_id: str, driver: Driver) -> None:
        self.process = process
        self.run_id = run_id
        self.driver = driver
        self.killed = False
        self.end: asyncio.Future[DriveEnd] = process.loop.create_future()


class SimFleet:
    """Implements `Fleet`; also what the chaos of a simulation picks its victims from."""

    def __init__(
        self, loop: SimLoop, net: Net, shards: SimShards, world: World, settings: Settings, heard: Heard
    ) -> None:
        self.actors: list[Actor] = []
        self.spared = 0.0  # share of kills that do nothing
        self.pace = Pace()  # of checkpoints
        self.cold_s = 0.05  # longest start of an actor
        self._names: dict[str, Actor] = {}
        self._loop = loop
        self._net = net
        self._shards = shards
        self._world = world
        self._settings = settings
        self._heard = heard

    async def create(self, run_id: str, expected_epoch: int, reason: ClaimReason, place: Place) -> SimRunHandle:
        """Make the run's actor. Raises NameTaken while an actor that nobody has killed has the name."""
        del place
        await self._net.way()
        holder = self._names.get(run_id)
        if holder is not None and holder.process.alive and not holder.killed:
            raise NameTaken(SimRunHandle(self, self._net, holder))
        process = Process(self._loop, f"run {run_id} actor {len(self.actors) + 1}")
        actor = Actor(process, run_id, Driver(run_id, self._tools(process.name, run_id), _claimant(process.name)))
        self.actors.append(actor)
        self._names[run_id] = actor
        process.start(self._live(actor, expected_epoch, reason))
        return SimRunHandle(self, self._net, actor)

    async def find(self, run_id: str) -> SimRunHandle | None:
        """Return the actor that has the name, unless it is dead."""
        await self._net.way()
        actor = self._names.get(run_id)
        if actor is None or actor.killed or not actor.process.alive:
            return None
        return SimRunHandle(self, self._net, actor)

    def nodes(self) -> Sequence[Node]:
        """Return none: there is one world, and every process reaches all of it."""
        return ()

    async def answers(self, node_id: str) -> bool:
        """Return True."""
        return bool(node_id)

    def kill(self, actor: Actor) -> None:
        """Try to end an actor. Its name is free at once, whatever becomes of its process."""
        actor.killed = True
        if self._loop.rng.random() >= self.spared:
            actor.process.kill()

    def living(self) -> list[Actor]:
        """Return the actors that were not killed and whose drive goes on."""
        return [actor for actor in self.actors if actor.process.alive and not actor.end.done()]

    async def _live(self, actor: Actor, expected_epoch: int, reason: ClaimReason) -> None:
        await asyncio.sleep(self.cold_s * self._loop.rng.random())
        try:
            actor.end.set_result(await actor.driver.drive(expected_epoch, reason))
        except Exception:
            actor.process.kill()
            raise

    def _tools(self, process: str, run_id: str) -> Tools:
        async def history(_head: Head) -> Past:
            return Past()

        def heard(method: str, args: tuple[Any, ...], value: Any) -> None:
            self._heard(process, method, args, value)

        return Tools(
            log=SimShardClient(self._shards, shard_of(run_id, self._shards.count), heard),
            clock=self._loop,
            providers={"sim": SimProvider(self._world, process)},
            harnesses={"sim": SimHarness()},
            agent_env={},
            history=history,
            lease_ttl_s=self._settings.lease_ttl_s,
            sandbox_return_s=self._settings.sandbox_return_s,
            pace=self.pace,
        )


def _claimant(process: str) -> Claimant:
    return Claimant(claimant=f"claimant of {process}", actor_id=process)


class SimRunHandle:
    """Implements `RunHandle`."""

    def __init__(self, fleet: SimFleet, net: Net, actor: Actor) -> None:
        self.actor = actor
        self.actor_id = actor.process.name
        self.node_id: str | None = None
        self._fleet = fleet
        self._net = net

    async def ready(self) -> None:
        """Return once it runs. Raises DriverDied."""

        async def ready() -> None:
            pass

        try:
            await self._net.call(self.actor.process, ready, READY_TIMEOUT_S)
        except NoAnswer as error:
            self.kill()
            raise DriverDied(self.actor_id) from error

    async def ended(self) -> DriveEnd:
        """Park until its drive has ended. Raises DriverDied."""

        async def ended() -> DriveEnd:
            return await asyncio.shield(self.actor.end)

        while True:
            try:
                end = await self._net.call(self.actor.process, ended, CALL_TIMEOUT_S)
            except NoAnswer as error:
                if error.died:
                    raise DriverDied(self.actor_id) from error
                await asyncio.sleep(0.25)
            else:
                self.kill()
                return end

    async def cancel(self) -> bool:
        """Tell it that a cancel is recorded. Raises DriverDied."""

        async def look() -> bool:
            driver = self.actor.driver
            return self.actor.end.done() or driver.ending or await driver.look()

        try:
            return await self._net.call(self.actor.process, look, CALL_TIMEOUT_S)
        except NoAnswer as error:
            raise DriverDied(self.actor_id) from error

    async def emit(self, name: str, value: Any, emit_id: str) -> int:
        """Append a live chunk. Raises NoAnswer, LogClosedError."""
        return await self._net.call(
            self.actor.process, lambda: self.actor.driver.emit(name, value, emit_id), CALL_TIMEOUT_S
        )

    def kill(self) -> None:
        """End it, best effort."""
        self._fleet.kill(self.actor)
