"""A log shard from another process: `ports.ShardPort` over Ray calls.

A shard that died is made again under its name; this client looks the name up anew after every failure, and its
callers repeat (I9). It drops answers of an incarnation older than one it has heard from (P11).
"""

from __future__ import annotations

from typing import Any

from actors.calls import Gone, call, find
from actors.names import shard_name
from runtime.engine.remote_shard import RemoteShard
from runtime.errors import StoreUnavailable

# Above what a parked read may take; a hung shard is found by the supervisor's ping long before.
CALL_TIMEOUT_S = 40.0


class ShardClient(RemoteShard):
    """One shard, by its name in a namespace."""

    def __init__(self, shard: int, namespace: str) -> None:
        super().__init__()
        self.name = shard_name(shard)
        self._namespace = namespace
        self._handle: Any = None

    async def _call(self, method: str, *args: Any) -> Any:
        if self._handle is None:
            self._handle = find(self.name, self._namespace)
        if self._handle is None:
            raise StoreUnavailable(f"{self.name} is not there yet.")
        try:
            return await call(self.name, getattr(self._handle, method), *args, timeout_s=CALL_TIMEOUT_S)
        except Gone as error:
            self._handle = None
            raise StoreUnavailable(f"{self.name} does not answer; it is being replaced.") from error

    def _forget(self) -> None:
        self._handle = None
