"""The thread's earlier messages, for an agent that has no session of its own to resume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from actors.names import shard_of
from actors.shard_client import ShardClient
from runtime.core.messages import to_agui
from runtime.core.record import Head
from runtime.core.thread import ThreadRun, thread_messages
from runtime.engine.authority import repeat
from runtime.engine.telling import thread_runs
from runtime.engine.tools import History
from runtime.settings import Settings

# A preamble for an agent is text that a model reads: the newest runs of a thread, and not more than this of what they
# said.
MAX_RUNS = 50
MAX_BYTES = 1 << 20


def thread_history(settings: Settings) -> History:
    """Return a function from a run to its thread's messages before it (AG-UI), oldest first.

    At most the newest MAX_RUNS runs and MAX_BYTES of what they said."""
    shards = [ShardClient(shard, settings.namespace) for shard in range(settings.shards)]

    async def history(head: Head) -> Sequence[Mapping[str, Any]]:
        # Every shard reads all of the store, so any one of them knows the whole thread, in order (P12).
        runs = await repeat(partial(shards[0].list_thread, head.owner, head.thread_id))
        places = [place for place, (run, _) in enumerate(runs) if run.run_id == head.run_id]
        earlier = runs[: places[0]][-MAX_RUNS:] if places else []
        told = await thread_runs(earlier, lambda run_id: shards[shard_of(run_id, len(shards))], repeat, MAX_BYTES)
        return await asyncio.to_thread(_messages, told)

    return history


def _messages(runs: list[ThreadRun]) -> list[dict[str, Any]]:
    return to_agui(thread_messages(runs))
