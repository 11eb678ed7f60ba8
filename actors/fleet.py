"""Run actors as the supervisor makes, finds, watches and ends them: `engine.supervisor.Fleet` over Ray."""

from __future__ import annotations

import asyncio
from typing import Any

from actors import run_actor
from actors.calls import Gone, actor_id, call, find, kill
from actors.names import run_name
from actors.warm import WarmWorkers
from runtime.core.record import ClaimReason
from runtime.engine.concluding import DriveEnd
from runtime.engine.supervisor import DriverDied
from runtime.settings import Settings

CREATE_DEADLINE_S = 30.0  # an infeasible actor looks like a slow one; cold starts queue at about 2.5 a second
NAME_RETRY_S = 0.01
UNAVAILABLE_RETRY_S = 0.25


class RayRunHandle:
    """One run actor."""

    def __init__(self, run_id: str, handle: Any) -> None:
        self.name = run_name(run_id)
        self.actor_id = actor_id(handle)
        self._handle = handle

    async def ready(self) -> None:
        """Return once it runs; raises DriverDied if it does not within CREATE_DEADLINE_S."""
        try:
            await call(self.name, self._handle.ready, timeout_s=CREATE_DEADLINE_S)
        except Gone as error:
            self.kill()
            raise DriverDied(f"{self.name} did not start") from error

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

    def __init__(self, settings: Settings, deployment: str, warm: WarmWorkers) -> None:
        self._settings = settings
        self._deployment = deployment
        self._warm = warm
        self._refills: set[asyncio.Task[bool]] = set()

    async def create(self, run_id: str, expected_epoch: int, reason: ClaimReason) -> RayRunHandle:
        """Make `run:<runId>`. Whoever has the name is killed by its handle; a name is free within milliseconds."""
        handle = await self._create(run_id, expected_epoch, reason)
        refill = asyncio.create_task(self._warm.refill(1))
        self._refills.add(refill)
        refill.add_done_callback(self._refills.discard)
        return RayRunHandle(run_id, handle)

    async def _create(self, run_id: str, expected_epoch: int, reason: ClaimReason) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CREATE_DEADLINE_S
        while True:
            try:
                return run_actor.create(run_id, expected_epoch, reason, self._settings, self._deployment)
            except ValueError as error:
                if loop.time() > deadline:
                    raise DriverDied(f"the name {run_name(run_id)} stays taken") from error
            holder = find(run_name(run_id), self._settings.namespace)
            if holder is not None:
                kill(holder)
            await asyncio.sleep(NAME_RETRY_S)

    async def find(self, run_id: str) -> RayRunHandle | None:
        """Return the run's living actor."""
        handle = find(run_name(run_id), self._settings.namespace)
        return None if handle is None else RayRunHandle(run_id, handle)
