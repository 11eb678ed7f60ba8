"""Keeps the log shards alive: makes them, pings them, replaces one that hangs (P6).

Killing and re-making a shard needs no store write: a second one is harmless (P11, P12). Ray itself restarts one whose
process died.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from actors import log_shard
from actors.calls import Gone, call, kill
from actors.names import shard_name
from runtime.errors import StoreError
from runtime.settings import Settings

log = logging.getLogger("outlast.supervisor")

PING_S = 2.0
MISSES = 2  # then it is replaced: a hung shard is gone within 10 s
PING_TIMEOUT_S = 2.0
MISSES_AT_START = 5  # a worker's cold start, and opening the store


class ShardKeeper:
    """Looks after one shard."""

    def __init__(self, shard: int, settings: Settings) -> None:
        self.name = shard_name(shard)
        self.last: dict[str, Any] = {}
        self.alive = False
        self._shard = shard
        self._settings = settings
        self._handle: Any = None
        self._missed = 0
        self._patience = MISSES_AT_START

    def start(self) -> None:
        """Make the shard or find it; whether it answers is `turn`'s matter. Raises ValueError if others make it too."""
        self._handle = log_shard.create(self._shard, self._settings, self.name)

    async def turn(self) -> None:
        """Ping once; replace the shard after MISSES in a row."""
        try:
            if self._handle is None:
                self.start()
            self.last = await call(self.name, self._handle.ping, timeout_s=PING_TIMEOUT_S)
            self._missed = 0
            self.alive = True
        except Gone:
            self._missed += 1
            self.alive = False
            if self._missed >= self._patience:
                self._replace()
        except StoreError as error:
            self.alive = False
            log.warning("%s cannot serve: %s", self.name, error)
        self._patience = MISSES if self.alive else self._patience
        await asyncio.sleep(PING_S if not self._missed else PING_S / 4)

    def _replace(self) -> None:
        log.warning("%s does not answer and is replaced", self.name)
        kill(self._handle)
        self._handle = None
        self._missed = 0
        self._patience = MISSES_AT_START
