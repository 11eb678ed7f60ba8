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
from runtime.errors import StoreError, StoreRefused
from runtime.settings import Settings

log = logging.getLogger("outlast.supervisor")

PING_S = 2.0
MISSES = 2  # then it is replaced: a hung shard is gone within 10 s
PING_TIMEOUT_S = 2.0
OPEN_TIMEOUT_S = 30.0


class ShardKeeper:
    """Looks after one shard."""

    def __init__(self, shard: int, settings: Settings) -> None:
        self.name = shard_name(shard)
        self.last: dict[str, Any] = {}
        self.alive = False
        self._shard = shard
        self._settings = settings
        self._handle: Any = None

    async def start(self) -> None:
        """Make the shard or find it. Raises StoreRefused if its store is not usable."""
        self._handle = log_shard.create(self._shard, self._settings, self.name)
        try:
            self.last = await call(self.name, self._handle.ping, timeout_s=OPEN_TIMEOUT_S)
            self.alive = True
        except Gone:
            self.alive = False

    async def keep(self) -> None:
        """Ping for ever; replace after MISSES in a row."""
        missed = 0
        while True:
            await asyncio.sleep(PING_S if not missed else PING_S / 4)
            try:
                self.last = await call(self.name, self._handle.ping, timeout_s=PING_TIMEOUT_S)
                missed = 0
                self.alive = True
            except Gone:
                missed += 1
                self.alive = False
                if missed >= MISSES:
                    await self._replace()
                    missed = 0
            except StoreRefused as error:
                log.warning("%s cannot serve: %s", self.name, error)
            except StoreError as error:
                log.warning("%s: %s", self.name, error)

    async def _replace(self) -> None:
        log.warning("%s does not answer and is replaced", self.name)
        kill(self._handle)
        try:
            await self.start()
        except (StoreError, ValueError) as error:
            log.warning("%s could not be replaced yet: %s", self.name, error)
