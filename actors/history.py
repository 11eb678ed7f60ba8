"""The thread's earlier messages, for an agent that has no session of its own to resume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from actors.names import shard_of
from actors.shard_client import ShardClient
from runtime.core.messages import to_agui
from runtime.core.record import Head, RunSpec
from runtime.core.thread import ThreadRun, thread_messages
from runtime.engine.authority import repeat
from runtime.engine.tools import History
from runtime.settings import Settings

# A preamble for an agent is text that a model reads: the newest runs of a thread, and not more of their logs than this.
MAX_RUNS = 50
MAX_BYTES = 4 << 20


def thread_history(settings: Settings) -> History:
    """Return a function from a run to its thread's messages before it (AG-UI), oldest first, folded from the logs.

    At most MAX_RUNS runs and MAX_BYTES of logs, the newest; folded on an OS thread, since renewals must go on."""
    shards = [ShardClient(shard, settings.namespace) for shard in range(settings.shards)]

    async def history(head: Head) -> Sequence[Mapping[str, Any]]:
        # Every shard reads all of the store, so any one of them knows the whole thread, in order (P12).
        runs = await repeat(partial(shards[0].list_thread, head.owner, head.thread_id))
        places = [place for place, (run, _) in enumerate(runs) if run.run_id == head.run_id]
        earlier = runs[: places[0]] if places else []
        return await asyncio.to_thread(_fold, await _newest(shards, earlier))

    return history


def _fold(runs: list[ThreadRun]) -> list[dict[str, Any]]:
    return to_agui(thread_messages(runs))


async def _newest(shards: Sequence[ShardClient], earlier: Sequence[tuple[Head, RunSpec]]) -> list[ThreadRun]:
    found: list[ThreadRun] = []
    size = 0
    for head, spec in reversed(earlier[-MAX_RUNS:]):
        size += head.log_bytes
        if size > MAX_BYTES:
            break
        batches = await repeat(partial(shards[shard_of(head.run_id, len(shards))].log, head.run_id))
        chunks = [chunk for batch in batches for chunk in batch.chunks()]
        found.append(ThreadRun(head.run_id, spec.input.get("messages", []), chunks))
    return found[::-1]
