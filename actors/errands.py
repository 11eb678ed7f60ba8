"""What has to be done on one certain node: to say which sandboxes it reaches, and to destroy one of them.

Short Ray tasks, bound to the node; they take no resource, so that a full node takes them too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.calls import Gone, call
from actors.compose import providers
from runtime.errors import OutlastError, SandboxUnreachable
from runtime.ports import SandboxProvider
from runtime.settings import Settings

log = logging.getLogger("outlast.supervisor")

OPTIONS: dict[str, Any] = {"num_cpus": 0, "max_retries": 0}
HOSTS_S = 20.0  # a worker's cold start on a busy machine
DESTROY_S = 30.0


def hosts(known: Mapping[str, SandboxProvider]) -> frozenset[str]:
    """Return the hosts whose sandboxes can be reached from this process alone, of every provider that has such."""
    found = set()
    for name in known:
        try:
            provider = known[name]
        except OutlastError as error:
            log.warning("provider %s cannot be loaded on this node: %s", name, error)
            continue
        if provider.capabilities.one_host:
            found.add(provider.host(provider.key("-")))
    return frozenset(found)


def _hosts(settings: Settings, deployment: str) -> frozenset[str]:
    return hosts(providers(settings, deployment))


def _destroy(settings: Settings, deployment: str, provider: str, key: str) -> None:
    asyncio.run(providers(settings, deployment)[provider].destroy(key))


@cache
def _task(work: Any) -> Any:
    """Return the work as a task, made once: Ray pickles and exports each new one anew."""
    return ray.remote(**OPTIONS)(work)


def _on(node_id: str, work: Any) -> Any:
    return _task(work).options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))


async def ask_hosts(node_id: str, settings: Settings, deployment: str) -> frozenset[str] | None:
    """Return the hosts that the node reaches; None if it does not say."""
    try:
        found: frozenset[str] = await call(node_id, _on(node_id, _hosts), settings, deployment, timeout_s=HOSTS_S)
    except (Gone, OutlastError):
        return None
    return found


async def destroy(node_id: str, settings: Settings, deployment: str, provider: str, key: str) -> None:
    """Destroy a sandbox from the node. Raises SandboxUnreachable."""
    try:
        await call(node_id, _on(node_id, _destroy), settings, deployment, provider, key, timeout_s=DESTROY_S)
    except Gone as error:
        raise SandboxUnreachable(f"Node {node_id} does not answer.") from error
