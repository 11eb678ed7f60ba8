"""Results of runs of the `docker` provider: read in a container of their own, beside the agent's if that still runs.

It has the thread's volumes, read-only, and no agent in it, so nobody there can disturb or deceive who reads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from runtime.core.names import folder_name
from runtime.core.result import ResultAsk
from runtime.errors import SandboxUnreachable
from runtime.sandboxes.baseline import Gone, TooMuch
from runtime.sandboxes.container import SILENCE_S
from runtime.sandboxes.container_line import Line, LineLost
from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.hardening import WORKSPACE
from runtime.sandboxes.local_results import told


class DockerResults:
    """Implements `runtime.ports.Results` for the volumes of a `DockerProvider`."""

    def __init__(self, provider: DockerProvider) -> None:
        self._provider = provider

    async def read_result(self, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        """See `runtime.ports.Results`."""
        job = {"workspace": WORKSPACE, "run": folder_name(ask.run_id), "form": ask.form, "maxBytes": ask.max_bytes}
        raw, end = await self._begun(ask, json.dumps(job).encode() + b"\n")
        line = Line(raw, SILENCE_S)
        try:
            with told():
                while True:
                    facts, piece = await line.answer()
                    if "error" in facts:
                        raise TooMuch(facts["error"]) if facts["code"] is None else Gone(facts["error"], facts["code"])
                    if "done" in facts:
                        return
                    yield piece
        except LineLost as lost:
            raise SandboxUnreachable(f"The container that reads the result has ended: {lost}.") from lost
        finally:
            line.close()
            await asyncio.to_thread(end)

    async def _begun(self, ask: ResultAsk, job: bytes) -> tuple[Any, Callable[[], None]]:
        """Return the connection and what ends its container, which is ended here if nobody waits for it any more."""
        beginning = asyncio.create_task(self._provider.read_in(ask.key, ask.thread_key, job))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            _, end = await beginning
            await asyncio.to_thread(end)
            raise
