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
from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc, runtime_environment_pb2

from actors.nodes import Nodes
from actors.raylets import token

# Ray's generated stubs carry no types.
_messages: Any = node_manager_pb2
_environments: Any = runtime_environment_pb2
_services: Any = node_manager_pb2_grpc

log = logging.getLogger("outlast.warm")

KEEP_ALIVE_S = 3600
NEW_NODES_S = 1.0
CALL_TIMEOUT_S = 5.0


class WarmWorkers:
    """Keeps about `count` idle workers on every node."""

    def __init__(self, count: int, nodes: Nodes) -> None:
        self._count = count
        self._nodes = nodes
        self._stubs: dict[str, Any] = {}
        self._warmed: set[str] = set()  # nodes that have got their first ones
        self._broken = False

    async def turn(self) -> None:
        """Warm the nodes that came since the last turn."""
        open_now = {node.node_id for node in self._nodes.seen() if node.open}
        self._warmed &= open_now
        for node_id in open_now - self._warmed:
            self._warmed.add(node_id)
            await self.refill(self._count, node_id)
        await asyncio.sleep(NEW_NODES_S)

    async def refill(self, workers: int, node_id: str | None = None) -> bool:
        """Ask a node's raylet, our own by default, for up to `workers` idle workers more; return whether it took the
        request.

        One request starts at most as many as the node has cores, so several are sent."""
        node_id = node_id or self._nodes.mine
        address = self._nodes.raylet_address(node_id)
        if self._broken or not self._count or address is None:
            return False
        try:
            cores = self._nodes.cores(node_id)
            for _ in range(-(-workers // cores)):
                await asyncio.to_thread(self._request, address, min(workers, cores))
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return False  # that node is lost or slow; the others are none the worse
            self._give_up(error)
            return False
        except Exception as error:  # noqa: BLE001 - a private interface: whatever goes wrong means cold starts
            self._give_up(error)
            return False
        return True

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        log.warning("warm workers are off, drivers start cold: %s", error)

    def _request(self, address: str, workers: int) -> None:
        request = _messages.PrestartWorkersRequest(
            language=0,
            num_workers=workers,
            keep_alive_duration_secs=KEEP_ALIVE_S,
            job_id=bytes.fromhex(ray.get_runtime_context().get_job_id()),
            runtime_env_info=_environments.RuntimeEnvInfo(serialized_runtime_env="{}"),
        )
        if address not in self._stubs:
            self._stubs[address] = _services.NodeManagerServiceStub(grpc.insecure_channel(address))
        self._stubs[address].PrestartWorkers(request, timeout=CALL_TIMEOUT_S, metadata=token())
