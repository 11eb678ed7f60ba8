"""Whether a node answers, asked of its raylet itself: Ray's own health checks take 15 s for a dead one, 65 s for a
silent one.

A raylet serves the standard gRPC health service, which is what Ray's head asks too.
"""

from __future__ import annotations

from typing import Any

import grpc  # type: ignore[import-untyped]  # Ray's own dependency, without stubs
from ray import _raylet

_core: Any = _raylet
_aio: Any = grpc.aio

CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
TIMEOUT_S = 1.0
# A link that was cut and is healed must not be waited for longer than that.
OPTIONS = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000))


class Raylet:
    """One node's raylet. Use it on one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = _aio.insecure_channel(address, options=OPTIONS)
        self._check = self._channel.unary_unary(CHECK)

    async def answers(self) -> bool:
        """Ask once; a raylet that is stopped, cut off or dead does not answer within TIMEOUT_S."""
        try:
            return bool(await self._check(b"", timeout=TIMEOUT_S, metadata=token()) == SERVING)
        except grpc.RpcError:
            return False

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def token() -> tuple[tuple[str, str], ...]:
    """Return the metadata by which Ray knows us; none without token authentication."""
    loader = _core.AuthenticationTokenLoader.instance()
    return tuple(loader.get_token_for_http_header().items()) if loader.has_token() else ()
