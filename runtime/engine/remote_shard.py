"""A shard that is somewhere else: `ports.ShardPort` by name of method, whatever carries the call.

`actors/shard_client.py` carries it over Ray, the simulator over its own net.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.core.batch import Batch
from runtime.core.ops import Op, Outcome
from runtime.core.reap_ops import ReapStage
from runtime.core.record import Head, Refused, RunSpec
from runtime.errors import StoreUnavailable
from runtime.ports import Due, Pulse, ReadReply, RunPage, RunQuery

TAKEN_S = 2.0  # for a set of viewers to be taken


class RemoteShard(ABC):
    """Every question of a shard as one call."""

    def __init__(self) -> None:
        self._epoch = 0  # of the newest incarnation that answered a read

    @abstractmethod
    async def _call(self, method: str, *args: Any) -> Any:
        """Carry a call to whoever serves the shard now. Raises StoreUnavailable if nobody answers."""

    @abstractmethod
    def _forget(self) -> None:
        """Look the shard up anew for the next call."""

    async def submit(self, op: Op) -> Outcome:
        """See ports.LogPort."""
        outcome: Outcome = await self._call("submit", op)
        return outcome

    async def pulse(self, run_id: str, epoch: int, tick: int) -> Pulse:
        """See ports.LogPort."""
        pulse: Pulse = await self._call("pulse", run_id, epoch, tick)
        return pulse

    async def read(self, run_id: str, after: int, wait_s: float, inline: bool = False) -> ReadReply:
        """See ports.LogPort. Drops the answer of an incarnation older than one that answered before (P11)."""
        reply: ReadReply = await self._call("read", run_id, after, wait_s, inline)
        if reply.shard_epoch < self._epoch:
            self._forget()
            raise StoreUnavailable("An old incarnation of the shard answered.")
        self._epoch = reply.shard_epoch
        return reply

    async def record(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """See ports.LogPort."""
        record: tuple[Head, RunSpec] | None = await self._call("record", run_id)
        return record

    async def batches(self, run_id: str, after: int) -> list[Batch]:
        """See ports.LogPort."""
        batches: list[Batch] = await self._call("batches", run_id, after)
        return batches

    async def attach(self, run_id: str, viewer: str, number: int) -> bool:
        """See ports.ShardPort."""
        known: bool = await self._call("attach", run_id, viewer, number)
        return known

    async def set_viewers(self, viewer: str, number: int, counts: Mapping[str, int]) -> None:
        """See ports.ShardPort. A set has a successor within a second: nobody waits long for one, and an incarnation
        that does not answer is not asked again."""
        try:
            async with asyncio.timeout(TAKEN_S):
                await self._call("set_viewers", viewer, number, dict(counts))
        except TimeoutError:
            self._forget()
            raise StoreUnavailable("The shard did not take the set of viewers in time.") from None

    async def due(self, wait_s: float) -> list[Due]:
        """See ports.ShardPort."""
        due: list[Due] = await self._call("due", wait_s)
        return due

    async def unfinished(self) -> list[Head]:
        """See ports.ShardPort."""
        heads: list[Head] = await self._call("unfinished")
        return heads

    async def destroy_pending(self) -> list[Head]:
        """See ports.ShardPort."""
        heads: list[Head] = await self._call("destroy_pending")
        return heads

    async def reapable(self, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:
        """See ports.ShardPort."""
        heads: list[Head] = await self._call("reapable", stage, before_ms, limit)
        return heads

    async def drop_log(self, run_id: str) -> int:
        """See ports.ShardPort."""
        left: int = await self._call("drop_log", run_id)
        return left

    async def list_runs(self, query: RunQuery) -> RunPage:
        """See ports.ShardPort."""
        page: RunPage = await self._call("list_runs", query)
        return page

    async def find_active(self, owner: str, thread_id: str) -> Head | None:
        """See ports.ShardPort."""
        head: Head | None = await self._call("find_active", owner, thread_id)
        return head

    async def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """See ports.ShardPort."""
        runs: list[tuple[Head, RunSpec]] = await self._call("list_thread", owner, thread_id)
        return runs

    async def stderr(self, run_id: str) -> bytes | None:
        """See ports.ShardPort."""
        tail: bytes | None = await self._call("stderr", run_id)
        return tail

    async def transcripts(self, run_ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        """See ports.ShardPort."""
        found: dict[str, bytes] = await self._call("transcripts", list(run_ids), max_bytes)
        return found

    async def refusals(self, run_id: str) -> list[Refused]:
        """See ports.ShardPort."""
        refusals: list[Refused] = await self._call("refusals", run_id)
        return refusals

    async def stats(self) -> dict[str, Any]:
        """See ports.ShardPort."""
        stats: dict[str, Any] = await self._call("stats")
        return stats
