"""What has to be done on one certain node: to say which sandboxes it reaches and which there are, and to destroy one.

Short Ray tasks, bound to the node; they take no resource, so that a full node takes them too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.calls import Gone, call
from actors.compose import providers
from actors.reach import Reached
from runtime.errors import OutlastError, SandboxUnreachable
from runtime.ports import SandboxProvider
from runtime.settings import Settings

log = logging.getLogger("outlast.supervisor")

OPTIONS: dict[str, Any] = {"num_cpus": 0, "max_retries": 0}
HOSTS_S = 20.0  # a worker's cold start on a busy machine
DESTROY_S = 30.0
LIST_S = 10.0  # it is asked again soon; a node that is slower has other troubles


def hosts(known: Mapping[str, SandboxProvider]) -> Reached:
    """Return the hosts whose sandboxes can be reached from this process alone, of every provider that has such."""
    found = set()
    whole = True
    for name in known:
        try:
            provider = known[name]
            if provider.capabilities.one_host:
                found.add(provider.host(provider.key("-")))
        except SandboxUnreachable as error:
            whole = False
            log.info("provider %s reaches nothing from this node: %s", name, error)
        except OutlastError as error:
            whole = False
            log.warning("provider %s cannot be loaded on this node: %s", name, error)
    return Reached(frozenset(found), whole)


class Errands:
    """Sends somebody to a node, on behalf of one deployment."""

    def __init__(self, settings: Settings, deployment: str, on: Callable[[str, Any], Any] | None = None) -> None:
        """`on(node_id, work)` returns `work` as Ray's remote function, bound to that node."""
        self._settings = settings
        self._deployment = deployment
        self._on = on or _on_node

    async def hosts(self, node_id: str) -> Reached | None:
        """Return the hosts that the node reaches; None if it does not say."""
        try:
            found: Reached = await self._done(node_id, _hosts, timeout_s=HOSTS_S)
        except (Gone, OutlastError):
            return None
        return found

    async def keys(self, node_id: str, provider: str) -> list[str]:
        """Return the keys of what exists on the node's host. Raises SandboxUnreachable."""
        try:
            found: list[str] = await self._done(node_id, _keys, provider, timeout_s=LIST_S)
        except Gone as error:
            raise SandboxUnreachable(f"Node {node_id} does not say what sandboxes there are.") from error
        return found

    async def destroy(self, node_id: str, provider: str, key: str) -> None:
        """Destroy a sandbox from the node. Raises SandboxUnreachable."""
        try:
            await self._done(node_id, _destroy, provider, key, timeout_s=DESTROY_S)
        except Gone as error:
            raise SandboxUnreachable(f"Node {node_id} does not answer.") from error

    async def _done(self, node_id: str, work: Any, *args: str, timeout_s: float) -> Any:
        task = self._on(node_id, work)
        return await call(node_id, task, self._settings, self._deployment, *args, timeout_s=timeout_s)


def _hosts(settings: Settings, deployment: str) -> Reached:
    return hosts(providers(settings, deployment))


def _keys(settings: Settings, deployment: str, provider: str) -> list[str]:
    return asyncio.run(providers(settings, deployment)[provider].list())


def _destroy(settings: Settings, deployment: str, provider: str, key: str) -> None:
    asyncio.run(providers(settings, deployment)[provider].destroy(key))


@cache
def _task(work: Any) -> Any:
    """Return the work as a task, made once: Ray pickles and exports each new one anew."""
    return ray.remote(**OPTIONS)(work)


def _on_node(node_id: str, work: Any) -> Any:
    return _task(work).options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))
