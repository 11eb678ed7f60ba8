"""Reads one run's result on a node that reaches its workspace, for whoever is connected to a gateway elsewhere.

An actor for each: whoever asks takes piece after piece, so nothing gathers where a client is slow, and what is not
asked for any more ends with one kill. It belongs to the process that asks, and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from functools import cache
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.calls import Gone, call, kill
from actors.compose import results
from runtime.core.result import ResultAsk
from runtime.errors import SandboxUnreachable
from runtime.settings import Settings

log = logging.getLogger("outlast.gateway")

OPTIONS: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
CLOSE_S = 10.0  # to remove a container; one that stays ends by itself
PIECE_S = 120.0  # a worker's cold start, and a look at 200,000 files, before the first one
_CLOSING: set[asyncio.Task[None]] = set()


class ResultReader:
    """The actor."""

    def __init__(self, settings: Settings, deployment: str, ask: ResultAsk) -> None:
        self._settings = settings
        self._deployment = deployment
        self._ask = ask
        self._pieces: AsyncGenerator[bytes, None] | None = None
        self._reading: asyncio.Task[bytes] | None = None

    async def piece(self) -> bytes:
        """Return the next piece; nothing at the end. Raises what `runtime.ports.Results` raises."""
        if self._pieces is None:
            self._pieces = results(self._settings, self._deployment, self._ask.provider).read_result(self._ask)
        self._reading = asyncio.create_task(_next(self._pieces))
        try:
            return await self._reading
        except asyncio.CancelledError:
            raise SandboxUnreachable("Nobody waits for this result any more.") from None

    async def close(self) -> None:
        """Give up what the reading holds, such as a container, and the piece that is being read."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))
        if self._pieces is not None:
            await self._pieces.aclose()


async def read_result(settings: Settings, deployment: str, node_id: str, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
    """Yield the result, read on the node. Raises what `runtime.ports.Results` raises."""
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    reader = _actor().options(scheduling_strategy=where).remote(settings, deployment, ask)
    try:
        while piece := await call(f"result:{ask.run_id}", reader.piece, timeout_s=PIECE_S):
            yield piece
    except Gone as error:
        raise SandboxUnreachable(f"Node {node_id} does not answer; ask again.") from error
    finally:
        # A task of its own: whoever leaves is cancelled again at each thing that is awaited.
        closing = asyncio.create_task(_close(ask.run_id, reader))
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)
        await asyncio.shield(closing)


async def _next(pieces: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(pieces, b"")


async def _close(run_id: str, reader: Any) -> None:
    try:
        await call(f"result:{run_id}", reader.close, timeout_s=CLOSE_S)
    except Gone:
        pass
    except Exception:
        log.exception("run %s: what read its result has not been closed", run_id)
    finally:
        kill(reader)


@cache
def _actor() -> Any:
    return ray.remote(**OPTIONS)(ResultReader)
