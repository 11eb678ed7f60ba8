"""The thread's earlier messages, for an agent that has no session of its own to resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from actors.names import shard_of
from actors.shard_client import ShardClient
from runtime.core.messages import to_agui
from runtime.core.record import Head, RunSpec
from runtime.core.thread import ThreadRun, thread_messages
from runtime.engine.authority import repeat
from runtime.engine.preparing import History
from runtime.settings import Settings


def thread_history(settings: Settings) -> History:
    """Return a function from a run to its thread's messages before it (AG-UI), oldest first, folded from the logs."""
    shards = [ShardClient(shard, settings.namespace) for shard in range(settings.shards)]

    async def history(head: Head) -> Sequence[Mapping[str, Any]]:
        # Every shard reads all of the store, so any one of them knows the whole thread (P12).
        runs = await repeat(partial(shards[0].list_thread, head.owner, head.thread_id))
        earlier = [run for run in runs if run[0].created_at < head.created_at]
        return to_agui(thread_messages([await _with_log(shards, past, spec) for past, spec in earlier]))

    return history


async def _with_log(shards: Sequence[ShardClient], head: Head, spec: RunSpec) -> ThreadRun:
    batches = await repeat(partial(shards[shard_of(head.run_id, len(shards))].log, head.run_id))
    chunks = [chunk for batch in batches for chunk in batch.chunks()]
    return ThreadRun(head.run_id, spec.input.get("messages", []), chunks)
