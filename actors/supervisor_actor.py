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
import time  # noqa: E402
from collections.abc import Awaitable, Callable  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import msgspec  # noqa: E402
import ray  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

from actors import draining  # noqa: E402
from actors.compose import providers  # noqa: E402
from actors.errands import Errands, hosts  # noqa: E402
from actors.everywhere import Everywhere, node_of  # noqa: E402
from actors.fleet import RayFleet  # noqa: E402
from actors.head_room import HeadRoom  # noqa: E402
from actors.hook_keeper import HookKeeper  # noqa: E402
from actors.identity import this_claimant  # noqa: E402
from actors.names import HOOKS, SUPERVISOR, run_name, shard_of  # noqa: E402
from actors.nodes import Nodes  # noqa: E402
from actors.shard_client import ShardClient  # noqa: E402
from actors.shard_keeper import ShardKeeper  # noqa: E402
from actors.warm import WarmWorkers  # noqa: E402
from runtime.core.retention import Retention  # noqa: E402
from runtime.engine import returning  # noqa: E402
from runtime.engine.clock import SystemClock  # noqa: E402
from runtime.engine.forever import forever  # noqa: E402
from runtime.engine.leaving import leave  # noqa: E402
from runtime.engine.notices import Nobody, Notices  # noqa: E402
from runtime.engine.pruning import Pruner  # noqa: E402
from runtime.engine.reaping import Reaper  # noqa: E402
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
ROOM_LOOK_S = 1.0
DRAIN_LOOK_S = 0.5
TELL_S = 1.0  # how often it is looked whose end is to be told
REAP_S = 4.0  # of one run, where somebody waits for the report; whoever asked has gone after 30 s


class SupervisorActor:
    """Answers `ports.SupervisorPort` calls."""

    def __init__(self, settings: Settings, deployment: str, serve_node: str = "") -> None:
        """`serve_node`: the node of `outlast serve`, where the data directory is."""
        logging.basicConfig(level=settings.log_level.upper())
        self._settings = settings
        self._deployment = deployment
        self._serve_node = serve_node
        self._opening = asyncio.Lock()
        self._supervisor: Supervisor | None = None
        self._reaper: Reaper | None = None
        self._pruner: Pruner | None = None
        self._notices: Notices | None = None
        self._hooks = HookKeeper(settings, deployment, serve_node) if settings.tells else None
        known = self._known = providers(settings, deployment)
        errands = Errands(settings, deployment)
        self._nodes = Nodes(errands, hosts(known), settings.namespace)
        self._providers = Everywhere(known, self._nodes.seen, errands)
        pinned = serve_node if settings.store == "sqlite" and serve_node else None
        self._keepers = [
            ShardKeeper(shard, settings, deployment, self._nodes, pinned) for shard in range(settings.shards)
        ]
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
        await self._nodes.look()
        for keeper in self._keepers:
            self._tasks.append(asyncio.create_task(forever(keeper.name, keeper.turn)))
        shards = self._shards()
        warm = WarmWorkers(settings.warm_workers, self._nodes)
        supervisor = Supervisor(
            shards,
            RayFleet(settings, self._deployment, self._nodes, warm),
            self._providers,
            this_claimant(),
            settings=settings,
            clock=SystemClock(),
            shard_of=partial(_shard_for, shards),
        )
        await supervisor.open()
        shard = partial(_shard_for, shards)
        orphans = returning.Orphans(shard, self._providers)
        retention = Retention(settings.log_retention_s, settings.transcript_retention_s)
        pruner = self._pruner = Pruner(supervisor, shards, SystemClock(), retention)
        reaper = self._reaper = Reaper(supervisor, shards, shard, SystemClock(), orphans, pruner)
        self._notices = Notices(supervisor, shards, shard, SystemClock(), self._hooks or Nobody())
        works: dict[str, Callable[[], Awaitable[None]]] = {
            "giving back": partial(self._give_back, list(shards.values())),
            "reaping": partial(self._reap, reaper),
            "telling of ends": partial(self._tell, self._notices),
            "looking for orphans": partial(self._end_orphans, orphans),
            "looking at the nodes": self._nodes.look_forever,
            "warming the nodes": warm.turn,
            "draining": partial(self._end_drains, supervisor),
            "head-room": partial(self._keep_room, supervisor, HeadRoom()),
        }
        if self._hooks is not None:
            works[HOOKS] = self._hooks.turn
        for name, turn in works.items():
            self._tasks.append(asyncio.create_task(forever(name, turn)))
        self._tasks.append(asyncio.create_task(self._leave_when_stale(supervisor)))
        return supervisor

    def _shards(self) -> dict[int, ShardClient]:
        return {shard: ShardClient(shard, self._settings.namespace) for shard in range(self._settings.shards)}

    async def _give_back(self, shards: list[ShardClient]) -> None:
        """Destroy what ended runs left, at once after a start and then every REAP_INTERVAL_S (P19)."""
        await returning.give_back(shards, self._providers, SystemClock())
        await asyncio.sleep(self._settings.reap_interval_s)

    async def _reap(self, reaper: Reaper) -> None:
        """End what nobody came back for, and remove what is not kept any more, as often (P22)."""
        await reaper.sweep()
        await asyncio.sleep(self._settings.reap_interval_s)

    async def _tell(self, notices: Notices) -> None:
        """Tell of the ends of runs; without anybody to tell, see that none waits for that."""
        await notices.turn()
        await asyncio.sleep(TELL_S if self._hooks is not None else self._settings.reap_interval_s)

    async def _end_orphans(self, orphans: returning.Orphans) -> None:
        """Destroy what no record tells of, as often; beside the above, since other nodes are asked (P22)."""
        await orphans.end()
        await asyncio.sleep(self._settings.reap_interval_s)

    async def _keep_room(self, supervisor: Supervisor, room: HeadRoom) -> None:
        """Ask an autoscaler for what we may need soon, and leave a node that is being drained."""
        if self._nodes.sealed(self._nodes.mine):
            log.warning("the supervisor's node is being drained: Ray makes another elsewhere")
            os._exit(0)
        await room.ask(len(supervisor.watching), self._nodes.seen())
        await asyncio.sleep(ROOM_LOOK_S)

    async def _end_drains(self, supervisor: Supervisor) -> None:
        """Have Ray drain what no run needs any more."""
        await asyncio.sleep(DRAIN_LOOK_S)
        await draining.seal_free(self._nodes, supervisor.needing(), time.time_ns() // 1_000_000)

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

    async def drain_node(self, name: str, within_s: float) -> dict[str, Any]:
        """See ports.SupervisorPort."""
        supervisor = await self._open()
        node_id = draining.find_node(self._nodes, name)
        if node_id is None:
            return draining.gone(name)
        draining.check_node(self._nodes, node_id, self._serve_node)
        await draining.drain_node(self._nodes, node_id, within_s)
        return draining.report(self._nodes, node_id, supervisor.watching, self._keepers)

    async def leave(self, within_s: float) -> int:
        """See `engine.leaving`; only `serve` asks for it, at its end."""
        shards = self._shards()
        return await leave(await self._open(), partial(_shard_for, shards), within_s)

    async def reap(self, dry_run: bool) -> dict[str, Any]:
        """See ports.SupervisorPort."""
        await self._open()
        assert self._reaper is not None
        report = await self._reaper.sweep(dry_run=dry_run, budget_s=REAP_S)
        told: dict[str, Any] = msgspec.to_builtins(report)
        return told

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
        if (hooks := self._hooks) is not None:
            place = {name: hooks.last.get(name) for name in ("nodeId", "pid")}
            actors.append({"name": HOOKS, **place, "alive": hooks.alive})
        actors += await self._run_actors(supervisor)
        tally = supervisor.tally
        return {
            "epoch": supervisor.epoch,
            "actors": actors,
            "takeovers": tally.takeovers,
            "takeoverSeconds": tally.takeover_seconds,
            "reasons": dict(tally.reasons),
            "exhausted": tally.exhausted,
            "reaped": dict(self._reaper.counts) if self._reaper else {},
            "pruned": dict(self._pruner.counts) if self._pruner else {},
            "hooks": self._hooks.last if self._hooks is not None else {},
            "notices": dict(self._notices.counts) if self._notices is not None else {},
        }

    async def _run_actors(self, supervisor: Supervisor) -> list[dict[str, Any]]:
        found = []
        watched = dict(supervisor.watching)
        claimants = await asyncio.gather(*(supervisor.claim_of(run_id) for run_id in watched))
        for (run_id, one), who in zip(watched.items(), claimants, strict=True):
            entry: dict[str, Any] = {
                "name": run_name(run_id),
                "nodeId": one.node_id,
                "pid": None,
                "alive": who is not None and one.handle is not None,
                "waitsFor": one.waits_for or None,
            }
            if who is not None and one.handle is not None and who.actor_id == one.handle.actor_id:
                entry |= {"nodeId": who.node_id, "pid": who.pid}
            found.append(entry)
        return found

    async def node_of(self, provider: str, key: str) -> str:
        """See ports.SupervisorPort."""
        await self._open()
        return node_of(self._known[provider], key, self._nodes.seen())

    async def settings(self) -> Settings:
        """Return the instance's settings, for Python drivers that join it."""
        return self._settings

    async def ping(self) -> int:
        """Return the supervisor's epoch."""
        return (await self._open()).epoch


def _shard_for(shards: dict[int, ShardClient], run_id: str) -> ShardClient:
    return shards[shard_of(run_id, len(shards))]


def create(settings: Settings, deployment: str, serve_node: str, node_id: str | None = None) -> Any:
    """Make the supervisor's actor on a node, this process's own by default, or return the one that there is.

    Ray may still believe in a node that is lost; the one we are on is alive. If that ends, Ray makes it elsewhere."""
    actor = ray.remote(**OPTIONS)(SupervisorActor)
    where = NodeAffinitySchedulingStrategy(node_id or ray.get_runtime_context().get_node_id(), soft=True)
    options = {
        "name": SUPERVISOR,
        "namespace": settings.namespace,
        "get_if_exists": True,
        "scheduling_strategy": where,
    }
    return actor.options(**options).remote(settings, deployment, serve_node)
