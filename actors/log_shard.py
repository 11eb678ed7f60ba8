"""The actor `log:<n>`: one `engine.Shard`, its store and its OS threads.

Ray restarts it when its process dies; the supervisor replaces it when it hangs (P6). Either way the new process takes
a new epoch in the store before it serves, and the old one, should it wake up, is refused there (P11).
"""

from __future__ import annotations

from actors import light

light.keep_light()

import asyncio  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
from typing import Any  # noqa: E402

import msgspec  # noqa: E402
import ray  # noqa: E402

from actors.compose import load_attribute, open_store  # noqa: E402
from actors.segments import RaySegments  # noqa: E402
from actors.slots import runs_that_fit_now  # noqa: E402
from runtime.core.ops import Create, Finish, Op, Outcome  # noqa: E402
from runtime.engine.clock import StoreThreads, SystemClock  # noqa: E402
from runtime.engine.shard import Shard  # noqa: E402
from runtime.errors import ShardSuperseded, StoreRefused  # noqa: E402
from runtime.settings import Settings  # noqa: E402

log = logging.getLogger("outlast.shard")

# Parked reads of every replica and run, and one append per driver, all at once.
MAX_CONCURRENCY = 10_000
# By their paths: run actors import this module, too.
HOOK_QUEUE = "runtime.engine.hook_queue:HookQueue"
HOOK_SENDER = "actors.hook_keeper:sender"
ROOM_FOR_S = 5.0  # nodes come and go seldom
OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "lifetime": "detached",
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": MAX_CONCURRENCY,
}


class LogShard:
    """Answers `ports.ShardPort` calls; each opens the shard first if it is not open yet."""

    def __init__(self, shard: int, settings: Settings, deployment: str) -> None:
        logging.basicConfig(level=settings.log_level.upper())
        self._number = shard
        self._settings = settings
        self._deployment = deployment
        self._threads = StoreThreads()
        self._opening = asyncio.Lock()
        self._shard: Shard | None = None
        self._hooks: Any = None  # the queue of what hooks are told, and the task that sends it
        self._sending: asyncio.Task[None] | None = None
        self._room = (0, -ROOM_FOR_S)  # how many runs fit, and when that was asked

    async def _open(self) -> Shard:
        if self._shard is None:
            async with self._opening:
                if self._shard is None:
                    self._shard = await self._open_once()
        return self._shard

    async def _open_once(self) -> Shard:
        context = ray.get_runtime_context()
        opener = f"{context.get_actor_id()} on {context.get_node_id()}, pid {os.getpid()}"
        store = await self._threads.read(lambda: open_store(self._settings, self._deployment))
        shard = await Shard.open(
            store,
            self._number,
            opener,
            settings=self._settings,
            clock=SystemClock(),
            threads=self._threads,
            segments=RaySegments(),
        )
        if self._settings.hooks:
            self._hooks = load_attribute(HOOK_QUEUE, "hooks")(
                shard.record, load_attribute(HOOK_SENDER, "hooks")(self._settings)
            )
            self._sending = asyncio.create_task(self._hooks.run())
            shard.story.listener = self._hooks.hear
        return shard

    async def ping(self) -> dict[str, Any]:
        """Return who serves."""
        shard = await self._open()
        return {"epoch": shard.epoch, "pid": os.getpid(), "nodeId": ray.get_runtime_context().get_node_id()}

    async def submit(self, op: Op) -> Outcome:
        """See `ports.ShardPort.submit`. Without OUTLAST_MAX_RUNS, a creation is bound by what the cluster bears now.
        If somebody is to be told of ends, that is stored with each."""
        if isinstance(op, Create) and not op.max_runs and not op.resumes:
            op = msgspec.structs.replace(op, max_runs=await self._runs_that_fit())
        if self._settings.tells and (isinstance(op, Finish) or (isinstance(op, Create) and op.resumes)):
            op = msgspec.structs.replace(op, tell=True)
        outcome: Outcome = await self._forward("submit", op)
        return outcome

    async def stats(self) -> dict[str, Any]:
        """See `ports.ShardPort.stats`, and `hook_events_dropped`."""
        stats: dict[str, Any] = await self._forward("stats")
        return stats | {"hook_events_dropped": self._hooks.dropped if self._hooks is not None else 0}

    async def _runs_that_fit(self) -> int:
        now = asyncio.get_running_loop().time()
        if now - self._room[1] >= ROOM_FOR_S:
            self._room = (await asyncio.to_thread(runs_that_fit_now), now)
        return self._room[0]

    async def _forward(self, method: str, *args: Any) -> Any:
        try:
            shard = await self._open()
            return await getattr(shard, method)(*args)
        except ShardSuperseded:
            asyncio.get_running_loop().call_later(0.5, os._exit, 0)  # after the parked callers got their refusal
            raise
        except StoreRefused as error:
            log.warning("log:%d cannot serve: %s", self._number, error)
            raise


def _forwarder(method: str) -> Any:
    async def forward(self: LogShard, *args: Any) -> Any:
        return await self._forward(method, *args)

    forward.__name__ = method
    forward.__doc__ = f"See `ports.ShardPort.{method}`."
    return forward


FORWARDED = (
    "pulse",
    "read",
    "record",
    "batches",
    "attach",
    "set_viewers",
    "due",
    "unfinished",
    "destroy_pending",
    "reapable",
    "drop_log",
    "list_runs",
    "find_active",
    "list_thread",
    "stderr",
    "transcripts",
    "refusals",
)
for _name in FORWARDED:
    setattr(LogShard, _name, _forwarder(_name))


def create(shard: int, settings: Settings, name: str, place: Any, deployment: str) -> Any:
    """Make the shard's actor at `place` (a scheduling strategy of Ray), or return the one that has the name."""
    actor = ray.remote(**OPTIONS)(LogShard)
    options = {"name": name, "namespace": settings.namespace, "get_if_exists": True, "scheduling_strategy": place}
    return actor.options(**options).remote(shard, settings, deployment)
