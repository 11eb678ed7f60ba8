"""The actor `supervisor`: `engine.Supervisor` with Ray's fleet, the shard keepers, the warm workers, and what gateway
replicas ask.

Ray restarts it when its process dies; a gateway replica replaces it when it hangs (P6). A new one takes a new epoch
in the store, so an old one that wakes up decides nothing, finds that out, and goes.
"""

from __future__ import annotations

from actors import light

light.keep_light()

import asyncio  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import ray  # noqa: E402

from actors.compose import providers  # noqa: E402
from actors.fleet import RayFleet  # noqa: E402
from actors.identity import this_claimant  # noqa: E402
from actors.names import SUPERVISOR, run_name, shard_of  # noqa: E402
from actors.shard_client import ShardClient  # noqa: E402
from actors.shard_keeper import ShardKeeper  # noqa: E402
from actors.warm import WarmWorkers  # noqa: E402
from runtime.engine import returning  # noqa: E402
from runtime.engine.clock import SystemClock  # noqa: E402
from runtime.engine.forever import forever  # noqa: E402
from runtime.engine.leaving import leave  # noqa: E402
from runtime.engine.supervisor import Supervisor  # noqa: E402
from runtime.settings import Settings  # noqa: E402

log = logging.getLogger("outlast.supervisor")

OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "lifetime": "detached",
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 1000,
}
DRAIN_TELL_S = 3.0  # a replica asks at least every 2 s
STATUS_S = 5.0  # whoever asks for the status has gone by then; nothing may pile up behind it
REPLICA_TTL_S = 6.0


class SupervisorActor:
    """Answers `ports.SupervisorPort` calls."""

    def __init__(self, settings: Settings, deployment: str) -> None:
        logging.basicConfig(level=settings.log_level.upper())
        self._settings = settings
        self._deployment = deployment
        self._opening = asyncio.Lock()
        self._supervisor: Supervisor | None = None
        self._keepers = [ShardKeeper(shard, settings) for shard in range(settings.shards)]
        self._tasks: list[asyncio.Task[Any]] = []
        self._draining = asyncio.Event()
        self._replicas: dict[str, float] = {}
        self._told: set[str] = set()
        self._all_told = asyncio.Event()  # set whenever one more was told

    async def _open(self) -> Supervisor:
        if self._supervisor is None:
            async with self._opening:
                if self._supervisor is None:
                    self._supervisor = await self._open_once()
        return self._supervisor

    async def _open_quietly(self) -> None:
        try:
            await self._open()
        except Exception:
            log.exception("the supervisor could not be opened yet")

    async def _open_once(self) -> Supervisor:
        settings = self._settings
        # The shards are looked after before anything is asked of them: one that hangs now must be replaced (P6).
        for keeper in self._keepers:
            self._tasks.append(asyncio.create_task(forever(keeper.name, keeper.turn)))
        shards = self._shards()
        warm = WarmWorkers(settings.warm_workers)
        supervisor = Supervisor(
            shards,
            RayFleet(settings, self._deployment, warm),
            providers(settings, self._deployment),
            this_claimant(),
            settings=settings,
            clock=SystemClock(),
            shard_of=lambda run_id: shards[shard_of(run_id, settings.shards)],
        )
        await supervisor.open()
        give_back = forever("giving back", partial(self._give_back, list(shards.values())))
        for work in (self._leave_when_stale(supervisor), warm.refill(settings.warm_workers), give_back):
            self._tasks.append(asyncio.create_task(work))
        return supervisor

    def _shards(self) -> dict[int, ShardClient]:
        return {shard: ShardClient(shard, self._settings.namespace) for shard in range(self._settings.shards)}

    async def _give_back(self, shards: list[ShardClient]) -> None:
        """Destroy what ended runs left, at once after a start and then every REAP_INTERVAL_S (P19)."""
        await returning.give_back(shards, providers(self._settings, self._deployment), SystemClock())
        await asyncio.sleep(self._settings.reap_interval_s)

    async def _leave_when_stale(self, supervisor: Supervisor) -> None:
        await supervisor.stale.wait()
        log.warning("this supervisor goes: a newer one decides")
        os._exit(0)

    async def start(self, run_id: str) -> None:
        """See ports.SupervisorPort."""
        await (await self._open()).start(run_id)

    async def ensure(self, run_id: str) -> None:
        """See ports.SupervisorPort."""
        await (await self._open()).ensure(run_id)

    async def cancel(self, run_id: str) -> None:
        """See ports.SupervisorPort."""
        await (await self._open()).cancel(run_id)

    async def takeover(self, run_id: str) -> int:
        """See ports.SupervisorPort."""
        return await (await self._open()).takeover(run_id)

    async def watch(self, replica: str, wait_s: float) -> bool:
        """See ports.SupervisorPort."""
        if self._supervisor is None and not self._opening.locked():
            # After a restart by Ray nobody else may ask for anything; and a replica's ping must not wait for the store.
            self._tasks.append(asyncio.create_task(self._open_quietly()))
        now = asyncio.get_running_loop().time()
        self._replicas[replica] = now
        try:
            async with asyncio.timeout(wait_s):
                await self._draining.wait()
        except TimeoutError:
            return False
        self._told.add(replica)
        self._all_told.set()
        return True

    async def drain(self) -> None:
        """See ports.SupervisorPort."""
        self._draining.set()
        now = asyncio.get_running_loop().time()
        living = {replica for replica, at in self._replicas.items() if now - at < REPLICA_TTL_S}
        try:
            async with asyncio.timeout(DRAIN_TELL_S):
                while not living <= self._told:
                    self._all_told.clear()
                    await self._all_told.wait()
        except TimeoutError:
            log.warning("%d replica(s) were not told of the drain", len(living - self._told))

    async def leave(self, within_s: float) -> int:
        """See `engine.leaving`; only `serve` asks for it, at its end."""
        shards = self._shards()
        return await leave(await self._open(), lambda run_id: shards[shard_of(run_id, len(shards))], within_s)

    async def status(self) -> dict[str, Any]:
        """See ports.SupervisorPort."""
        async with asyncio.timeout(STATUS_S):
            return await self._status(await self._open())

    async def _status(self, supervisor: Supervisor) -> dict[str, Any]:
        me = ray.get_runtime_context()
        actors = [{"name": SUPERVISOR, "nodeId": me.get_node_id(), "pid": os.getpid(), "alive": True}]
        actors += [
            {
                "name": keeper.name,
                "nodeId": keeper.last.get("nodeId"),
                "pid": keeper.last.get("pid"),
                "alive": keeper.alive,
            }
            for keeper in self._keepers
        ]
        actors += await self._run_actors(supervisor)
        tally = supervisor.tally
        return {
            "epoch": supervisor.epoch,
            "actors": actors,
            "takeovers": tally.takeovers,
            "takeoverSeconds": tally.takeover_seconds,
            "reasons": dict(tally.reasons),
            "exhausted": tally.exhausted,
        }

    async def _run_actors(self, supervisor: Supervisor) -> list[dict[str, Any]]:
        found = []
        watched = list(supervisor.watching)
        claimants = await asyncio.gather(*(supervisor.claim_of(run_id) for run_id in watched))
        for run_id, who in zip(watched, claimants, strict=True):
            entry: dict[str, Any] = {"name": run_name(run_id), "nodeId": None, "pid": None, "alive": who is not None}
            if who is not None:
                entry |= {"nodeId": who.node_id, "pid": who.pid}
            found.append(entry)
        return found

    async def settings(self) -> Settings:
        """Return the instance's settings, for Python drivers that join it."""
        return self._settings

    async def ping(self) -> int:
        """Return the supervisor's epoch."""
        return (await self._open()).epoch


def create(settings: Settings, deployment: str) -> Any:
    """Make the supervisor's actor, or return the one that there is."""
    actor = ray.remote(**OPTIONS)(SupervisorActor)
    options = {"name": SUPERVISOR, "namespace": settings.namespace, "get_if_exists": True}
    return actor.options(**options).remote(settings, deployment)
