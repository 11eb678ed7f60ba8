"""Idle Ray workers kept ready, so that a driver starts in 70 ms instead of 400.

The raylet has a gRPC method that starts idle workers (`NodeManagerService.PrestartWorkers`); its stubs ship in Ray's
wheel, but it is no public interface. So: Ray is pinned, a test calls this for real, and any failure here means cold
starts and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc  # type: ignore[import-untyped]  # Ray's own dependency, without stubs
import ray
from ray import _raylet
from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc, runtime_environment_pb2

# Ray's generated stubs and its node functions carry no types.
_messages: Any = node_manager_pb2
_environments: Any = runtime_environment_pb2
_services: Any = node_manager_pb2_grpc
_ray: Any = ray
_core: Any = _raylet

log = logging.getLogger("outlast.warm")

KEEP_ALIVE_S = 3600
CALL_TIMEOUT_S = 5.0


class WarmWorkers:
    """Keeps about `count` idle workers on this node."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._stub: Any = None
        self._node: str | None = None
        self._broken = False

    async def refill(self, workers: int) -> bool:
        """Ask the raylet for up to `workers` idle workers more; return whether it took the request.

        One request starts at most as many as the node has cores, so several are sent."""
        if self._broken or not self._count:
            return False
        try:
            cores = max(1, int(_ray.cluster_resources().get("CPU", 1)))
            for _ in range(-(-workers // cores)):
                await asyncio.to_thread(self._request, min(workers, cores))
        except Exception as error:  # noqa: BLE001 - a private interface: whatever goes wrong means cold starts
            self._broken = True
            log.warning("warm workers are off, drivers start cold: %s", error)
            return False
        return True

    def _request(self, workers: int) -> None:
        request = _messages.PrestartWorkersRequest(
            language=0,
            num_workers=workers,
            keep_alive_duration_secs=KEEP_ALIVE_S,
            job_id=bytes.fromhex(ray.get_runtime_context().get_job_id()),
            runtime_env_info=_environments.RuntimeEnvInfo(serialized_runtime_env="{}"),
        )
        self._node_stub().PrestartWorkers(request, timeout=CALL_TIMEOUT_S, metadata=_token())

    def _node_stub(self) -> Any:
        if self._stub is None:
            mine = ray.get_runtime_context().get_node_id()
            node = next(node for node in _ray.nodes() if node["NodeID"] == mine)
            address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            self._stub = _services.NodeManagerServiceStub(grpc.insecure_channel(address))
        return self._stub


def _token() -> tuple[tuple[str, str], ...]:
    """Return the metadata by which Ray knows us; none without token authentication."""
    loader = _core.AuthenticationTokenLoader.instance()
    return tuple(loader.get_token_for_http_header().items()) if loader.has_token() else ()
