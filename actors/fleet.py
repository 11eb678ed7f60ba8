"""Run actors as the supervisor makes, finds, watches and ends them: `engine.fleet.Fleet` over Ray."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors import run_actor
from actors.calls import Gone, actor_id, call, find, kill
from actors.names import run_name
from actors.nodes import Nodes
from actors.warm import WarmWorkers
from runtime.core.record import ClaimReason
from runtime.engine.concluding import DriveEnd
from runtime.engine.fleet import DriverDied, NameTaken, NotStarted
from runtime.engine.placing import Node, Place
from runtime.engine.reasons import TO_END
from runtime.settings import Settings

CREATE_DEADLINE_S = 30.0  # an infeasible actor looks like a slow one; cold starts queue at about 2.5 a second
UNAVAILABLE_RETRY_S = 0.25


class RayRunHandle:
    """One run actor."""

    def __init__(self, run_id: str, handle: Any) -> None:
        self.name = run_name(run_id)
        self.actor_id = actor_id(handle)
        self.node_id: str | None = None
        self._handle = handle

    async def ready(self) -> None:
        """Return once it runs. Raises DriverDied; NotStarted if it does not within CREATE_DEADLINE_S: to Ray, an actor
        that no node has room for is only slow."""
        try:
            self.node_id = str(await call(self.name, self._handle.ready, timeout_s=CREATE_DEADLINE_S))
        except Gone as error:
            self.kill()
            if error.died:
                raise DriverDied(f"{self.name} died while it started") from error
            raise NotStarted(f"{self.name} did not start: {error.__cause__!r}") from error

    async def ended(self) -> DriveEnd:
        """Park until its drive ends; raises DriverDied once Ray says that its process is gone.

        Unavailable is not dead: then ask again. What does not answer at all is found by its lease."""
        while True:
            try:
                end: DriveEnd | None = await call(self.name, self._handle.ended)
            except Gone as error:
                if error.died:
                    raise DriverDied(self.name) from error
                await asyncio.sleep(UNAVAILABLE_RETRY_S)
                continue
            except Exception as error:
                self.kill()
                raise DriverDied(f"{self.name}: {error!r}") from error
            if end is not None:
                self.kill()
                return end

    async def cancel(self) -> bool:
        """Tell it that a cancel is recorded."""
        try:
            return bool(await call(self.name, self._handle.cancel))
        except Gone as error:
            raise DriverDied(self.name) from error

    def kill(self) -> None:
        """End it, best effort (P5)."""
        kill(self._handle)


class RayFleet:
    """Makes run actors in one namespace, and keeps workers warm for the next ones."""

    def __init__(self, settings: Settings, deployment: str, nodes: Nodes, warm: WarmWorkers) -> None:
        self._settings = settings
        self._deployment = deployment
        self._nodes = nodes
        self._warm = warm
        self._refills: set[asyncio.Task[bool]] = set()

    async def create(self, run_id: str, expected_epoch: int, reason: ClaimReason, place: Place) -> RayRunHandle:
        """Make `run:<runId>` there. Raises NameTaken, NotStarted."""
        options = {"scheduling_strategy": _strategy(place)}
        if reason in TO_END:
            options["memory"] = 0  # it ends a run, and must not wait for room (P21)
        try:
            handle = run_actor.create(
                run_id, expected_epoch, reason, self._settings, self._deployment, place.home, options
            )
        except ValueError as error:
            holder = await self.find(run_id)
            if holder is None:
                raise NotStarted(f"the name {run_name(run_id)} is being freed") from error
            raise NameTaken(holder) from error
        refill = asyncio.create_task(self._warm.refill(1, place.node_id))
        self._refills.add(refill)
        refill.add_done_callback(self._refills.discard)
        return RayRunHandle(run_id, handle)

    async def find(self, run_id: str) -> RayRunHandle | None:
        """Return the run's living actor."""
        handle = find(run_name(run_id), self._settings.namespace)
        return None if handle is None else RayRunHandle(run_id, handle)

    def nodes(self) -> list[Node]:
        """Return the nodes as they were last seen."""
        return self._nodes.seen()

    async def answers(self, node_id: str) -> bool:
        """Ask the node now."""
        return await self._nodes.answers(node_id)


def _strategy(place: Place) -> Any:
    """Return Ray's word for a place; always explicit: a detached actor can inherit its maker's placement group."""
    if place.node_id is None:
        return "SPREAD"
    if place.bound:
        return NodeAffinitySchedulingStrategy(place.node_id, soft=False)
    # What we count may be late: if the node is full by now, another one will do.
    return NodeAffinitySchedulingStrategy(place.node_id, soft=True, _spill_on_unavailable=True)
