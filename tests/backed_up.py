"""A store with a run of each kind in it, and everything that a store tells, for comparing what was restored."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.core.record import Status
from runtime.ports import RunQuery, Store
from runtime.testing.sample_ops import append, checkpoint, create, finish, journal, live
from runtime.testing.store_cases.shard_driver import ShardDriver

DEPLOYMENT = "deployment"
ENDED, GOES_ON, QUEUED, ASKS, NEW = "ended", "goes-on", "queued", "asks", "new"
RUNS = (ENDED, GOES_ON, QUEUED, ASKS, NEW)
CHUNKS = 12


def fill(store: Store) -> ShardDriver:
    """Put five runs into an empty store of one shard: one that ended, one that goes on, one that waits for its thread,
    one that asks, one that nobody has claimed."""
    shard = ShardDriver(store)
    shard.start(ENDED, "thread-1")
    shard.do(append(live(1, 1, "emitted", run_id=ENDED, key="a key: \u2028")))
    shard.do(append(journal(2, 1, "a", "b", run_id=ENDED)))
    last = finish(
        4, 1, Status.COMPLETED, ENDED, stderr=b"\xff end of it", transcript=b"\x81 said", destroy_pending=True
    )
    shard.do(last)
    shard.start(GOES_ON, "thread-2")
    batch = journal(1, 1, "one", "two", run_id=GOES_ON)
    shard.do(append(batch, checkpoint=checkpoint(batch)))
    shard.enqueue(QUEUED, "thread-2")
    shard.start(ASKS, "thread-3")
    shard.do(finish(1, 1, Status.INTERRUPTED, ASKS))
    shard.do(create(NEW, "thread-4"))
    return shard


def told(store: Store) -> dict[str, Any]:
    """Return everything that a store tells of its runs; of those that go on without what a new generation changes."""
    page = store.list_runs(RunQuery(owner=None, limit=100))
    facts: dict[str, Any] = {"order": [head.run_id for head, _ in page.runs]}
    for head, spec in page.runs:
        run_id = head.run_id
        facts[run_id] = {
            "head": head if head.status.terminal else _same_in_any_generation(head),
            "spec": spec,
            "log": store.read_batches(run_id, 0, 1 << 40),
            "stderr": store.read_stderr(run_id),
            "transcript": store.read_transcript(run_id),
            "checkpoint": store.read_checkpoint(run_id),
        }
    return facts


def held(store: Store) -> int:
    """Return what the logs of the owner of the five hold."""
    batches = (batch for run_id in RUNS for batch in store.read_batches(run_id, 0, 1 << 40))
    return sum(len(batch.data) for batch in batches)


def _same_in_any_generation(head: Any) -> Any:
    return msgspec.structs.replace(head, generation=0, driver_epoch=0, launch="none", detached_since=None, version=0)


__all__ = ["ASKS", "CHUNKS", "DEPLOYMENT", "ENDED", "GOES_ON", "NEW", "QUEUED", "RUNS", "fill", "held", "told"]
