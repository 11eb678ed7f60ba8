"""Keeps the actor `hooks` alive, and is the way to it: for the supervisor, which tells of ends, and for shards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.calls import Gone, call, find, kill
from actors.compose import load_attribute
from actors.names import HOOKS
from runtime.core.record import Head, RunSpec
from runtime.errors import InputInvalid, StoreUnavailable
from runtime.settings import Settings

log = logging.getLogger("outlast.supervisor")

ACTOR = "actors.hook_actor:create"  # by its path: the supervisor needs nothing of what it imports
PING_S = 2.0
PING_TIMEOUT_S = 2.0
HUNG_S = 10.0  # a hook that holds the interpreter for longer is ended with its process
COLD_S = 40.0
NAMES_S = 5.0
TELL_S = 20.0
FIRE_S = 10.0


class HookKeeper:
    """The one of a supervisor; an `engine.notices.Announcer`."""

    def __init__(self, settings: Settings, deployment: str, serve_node: str) -> None:
        """`serve_node`: where the file of webhooks is, and so the actor, if it can be there."""
        self.last: dict[str, Any] = {}
        self.alive = False
        self._settings = settings
        self._deployment = deployment
        self._serve_node = serve_node
        self._handle: Any = None
        self._give_up_at = 0.0

    async def turn(self) -> None:
        """Ping once, or make the actor; replace one that was silent for too long."""
        now = asyncio.get_running_loop().time
        if self._handle is None:
            found = find(HOOKS, self._settings.namespace)
            self._handle = found or self._make()
            self._give_up_at = now() + (HUNG_S if found else COLD_S)
        try:
            self.last = await call(HOOKS, self._handle.ping, timeout_s=PING_TIMEOUT_S)
            self.alive = True
            self._give_up_at = now() + HUNG_S
        except Gone:
            self.alive = False
            if now() >= self._give_up_at:
                log.warning("the process of hooks does not answer and is replaced")
                kill(self._handle)
                self._handle = None
        except InputInvalid as error:
            self.alive = False
            log.warning("hooks cannot be called: %s", error.message)
        await asyncio.sleep(PING_S if self.alive else PING_S / 4)

    def _make(self) -> Any:
        place: Any = "DEFAULT"
        if self._serve_node:
            place = NodeAffinitySchedulingStrategy(self._serve_node, soft=True)
        return load_attribute(ACTOR, "hooks")(self._settings, self._deployment, place)

    async def names(self) -> frozenset[str]:
        """See Announcer."""
        found: frozenset[str] = await self._ask("names", timeout_s=NAMES_S)
        return found

    async def tell(self, name: str, head: Head, spec: RunSpec) -> bool:
        """See Announcer."""
        settled: bool = await self._ask("tell", name, head, spec, timeout_s=TELL_S)
        return settled

    async def _ask(self, method: str, *args: Any, timeout_s: float) -> Any:
        if not self.alive:
            raise StoreUnavailable("The process of hooks does not answer yet.")
        return await call(HOOKS, getattr(self._handle, method), *args, timeout_s=timeout_s)


def sender(settings: Settings) -> Callable[[list[Any]], Awaitable[frozenset[str]]]:
    """Return how a shard sends events to the actor."""
    handle: Any = None

    async def send(events: list[Any]) -> frozenset[str]:
        nonlocal handle
        handle = handle or find(HOOKS, settings.namespace)
        if handle is None:
            raise StoreUnavailable("There is no process of hooks yet.")
        try:
            wanted: frozenset[str] = await call(HOOKS, handle.fire, events, timeout_s=FIRE_S)
        except Gone:
            handle = None
            raise
        return wanted

    return send
