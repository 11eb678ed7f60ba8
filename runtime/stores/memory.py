"""A store in memory: what tests and the simulator run on, under the same kit as the durable ones.

A transaction is a copy-on-write view (`memory_tables.py`); committing it is a few dict updates under a lock. It keeps
every promise of `ports.Store` but durability: a "restart" is a new shard over the same MemoryStore.

Faults are injected by the caller's hook, so that a simulator decides when a store fails and a failing seed repeats.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Literal

from runtime.core import reaping
from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.generations import next_epoch, next_generation
from runtime.core.machine import decide
from runtime.core.ops import Op, Outcome
from runtime.core.reap_ops import ReapStage
from runtime.core.record import Head, Kept, RunSpec, Status
from runtime.errors import ShardSuperseded, StoreRefused
from runtime.ports import RunPage, RunQuery
from runtime.stores.defect import unstorable
from runtime.stores.memory_tables import Tables, Transaction
from runtime.stores.paging import decode_cursor, encode_cursor, page_limit

DROP_BATCHES = 2  # of a log that is removed, at once: few, so that tests see it in between

# When the hook is called. It raises StoreUnavailable or StoreFull or returns. Raised at `*.before`, nothing is written;
# at `*.after`, everything is and the answer is lost.
FaultPoint = Literal["open.before", "open.after", "commit.before", "commit.after", "read.before"]


def _no_fault(_point: FaultPoint) -> None:
    pass


class MemoryStore:
    """A Store that forgets when it is dropped. `close` keeps the rows: the same object can be opened again."""

    def __init__(self, shards: int = 1, *, fault: Callable[[FaultPoint], None] = _no_fault) -> None:
        self._shards = shards
        self._fault = fault
        self._tables = Tables()
        self._epochs = dict.fromkeys(range(shards), 0)
        self._lock = Lock()

    def open_shard(self, shard: int, opener: str) -> int:  # noqa: ARG002 - nobody reads an opener's name in memory
        """Take the shard; return its new epoch (P11). Raises StoreRefused for a shard that is not one of `shards`."""
        self._fault("open.before")
        with self._lock:
            if shard not in self._epochs:
                raise StoreRefused(f"log:{shard} is not a shard of this store, which has {self._shards}.")
            self._epochs[shard] += 1
            epoch = self._epochs[shard]
        self._fault("open.after")
        return epoch

    def commit(self, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        """Decide and store `ops` in order in one transaction (I1, P7). Raises ShardSuperseded: then nothing is."""
        self._fault("commit.before")
        with self._lock:
            current = self._epochs.get(shard, 0)
            if current != shard_epoch:
                raise ShardSuperseded(shard, shard_epoch, current)
            view = Transaction(self._tables, shard)
            answers = [_one(view, op, now_ms) for op in ops]
            view.merge()
        self._fault("commit.after")
        return answers

    def drop_log(self, run_id: str) -> int:
        """Remove the end of a log that was given up; return how many positions are left."""
        self._fault("commit.before")
        with self._lock:
            head = self._tables.heads.get(run_id)
            given_up = head is not None and head.kept is Kept.DROPPING
            left = self._tables.drop_end(run_id, DROP_BATCHES) if given_up else 0
        self._fault("commit.after")
        return left

    def raise_generation(self, now_ms: int, above: int = 0) -> int:
        """Say that acknowledged chunks are lost, and supersede everybody (P10); return the new generation."""
        self._fault("commit.before")
        with self._lock:
            generation = next_generation(self._tables.generation, now_ms, above)
            self._tables.raise_generation(generation)
            self._epochs = {shard: next_epoch(epoch, generation) for shard, epoch in self._epochs.items()}
        self._fault("commit.after")
        return generation

    def read_run(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """Return the record, or None."""
        self._fault("read.before")
        with self._lock:
            head = self._tables.heads.get(run_id)
            return None if head is None else (head, self._tables.specs[run_id])

    def read_batches(self, run_id: str, after: int, max_bytes: int) -> list[Batch]:
        """Return the batches that hold positions past `after`, until `max_bytes` are reached, at least one."""
        self._fault("read.before")
        with self._lock:
            log = self._tables.logs.get(run_id, [])
            first = bisect_right(log, after, key=lambda batch: batch.next_seq)
            size, last = 0, first
            while last < len(log) and (last == first or size < max_bytes):
                size += len(log[last].data)
                last += 1
            return log[first:last]

    def read_checkpoint(self, run_id: str) -> Checkpoint | None:
        """Return the run's newest checkpoint, or None."""
        self._fault("read.before")
        with self._lock:
            return self._tables.checkpoints.get(run_id)

    def read_stderr(self, run_id: str) -> bytes | None:
        """Return the stderr tail stored with the finish, or None."""
        self._fault("read.before")
        with self._lock:
            return self._tables.stderr.get(run_id)

    def read_transcript(self, run_id: str) -> bytes | None:
        """Return the transcript stored with the finish, or None."""
        self._fault("read.before")
        with self._lock:
            return self._tables.transcripts.get(run_id)

    def read_transcripts(self, run_ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        """Return the transcripts of runs, in this order, until `max_bytes` are reached, at least one."""
        self._fault("read.before")
        found: dict[str, bytes] = {}
        with self._lock:
            for run_id in run_ids:
                if (stored := self._tables.transcripts.get(run_id)) is not None and (not found or max_bytes > 0):
                    found[run_id] = stored
                    max_bytes -= len(stored)
        return found

    def list_runs(self, query: RunQuery) -> RunPage:
        """Return one page of runs, newest first. Raises InputInvalid `cursor_invalid`."""
        self._fault("read.before")
        below, limit = decode_cursor(query.cursor), page_limit(query.limit)
        with self._lock:
            ordinals = self._tables.ordinals
            found: list[tuple[Head, RunSpec]] = []
            for head in self._newest_first(query.owner):
                if ordinals[head.run_id] >= below or not _matches(head, query):
                    continue
                if len(found) == limit:
                    return RunPage(runs=found, next=encode_cursor(ordinals[found[-1][0].run_id]))
                found.append((head, self._tables.specs[head.run_id]))
            return RunPage(runs=found, next=None)

    def list_unfinished(self, shard: int) -> list[Head]:
        """Return every run of this shard that is not terminal, oldest first."""
        self._fault("read.before")
        with self._lock:
            tables = self._tables
            return [tables.heads[run_id] for run_id in tables.open_runs if tables.shard_of[run_id] == shard]

    def list_changed(self, shard: int, known: Mapping[str, int]) -> list[Head]:
        """Return the unfinished runs of this shard that are newer than their versions in `known`."""
        return [head for head in self.list_unfinished(shard) if head.version > known.get(head.run_id, -1)]

    def list_destroy_pending(self, shard: int) -> list[Head]:
        """Return every ended run of this shard whose sandbox is not known to be destroyed."""
        self._fault("read.before")
        with self._lock:
            tables = self._tables
            return [
                head for run_id, head in tables.heads.items() if head.to_destroy and tables.shard_of[run_id] == shard
            ]

    def list_reapable(self, shard: int, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:
        """Return the runs of this shard whose `stage` is due, longest due first."""
        self._fault("read.before")
        with self._lock:
            tables = self._tables
            mine = (head for run_id, head in tables.heads.items() if tables.shard_of[run_id] == shard)
            found = [(due[1], head) for head in mine if (due := reaping.due(head)) is not None and due[0] is stage]
            if stage is ReapStage.ACCOUNT:
                found = [(due_ms, head) for due_ms, head in found if not head.destroy_pending]
            found.sort(key=lambda pair: pair[0])
            return [head for due_ms, head in found if due_ms <= before_ms][:limit]

    def find_active(self, owner: str, thread_id: str) -> Head | None:
        """Return the run of the thread that is `running` and not queued."""
        self._fault("read.before")
        with self._lock:
            holder = Transaction(self._tables, 0).holder(owner, thread_id)
            return holder if holder is not None and holder.status is Status.RUNNING else None

    def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """Return the thread's runs, oldest first."""
        self._fault("read.before")
        with self._lock:
            mine = [head for head in self._newest_first(owner) if head.thread_id == thread_id]
            return [(head, self._tables.specs[head.run_id]) for head in reversed(mine)]

    def check(self) -> Mapping[str, Any]:
        """Return facts for `doctor`."""
        self._fault("read.before")
        return {"store": "memory", "durable": False, "shards": self._shards, "runs": len(self._tables.heads)}

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _newest_first(self, owner: str | None) -> Iterator[Head]:
        heads = self._tables.heads
        newest = (heads[run_id] for run_id in reversed(self._tables.ordinals))
        return (head for head in newest if owner in (None, head.owner))


def _one(view: Transaction, op: Op, now_ms: int) -> Outcome:
    try:
        decision = decide(view, op, now_ms)
        view.apply(decision)
    except Exception as error:  # noqa: BLE001 - a defect of one operation must not lose the others (P7)
        return unstorable(op, error)
    return decision.outcome


def _matches(head: Head, query: RunQuery) -> bool:
    return (query.status is None or head.status is query.status) and (
        query.thread_id is None or head.thread_id == query.thread_id
    )
