"""The actor `hooks`: the one process that calls hooks and posts webhooks; there only if settings name any.

Nothing of a run depends on it. Shards send it what happened, the supervisor what has ended, both with a time of their
own; if it dies or stands still it is made anew, and what the store still owes is told then.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import Any

import ray

from actors.compose import hook_sets
from actors.light import allow_heavy
from actors.names import HOOKS
from actors.webhook_post import GONE, NoAnswer, Poster, body_of, webhook_id
from actors.webhooks_file import Endpoint, read_webhooks, stamp_of
from runtime.core.record import Head, RunSpec
from runtime.engine.hook_calls import HookCalls
from runtime.engine.hook_queue import HookEvent
from runtime.errors import InputInvalid
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
        self._endpoints: dict[str, Endpoint] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._trouble = ""

    async def fire(self, events: list[HookEvent]) -> frozenset[str]:
        """Take events to call hooks for; return which hooks there are. Raises InputInvalid."""
        calls = self._opened()
        calls.put(events)
        return calls.wanted

    async def names(self) -> frozenset[str]:
        """Return who is to be told of the ends of runs. Raises InputInvalid."""
        self._opened()
        self._read()
        endings = frozenset(ENDINGS.values())
        hooks = {HOOK + one.path for one in self._sets if one.names & endings}
        return frozenset(hooks | {WEBHOOK + name for name in self._endpoints})

    async def tell(self, name: str, head: Head, spec: RunSpec) -> bool:
        """Tell one of a run's end; return whether that is settled."""
        run = RunFacts.of(head, spec)
        if name.startswith(HOOK):
            await self._opened().ended(ENDINGS[head.status], head.run_id, run, name.removeprefix(HOOK))
            return True  # what it does with it is its own matter
        endpoint = self._endpoints.get(name.removeprefix(WEBHOOK))
        return endpoint is None or await self._post(endpoint, head, run)

    async def _post(self, endpoint: Endpoint, head: Head, run: RunFacts) -> bool:
        if self._poster is None:
            self._poster = Poster()
        try:
            status = await self._poster.post(endpoint, webhook_id(self._deployment, head.run_id), body_of(run))
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
        return {
            "pid": os.getpid(),
            "nodeId": ray.get_runtime_context().get_node_id(),
            "calls": [[*key, count] for key, count in sorted(calls.counts.items())],
            "posts": [[*key, count] for key, count in sorted(self._posts.items())],
            "dropped": calls.dropped,
            "trouble": self._trouble,
        }

    def _opened(self) -> HookCalls:
        if self._calls is None:
            self._sets = hook_sets(self._settings)
            self._calls = HookCalls(self._sets, TIMEOUT_S)
            self._calls.begin()
        return self._calls

    def _read(self) -> None:
        """Read the receivers if their file has changed. Raises InputInvalid while it was never read."""
        path = self._settings.webhooks_path
        if path is None:
            return
        stamp = stamp_of(path)
        if stamp is not None and stamp == self._stamp:
            return
        try:
            endpoints = read_webhooks(path)
        except InputInvalid as error:
            if error.message != self._trouble:
                log.warning("%s The receivers that were read before it hold.", error.message)
            self._trouble = error.message
            if self._stamp is None:
                raise
            return
        self._stamp, self._trouble = stamp, ""
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}


def create(settings: Settings, deployment: str, place: Any) -> Any:
    """Make the actor at `place` (a scheduling strategy of Ray), or return the one that has the name."""
    actor = ray.remote(**OPTIONS)(HookActor)
    options = {"name": HOOKS, "namespace": settings.namespace, "get_if_exists": True, "scheduling_strategy": place}
    return actor.options(**options).remote(settings, deployment)
