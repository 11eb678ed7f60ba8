"""The thread's earlier messages, for an agent that has no session of its own to resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from actors.names import shard_of
from actors.shard_client import ShardClient
from runtime.core.fold import agent_messages
from runtime.core.record import Head, RunSpec
from runtime.engine.authority import repeat
from runtime.engine.preparing import History
from runtime.settings import Settings


def thread_history(settings: Settings) -> History:
    """Return a function from a run to its thread's messages before it, oldest first, folded from the logs."""
    shards = [ShardClient(shard, settings.namespace) for shard in range(settings.shards)]

    async def history(head: Head) -> Sequence[Mapping[str, Any]]:
        runs = []
        for shard in shards:
            runs += await repeat(partial(shard.list_thread, head.owner, head.thread_id))
        earlier = sorted((run for run in runs if run[0].created_at < head.created_at), key=_created)
        return agent_messages([await _with_log(shards, past, spec) for past, spec in earlier])

    return history


def _created(run: tuple[Head, RunSpec]) -> int:
    return run[0].created_at


async def _with_log(shards: Sequence[ShardClient], head: Head, spec: RunSpec) -> tuple[list[Any], list[bytes]]:
    batches = await repeat(partial(shards[shard_of(head.run_id, len(shards))].log, head.run_id))
    return spec.input.get("messages", []), [chunk for batch in batches for chunk in batch.chunks()]
