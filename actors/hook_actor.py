"""The actor `hooks`: the one process that calls hooks and posts webhooks; there only if settings name any.

Nothing of a run depends on it. Shards send it what happened, the supervisor what has ended, both with a time of their
own; if it dies or stands still it is made anew, and what the store still owes is told then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, OrderedDict
from typing import Any

import ray

from actors.compose import hook_sets
from actors.light import allow_heavy
from actors.names import HOOKS
from actors.receivers import Receivers
from actors.webhook_post import GONE, NoAnswer, Poster, body_of, webhook_id
from actors.webhooks_file import Endpoint
from runtime.core.record import Head, RunSpec
from runtime.engine.hook_calls import HookCalls
from runtime.engine.hook_queue import HookEvent
from runtime.hooks import ENDINGS, TIMEOUT_S, HookSet, RunFacts
from runtime.settings import Settings

log = logging.getLogger("outlast.hooks")

OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "lifetime": "detached",
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 1000,
}
HOOK, WEBHOOK = "hook:", "webhook:"
UNKNOWN = f"{WEBHOOK}?"  # whoever else there may be, while that is not known: no name of a receiver, and never told
FULL_S = 10.0  # that too many hooks hang, before the process is given up
MOST_SETTLED = 10_000  # that are remembered


def leave() -> None:
    """End this process with what hangs in it; Ray makes it anew."""
    os._exit(1)


class HookActor:
    """Calls and posts. Its methods answer others of ours only."""

    def __init__(self, settings: Settings, deployment: str) -> None:
        logging.basicConfig(level=settings.log_level.upper())
        allow_heavy()
        self._settings = settings
        self._deployment = deployment
        self._sets: list[HookSet] = []
        self._calls: HookCalls | None = None
        self._poster: Poster | None = None
        self._posts: Counter[tuple[str, str]] = Counter()
        self._receivers = Receivers(settings.webhooks_path)
        self._under_way: dict[tuple[str, str, int], asyncio.Task[bool]] = {}
        self._settled: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    async def fire(self, events: list[HookEvent]) -> frozenset[str]:
        """Take events to call hooks for; return which hooks there are. Raises InputInvalid."""
        calls = self._opened()
        calls.put(events)
        return calls.wanted

    async def names(self) -> frozenset[str]:
        """Return who is to be told of the ends of runs. Raises InputInvalid."""
        self._opened()
        self._receivers.look()
        endings = frozenset(ENDINGS.values())
        hooks = {HOOK + one.path for one in self._sets if one.names & endings}
        webhooks = {WEBHOOK + name for name in self._receivers.names}
        return frozenset(hooks | webhooks if self._receivers.known else hooks | webhooks | {UNKNOWN})

    async def tell(self, name: str, head: Head, spec: RunSpec) -> bool:
        """Tell one of a run's end; return whether that is settled. Whoever asks again while that is under way waits for
        the same call, and who asks after it has the answer."""
        key = (name, head.run_id, head.generation)
        if key in self._settled:
            return True
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._tell(name, head, spec), name=f"tell {name}")
            task.add_done_callback(lambda done: self._told(key, done))
        return await asyncio.shield(task)

    def _told(self, key: tuple[str, str, int], task: asyncio.Task[bool]) -> None:
        del self._under_way[key]
        if task.cancelled() or task.exception() is not None or not task.result():
            return
        self._settled[key] = None
        if len(self._settled) > MOST_SETTLED:
            self._settled.popitem(last=False)

    async def _tell(self, name: str, head: Head, spec: RunSpec) -> bool:
        run = RunFacts.of(head, spec)
        if name.startswith(HOOK):  # what it does with it is its own matter
            return await self._opened().ended(ENDINGS[head.status], head.run_id, run, name.removeprefix(HOOK))
        self._receivers.look()
        endpoint = self._receivers.find(name.removeprefix(WEBHOOK))
        if endpoint is None:
            return name != UNKNOWN and self._receivers.known
        return await self._post(endpoint, head, run)

    async def _post(self, endpoint: Endpoint, head: Head, run: RunFacts) -> bool:
        if self._poster is None:
            self._poster = Poster()
        id_ = webhook_id(self._deployment, head.run_id, head.generation)
        try:
            status = await self._poster.post(endpoint, id_, body_of(run))
        except NoAnswer as error:
            self._posts[endpoint.name, "failed"] += 1
            log.info("webhook %s did not take the end of run %s: %s", endpoint.name, head.run_id, error)
            return False
        taken = 200 <= status < 300  # noqa: PLR2004 - what HTTP calls success
        self._posts[endpoint.name, "taken" if taken else "refused" if status == GONE else "failed"] += 1
        if not taken:
            log.info("webhook %s answered the end of run %s with %d", endpoint.name, head.run_id, status)
        return taken or status == GONE

    async def ping(self) -> dict[str, Any]:
        """Return who serves, and what was done: `calls` and `posts` as [name, result, count]."""
        calls = self._opened()
        self._leave_if_full()
        return {
            "pid": os.getpid(),
            "nodeId": ray.get_runtime_context().get_node_id(),
            "calls": [[*key, count] for key, count in sorted(calls.counts.items())],
            "posts": [[*key, count] for key, count in sorted(self._posts.items())],
            "dropped": calls.dropped,
            "trouble": self._receivers.trouble,
        }

    def _leave_if_full(self) -> None:
        if self._opened().full_s() > FULL_S:
            log.error("too many hooks hang, and no more are called: the process of hooks is given up and made anew")
            leave()

    def _opened(self) -> HookCalls:
        if self._calls is None:
            self._sets = hook_sets(self._settings)
            self._calls = HookCalls(self._sets, TIMEOUT_S)
            self._calls.begin()
        return self._calls


def create(settings: Settings, deployment: str, place: Any) -> Any:
    """Make the actor at `place` (a scheduling strategy of Ray), or return the one that has the name."""
    actor = ray.remote(**OPTIONS)(HookActor)
    options = {"name": HOOKS, "namespace": settings.namespace, "get_if_exists": True, "scheduling_strategy": place}
    return actor.options(**options).remote(settings, deployment)
