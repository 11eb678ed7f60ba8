"""Keeps the log shards alive: makes them, pings them, replaces one that hangs (P6).

Killing and re-making a shard needs no store write: a second one is harmless (P11, P12). Ray itself restarts one whose
process died.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from actors import log_shard
from actors.calls import Gone, call, find, kill
from actors.names import shard_name
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

    def __init__(self, shard: int, settings: Settings) -> None:
        self.name = shard_name(shard)
        self.last: dict[str, Any] = {}
        self.alive = False
        self._shard = shard
        self._settings = settings
        self._handle: Any = None
        self._give_up_at = 0.0  # on the loop's clock: when a shard that does not answer is replaced

    def start(self) -> None:
        """Find the shard or make it; whether it answers is `turn`'s matter. Raises ValueError if others make it too."""
        found = find(self.name, self._settings.namespace)
        self._handle = found or log_shard.create(self._shard, self._settings, self.name)
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
        except Gone:
            self.alive = False
            if now() >= self._give_up_at:
                self._replace()
        except StoreError as error:
            self.alive = False
            log.warning("%s cannot serve: %s", self.name, error)
        await asyncio.sleep(PING_S if self.alive else PING_S / 4)

    def _replace(self) -> None:
        log.warning("%s does not answer and is replaced", self.name)
        kill(self._handle)
        self._handle = None
