"""An opened shard, as the cases drive it."""

from __future__ import annotations

from typing import TypeVar

from runtime.core.ops import Created, Op, Outcome
from runtime.core.record import ClaimReason, Head, Status
from runtime.ports import Store
from runtime.testing.sample_ops import OWNER, RUN, THREAD, cancel, claim, create, finish, nothing

T = TypeVar("T")


class ShardDriver:
    """Commits to shard 0 of `store` at the epoch it took, one millisecond later each time."""

    def __init__(self, store: Store, now_ms: int = 1_000_000) -> None:
        self.store = store
        self.epoch = store.open_shard(0, "the store kit")
        self.now_ms = now_ms

    def do(self, *ops: Op) -> list[Outcome]:
        """Commit `ops` in one transaction."""
        self.now_ms += 1
        outcomes = self.store.commit(0, self.epoch, ops, self.now_ms)
        assert len(outcomes) == len(ops), "one outcome for each operation"
        return outcomes

    def ask(self, op: Op, kind: type[T]) -> T:
        """Commit one operation; its outcome must be a `kind`."""
        (outcome,) = self.do(op)
        assert isinstance(outcome, kind), f"{op} got {outcome}"
        return outcome

    def refused(self, op: Op, kind: type[T]) -> T:
        """Commit one operation that must be refused as a `kind` and change nothing of its run."""
        run_id = str(getattr(op, "run_id", ""))
        before = self.store.read_run(run_id), self.log(run_id)
        outcome = self.ask(op, kind)
        assert (self.store.read_run(run_id), self.log(run_id)) == before, f"{op} was refused and wrote"
        return outcome

    def head(self, run_id: str = RUN) -> Head:
        """Return the stored head of a run that exists."""
        record = self.store.read_run(run_id)
        assert record is not None, f"{run_id} is not stored"
        return record[0]

    def log(self, run_id: str = RUN) -> list[bytes]:
        """Return the stored chunks; the batches must join without a gap."""
        chunks: list[bytes] = []
        for batch in self.store.read_batches(run_id, 0, 1 << 40):
            assert batch.seq == len(chunks), f"the log of {run_id} has a gap or an overlap at {batch.seq}"
            assert batch.count == len(batch.chunks())
            chunks += batch.chunks()
        return chunks

    def start(self, run_id: str = RUN, thread_id: str = THREAD, owner: str = OWNER) -> Head:
        """Create a run and claim it at epoch 1, by process `driver`."""
        self.do(create(run_id, thread_id, owner=owner), claim(0, "driver", run_id))
        return self.head(run_id)

    def enqueue(self, run_id: str, thread_id: str = THREAD) -> Head:
        """Create a run that waits for its thread."""
        created = self.ask(create(run_id, thread_id, on_busy="enqueue"), Created)
        assert created.head.queued
        return created.head

    def end(self, run_id: str = RUN, status: Status = Status.COMPLETED) -> Head:
        """Finish a claimed run with one more chunk."""
        head = self.head(run_id)
        self.do(finish(head.next_seq, head.driver_epoch, status, run_id))
        ended = self.head(run_id)
        assert ended.status is status
        return ended

    def reap_interrupted(self, run_id: str = RUN) -> list[Outcome]:
        """Cancel an interrupted run, claim it and end it without a chunk, as a reaper does."""
        head = self.head(run_id)
        take = claim(head.driver_epoch, "reaper", run_id, ClaimReason.REAP)
        last = nothing(head.next_seq, head.driver_epoch + 1, run_id)
        return self.do(cancel(run_id), take, finish(0, 0, Status.ABORTED, batch=last))
