"""A yard in which a run has ended, for what becomes of it later."""

from __future__ import annotations

from unit.engine.stage import RUN, append, claim, create, finish
from unit.engine.yard import Yard

from runtime.core.ops import Attach, Note
from runtime.core.reap_ops import PruneLog
from runtime.core.retention import Retention

LOG_S, TRANSCRIPT_S = 100, 300
WORDS = 12


async def ended(retention: tuple[int, int] = (LOG_S, TRANSCRIPT_S), run_id: str = RUN) -> Yard:
    """Return a yard in which a run was watched, said some words and has just ended."""
    yard = await Yard.open()
    yard.retention = Retention(*retention)
    yard.reaper = yard.another()
    shard = yard.acts.shard
    await shard.submit(Attach(run_id=run_id))
    for word in range(1, 1 + WORDS):
        await shard.submit(append(word, f"word-{word}" + 700 * "-"))  # a few of them are a page
    await yard.end()
    return yard


async def one_more(yard: Yard) -> None:
    """Let a second run, `run-2`, come and end."""
    shard = yard.acts.shard
    await shard.submit(create("run-2", "thread-2"))
    await shard.submit(Attach(run_id="run-2"))
    await shard.submit(claim(0, "another", "run-2"))
    await shard.submit(finish(yard.acts.stage.head("run-2").next_seq, run_id="run-2"))
    await shard.submit(Note(run_id="run-2", epoch=1, destroy_pending=False))


def mark(yard: Yard) -> PruneLog:
    return PruneLog(run_id=RUN, supervisor_epoch=yard.acts.supervisor.epoch, ended_before=1 << 50, retention_ms=0)
