"""What a run's thread was before it: the session that its agent goes on with, or the messages that it is told."""

from __future__ import annotations

import asyncio
from functools import partial

from actors.names import shard_of
from actors.shard_client import ShardClient
from runtime.core.messages import to_agui
from runtime.core.record import Head, Launch, RunSpec
from runtime.core.thread import ThreadRun, thread_messages
from runtime.engine.authority import repeat
from runtime.engine.telling import Runs, thread_runs
from runtime.engine.tools import History, Past
from runtime.settings import Settings

# A preamble for an agent is text that a model reads: the newest runs of a thread, and not more than this of what they
# said.
MAX_RUNS = 50
MAX_BYTES = 1 << 20


def thread_history(settings: Settings) -> History:
    """Return a function from a run to what its thread was before it.

    At most the newest MAX_RUNS runs and MAX_BYTES of what they said."""
    shards = [ShardClient(shard, settings.namespace) for shard in range(settings.shards)]

    async def history(head: Head) -> Past:
        # Every shard reads all of the store, so any one of them knows the whole thread, in order (P12).
        runs = await repeat(partial(shards[0].list_thread, head.owner, head.thread_id))
        places = [place for place, (run, _) in enumerate(runs) if run.run_id == head.run_id]
        if not places:
            return Past()
        earlier = runs[: places[0]][-MAX_RUNS:]
        told = await thread_runs(earlier, lambda run_id: shards[shard_of(run_id, len(shards))], repeat, MAX_BYTES)
        return await asyncio.to_thread(_past, runs[places[0]][1], earlier, told)

    return history


def _past(spec: RunSpec, earlier: Runs, told: list[ThreadRun]) -> Past:
    launched = [at for at, (run, _) in enumerate(earlier) if run.launch is Launch.INTENDED]
    session, asked = None, []
    if launched:
        last = launched[-1]
        session = told[last].said.session if earlier[last][1].harness == spec.harness else None
        asked = told[last].said.interrupts
    return Past(to_agui(thread_messages(told)), session, asked)
