"""Keeps the log shards alive: makes them, pings them, replaces one that hangs (P6).

Killing and re-making a shard needs no store write: a second one is harmless (P11, P12). Ray itself restarts one whose
process died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors import log_shard
from actors.calls import Gone, call, find, kill
from actors.names import shard_name
from actors.nodes import Nodes
from runtime.engine.placing import Node
from runtime.errors import StoreError
from runtime.settings import Settings

log = logging.getLogger("outlast.supervisor")

PING_S = 2.0
PING_TIMEOUT_S = 2.0
# Since its last answer: two pings that are missed, and the third not yet sent. A hung shard is gone within 10 s (P6).
HUNG_S = 6.0
# A shard that we made: a worker's cold start on a busy machine, and opening the store.
COLD_S = 40.0


class ShardKeeper:
    """Looks after one shard."""

    def __init__(self, shard: int, settings: Settings, deployment: str, nodes: Nodes, pinned: str | None) -> None:
        """`pinned`: the only node where the store can be opened (P12); None: any node will do."""
        self.name = shard_name(shard)
        self.last: dict[str, Any] = {}
        self.alive = False
        self._shard = shard
        self._settings = settings
        self._deployment = deployment
        self._nodes = nodes
        self._pinned = pinned
        self._handle: Any = None
        self._give_up_at = 0.0  # on the loop's clock: when a shard that does not answer is replaced

    def start(self) -> None:
        """Find the shard or make it; whether it answers is `turn`'s matter. Raises ValueError if others make it too."""
        found = find(self.name, self._settings.namespace)
        self._handle = found or log_shard.create(
            self._shard, self._settings, self.name, self._place(), self._deployment
        )
        self._give_up_at = asyncio.get_running_loop().time() + (HUNG_S if found else COLD_S)

    async def turn(self) -> None:
        """Ping once, or make the shard; replace one that was silent for too long."""
        now = asyncio.get_running_loop().time
        try:
            if self._handle is None:
                self.start()
            self.last = await call(self.name, self._handle.ping, timeout_s=PING_TIMEOUT_S)
            self.alive = True
            self._give_up_at = now() + HUNG_S
            if self._pinned is None and self._node_is(lambda node: node.drains):
                self._replace("is on a node that is being drained")
        except Gone:
            self.alive = False
            if now() >= self._give_up_at or self._node_is(lambda node: not node.answers):
                self._replace("does not answer")
        except StoreError as error:
            self.alive = False
            log.warning("%s cannot serve: %s", self.name, error)
        await asyncio.sleep(PING_S if self.alive else PING_S / 4)

    def _replace(self, why: str) -> None:
        log.warning("%s %s and is replaced", self.name, why)
        kill(self._handle)
        self._handle = None
        self.last = {}

    def _node_is(self, condition: Callable[[Node], bool]) -> bool:
        """Return whether the shard's node, as far as it is known, is so."""
        return any(condition(node) for node in self._nodes.seen() if node.node_id == self.last.get("nodeId"))

    def _place(self) -> Any:
        """Return where to make it: where its file is, or spread over the nodes that answer."""
        if self._pinned is not None:
            return NodeAffinitySchedulingStrategy(self._pinned, soft=False)
        usable = sorted(node.node_id for node in self._nodes.seen() if node.open)
        mine = usable[self._shard % len(usable)] if usable else self._nodes.mine
        return NodeAffinitySchedulingStrategy(mine, soft=True)
