"""What the runs of a thread have said: their stored transcripts, and for one that has none, its log as it is now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from runtime.core.ids import shown_run_id
from runtime.core.record import Head, RunSpec
from runtime.core.thread import ThreadRun
from runtime.core.transcript import Transcript, decode
from runtime.engine.transcribing import told
from runtime.ports import ShardPort

T = TypeVar("T")
Runs = Sequence[tuple[Head, RunSpec]]


class Asking(Protocol):
    """How a shard is asked that may be being replaced."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call`, again if need be."""


async def thread_runs(runs: Runs, shard_of: Callable[[str], ShardPort], ask: Asking, max_bytes: int) -> list[ThreadRun]:
    """Return what each of a thread's runs (oldest first) has said, up to about `max_bytes` of the newest. Of older ones
    only what the user said is told."""
    if not runs:
        return []
    newest = [head.run_id for head, _ in reversed(runs)]
    stored = await ask(lambda: shard_of(newest[0]).transcripts(newest, max_bytes))
    found: list[ThreadRun] = []
    for head, spec in reversed(runs):
        said = Transcript()
        if head.run_id in stored:
            said = decode(stored[head.run_id])
            max_bytes -= len(stored[head.run_id])
        elif max_bytes > 0:
            said = await _so_far(head, shard_of(head.run_id), ask, max_bytes)
            max_bytes -= min(head.log_bytes, max_bytes)
        found.append(ThreadRun(shown_run_id(head.run_id), spec.input.get("messages") or [], said))
    return found[::-1]


async def _so_far(head: Head, shard: ShardPort, ask: Asking, max_bytes: int) -> Transcript:
    """Return what a log says as it is now: of one over `max_bytes` about as much of its end, of one that is not kept
    any more nothing. A shard that was replaced may not have heard of that: then the log is shorter than its record."""
    if head.log_gone:
        return Transcript()
    left_out = max(0, head.log_bytes - max_bytes)
    begin = head.next_seq * left_out // max(1, head.log_bytes)
    said = await told(lambda after: ask(lambda: shard.batches(head.run_id, after)), begin, head.next_seq)
    if said is None:
        return Transcript()
    now = await ask(lambda: shard.record(head.run_id))
    return Transcript() if now is None or now[0].log_gone else said
