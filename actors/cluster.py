"""The way from a gateway replica or a Python driver to the actors of its instance: `ports.Cluster` over Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from actors import supervisor_actor
from actors.calls import Gone, actor_id, call, find, kill
from actors.names import SUPERVISOR, shard_of
from actors.result_reader import read_result
from actors.shard_client import ShardClient
from runtime.core.result import ResultAsk
from runtime.errors import StoreUnavailable
from runtime.settings import Settings

log = logging.getLogger("outlast.cluster")

CALL_TIMEOUT_S = 10.0
REAP_S = 22.0  # a sweep for somebody who waits bounds itself to less


class SupervisorClient:
    """The supervisor, by its name; replaces it when it is silent (P6)."""

    def __init__(self, settings: Settings, deployment: str, serve_node: str) -> None:
        self._settings = settings
        self._deployment = deployment
        self._serve_node = serve_node
        self._handle: Any = None
        self._silent: str | None = None  # the actor that did not answer last

    async def _call(self, method: str, *args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        if self._handle is None:
            self._handle = find(SUPERVISOR, self._settings.namespace)
        handle = self._handle
        if handle is None:
            raise StoreUnavailable("The supervisor is not there yet.")
        try:
            return await call(SUPERVISOR, getattr(handle, method), *args, timeout_s=timeout_s)
        except Gone as error:
            self._silent = actor_id(handle)
            self._handle = None
            raise StoreUnavailable("The supervisor does not answer; it is being replaced.") from error

    async def start(self, run_id: str) -> None:
        """See ports.SupervisorPort."""
        await self._call("start", run_id)

    async def ensure(self, run_id: str) -> None:
        """See ports.SupervisorPort."""
        await self._call("ensure", run_id)

    async def cancel(self, run_id: str) -> None:
        """See ports.SupervisorPort."""
        await self._call("cancel", run_id)

    async def takeover(self, run_id: str) -> int:
        """See ports.SupervisorPort."""
        epoch: int = await self._call("takeover", run_id)
        return epoch

    async def watch(self, replica: str, wait_s: float) -> bool:
        """See ports.SupervisorPort."""
        draining: bool = await self._call("watch", replica, wait_s, timeout_s=wait_s + 2.0)
        return draining

    async def drain(self) -> None:
        """See ports.SupervisorPort."""
        await self._call("drain")

    async def drain_node(self, node: str, within_s: float) -> dict[str, Any]:
        """See ports.SupervisorPort."""
        report: dict[str, Any] = await self._call("drain_node", node, within_s)
        return report

    async def reap(self, dry_run: bool) -> dict[str, Any]:
        """See ports.SupervisorPort."""
        report: dict[str, Any] = await self._call("reap", dry_run, timeout_s=REAP_S)
        return report

    async def leave(self, within_s: float) -> int:
        """Have every driver hand over and make no more; return how many have not `within_s`."""
        stuck: int = await self._call("leave", within_s, timeout_s=within_s + 2.0)
        return stuck

    async def status(self) -> dict[str, Any]:
        """See ports.SupervisorPort."""
        status: dict[str, Any] = await self._call("status")
        return status

    async def node_of(self, provider: str, key: str) -> str:
        """See ports.SupervisorPort."""
        node_id: str = await self._call("node_of", provider, key)
        return node_id

    async def settings(self) -> Settings:
        """Return the instance's settings."""
        settings: Settings = await self._call("settings")
        return settings

    async def replace(self) -> None:
        """Kill a supervisor that is silent, and make another. A second one is harmless (P6); but one that another
        replica has made meanwhile is left alone."""
        old = find(SUPERVISOR, self._settings.namespace)
        if old is not None and self._silent not in (None, actor_id(old)):
            return
        if old is not None:
            kill(old)
        self._handle = None
        try:
            await asyncio.to_thread(supervisor_actor.create, self._settings, self._deployment, self._serve_node)
        except ValueError as error:
            log.info("another replica makes the supervisor: %s", error)


class RayCluster:
    """Implements `ports.Cluster`."""

    def __init__(self, settings: Settings, deployment: str, serve_node: str = "") -> None:
        """`serve_node`: the node of `outlast serve`; whoever may re-make the supervisor must know it."""
        self._settings = settings
        self._deployment = deployment
        self._shards = [ShardClient(shard, settings.namespace) for shard in range(settings.shards)]
        self._supervisor = SupervisorClient(settings, deployment, serve_node)

    def shard(self, run_id: str) -> ShardClient:
        """Return the shard that serves the run."""
        return self._shards[shard_of(run_id, self._settings.shards)]

    def shards(self) -> list[ShardClient]:
        """Return every shard, in order."""
        return list(self._shards)

    def supervisor(self) -> SupervisorClient:
        """Return the supervisor."""
        return self._supervisor

    async def result(self, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        """See ports.Cluster."""
        node_id = await self._supervisor.node_of(ask.provider, ask.key)
        async with aclosing(read_result(self._settings, self._deployment, node_id, ask)) as pieces:
            async for piece in pieces:
                yield piece
