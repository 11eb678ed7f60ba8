"""The Ray Serve deployment: one replica is one `build_app` over the instance's actors."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from ray import serve

from actors.cluster import RayCluster
from actors.compose import harnesses
from actors.segments import RaySegmentReader
from runtime.engine.forever import forever
from runtime.errors import StoreError
from runtime.settings import Settings
from serve_app.access import Access
from serve_app.app import build_app
from serve_app.replica import Replica
from serve_app.sessions import Sessions
from serve_app.tokens import Keys, Tokens

log = logging.getLogger("outlast.gateway")

WATCH_S = 2.0  # P6: a replica pings the supervisor this often; the same call tells of a drain
MISSES = 2


class GatewayReplica:
    """Routes HTTP to runs by `runId`. Stateless: any replica serves any run."""

    def __init__(self, settings: Settings, deployment: str, serve_node: str, keys: Keys) -> None:
        logging.basicConfig(level=settings.log_level.upper())
        self._settings = settings
        self._cluster = RayCluster(settings, deployment, serve_node)
        self._missed = 0
        self._replica = Replica(uuid.uuid4().hex, RaySegmentReader(), access_of(settings, keys))
        self._watch = asyncio.get_running_loop().create_task(forever("the supervisor's watch", self._turn))

    def __serve_build_asgi_app__(self) -> Any:
        """Return this replica's app; Serve calls it after the constructor."""
        return build_app(self._cluster, self._settings, harnesses(self._settings), self._replica)

    async def _turn(self) -> None:
        """Ping the supervisor once: learn of a drain at once, replace a silent one (P6)."""
        if self._replica.draining.is_set():
            await asyncio.sleep(WATCH_S)
            return
        supervisor = self._cluster.supervisor()
        try:
            if await supervisor.watch(self._replica.name, WATCH_S):
                self._replica.draining.set()
            self._missed = 0
        except StoreError:
            self._missed += 1
            if self._missed >= MISSES:
                log.warning("the supervisor is silent and is replaced")
                self._missed = 0
                await supervisor.replace()
            await asyncio.sleep(WATCH_S / 4)


def access_of(settings: Settings, keys: Keys) -> Access | None:
    """Return who may ask here; None: everybody. Raises InputInvalid if this node cannot read the file of tokens."""
    path = settings.tokens_path
    return None if path is None else Access(Tokens(path, keys.operator), Sessions(keys.sessions))


def application(settings: Settings, deployment: str, serve_node: str, keys: Keys, max_ongoing_requests: int) -> Any:
    """Return the Serve application of an instance."""
    options: dict[str, Any] = {
        "name": "Gateway",
        "num_replicas": settings.replicas,
        "max_ongoing_requests": max_ongoing_requests,
        "ray_actor_options": {"num_cpus": 0},
        "graceful_shutdown_timeout_s": 3,
        "health_check_period_s": 5,
    }
    ingress: Any = serve.ingress()
    return serve.deployment(**options)(ingress(GatewayReplica)).bind(settings, deployment, serve_node, keys)
