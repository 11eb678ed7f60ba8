"""What a MemoryStore holds, and one transaction's view of it: copy on write over dicts.

`Tables` changes only in `Transaction.merge`. Until then everything that a transaction writes lies in its own dicts, so
a transaction that is dropped never happened.
"""

from __future__ import annotations

from bisect import bisect_left

from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.decision import Decision, SupervisorRow
from runtime.core.generations import next_epoch, raised
from runtime.core.owned import total_bytes
from runtime.core.record import Head, RunSpec

Thread = tuple[str, str]  # owner, thread id
_NOBODY = SupervisorRow(epoch=0, claimant="")


class Tables:
    """The rows. Dicts keep the order of creation; `open_runs` and `open_in_thread` name what is not terminal."""

    def __init__(self) -> None:
        self.heads: dict[str, Head] = {}
        self.specs: dict[str, RunSpec] = {}
        self.ordinals: dict[str, int] = {}
        self.shard_of: dict[str, int] = {}
        self.logs: dict[str, list[Batch]] = {}
        self.keys: dict[tuple[str, str], Batch] = {}
        self.stderr: dict[str, bytes] = {}
        self.transcripts: dict[str, bytes] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.open_runs: dict[str, None] = {}
        self.open_in_thread: dict[Thread, tuple[str, ...]] = {}
        self.supervisor = _NOBODY
        self.generation = 0

    def raise_generation(self, generation: int) -> None:
        """Bring every run that goes on, and the supervisor's row, to `generation` (P10)."""
        self.generation = generation
        self.supervisor = SupervisorRow(epoch=next_epoch(self.supervisor.epoch, generation), claimant="")
        for run_id in self.open_runs:
            self.heads[run_id] = raised(self.heads[run_id], generation)

    def drop_end(self, run_id: str, batches: int) -> int:
        """Remove the newest `batches` of a log; return how many positions are left."""
        log = self.logs.get(run_id, [])
        for batch in log[-batches:]:
            if batch.key is not None:
                del self.keys[run_id, batch.key]
        left = self.logs[run_id] = log[:-batches]
        return left[-1].next_seq if left else 0


class Transaction:
    """A `View` of `tables` with its own writes on top."""

    def __init__(self, tables: Tables, shard: int) -> None:
        self._tables = tables
        self._shard = shard
        self._heads: dict[str, Head] = {}
        self._specs: dict[str, RunSpec] = {}
        self._batches: list[Batch] = []
        self._stderr: dict[str, bytes] = {}
        self._transcripts: dict[str, bytes] = {}
        self._checkpoints: dict[str, Checkpoint | None] = {}
        self._forgotten: set[str] = set()
        self._supervisor: SupervisorRow | None = None

    def head(self, run_id: str) -> Head | None:
        """Return the run's head."""
        return self._heads.get(run_id) or self._tables.heads.get(run_id)

    def spec(self, run_id: str) -> RunSpec:
        """Return the spec of a run that exists."""
        return self._specs.get(run_id) or self._tables.specs[run_id]

    def batch_at(self, run_id: str, seq: int) -> Batch | None:
        """Return the batch that starts at `seq`."""
        for batch in self._batches:
            if batch.seq == seq and batch.run_id == run_id:
                return batch
        log = self._tables.logs.get(run_id, ())
        place = bisect_left(log, seq, key=_seq)
        return log[place] if place < len(log) and log[place].seq == seq else None

    def batch_by_key(self, run_id: str, key: str) -> Batch | None:
        """Return the live batch with this key."""
        for batch in self._batches:
            if batch.key == key and batch.run_id == run_id:
                return batch
        return self._tables.keys.get((run_id, key))

    def holder(self, owner: str, thread_id: str) -> Head | None:
        """Return the active run of the thread (not terminal, not queued)."""
        return next((head for head in self._thread(owner, thread_id) if head.active), None)

    def oldest_queued(self, owner: str, thread_id: str) -> Head | None:
        """Return the run of the thread that has been queued longest."""
        waiting = (head for head in self._thread(owner, thread_id) if head.queued and not head.status.terminal)
        return next(waiting, None)

    def unfinished_runs(self, owner: str | None = None) -> int:
        """Return how many runs are not terminal, of all owners or of one."""
        stored, heads = self._tables.open_runs, self._tables.heads
        count = sum(owner in (None, heads[run_id].owner) for run_id in stored)
        for run_id, head in self._heads.items():
            if owner in (None, head.owner):
                count += (not head.status.terminal) - (run_id in stored)
        return count

    def owned_bytes(self, owner: str) -> int:
        """Return what the owner's logs hold."""
        return total_bytes((self._tables.heads | self._heads).values(), owner)

    def supervisor(self) -> SupervisorRow:
        """Return the current supervisor; epoch 0 before the first."""
        return self._supervisor or self._tables.supervisor

    def generation(self) -> int:
        """Return the generation of new runs (P10)."""
        return self._tables.generation

    def apply(self, decision: Decision) -> None:
        """Write what the decision says, or nothing of it.

        Raises ValueError for rows that no store may hold: a bug in the machine that a database would refuse too."""
        created = decision.created
        heads = decision.heads if created is None else (*decision.heads, created[0])
        written = {head.run_id: head for head in heads}
        for head in heads:
            self._refuse_second_holder(head, written)
        self._refuse_twins(decision)
        self._heads.update(written)
        if created is not None:
            self._specs[created[0].run_id] = created[1]
        if decision.batch is not None:
            self._batches.append(decision.batch)
        if decision.stderr is not None:
            self._stderr[decision.heads[0].run_id] = decision.stderr
        if decision.transcript is not None:
            self._transcripts[decision.heads[0].run_id] = decision.transcript
        if decision.checkpoint is not None:
            self._checkpoints[decision.checkpoint.run_id] = decision.checkpoint
        if decision.ended:
            self._checkpoints[decision.heads[0].run_id] = None
        if decision.forgotten:
            self._forgotten.add(decision.heads[0].run_id)
        if decision.supervisor is not None:
            self._supervisor = decision.supervisor

    def merge(self) -> None:
        """Make the writes of this transaction the truth."""
        tables = self._tables
        for run_id, spec in self._specs.items():
            tables.specs[run_id] = spec
            tables.ordinals[run_id] = len(tables.ordinals) + 1
            tables.shard_of[run_id] = self._shard
        for run_id, head in self._heads.items():
            tables.heads[run_id] = head
            self._merge_open(head)
        for batch in self._batches:
            tables.logs.setdefault(batch.run_id, []).append(batch)
            if batch.key is not None:
                tables.keys[batch.run_id, batch.key] = batch
        tables.stderr.update(self._stderr)
        tables.transcripts.update(self._transcripts)
        for run_id in self._forgotten:
            tables.stderr.pop(run_id, None)
            tables.transcripts.pop(run_id, None)
        for run_id, checkpoint in self._checkpoints.items():
            if checkpoint is None:
                tables.checkpoints.pop(run_id, None)
            else:
                tables.checkpoints[run_id] = checkpoint
        tables.supervisor = self.supervisor()

    def _thread(self, owner: str, thread_id: str) -> list[Head]:
        """Return what is not terminal in the thread, as this transaction sees it, in the order of creation."""
        run_ids = self._tables.open_in_thread.get((owner, thread_id), ())
        stored = [head for run_id in run_ids if (head := self.head(run_id)) is not None]
        created = [self._heads[run_id] for run_id in self._specs]
        return stored + [head for head in created if head.owner == owner and head.thread_id == thread_id]

    def _refuse_second_holder(self, head: Head, written: dict[str, Head]) -> None:
        before = self.head(head.run_id)
        if not head.active or (before is not None and before.active):
            return
        holder = self.holder(head.owner, head.thread_id)
        if holder is not None and written.get(holder.run_id, holder).active:
            raise ValueError(f"{holder.run_id} and {head.run_id} would both hold thread {head.thread_id}")

    def _refuse_twins(self, decision: Decision) -> None:
        batch, created = decision.batch, decision.created
        if created is not None and self.head(created[0].run_id) is not None:
            raise ValueError(f"run {created[0].run_id} exists")
        if batch is None:
            return
        if self.batch_at(batch.run_id, batch.seq) is not None:
            raise ValueError(f"run {batch.run_id} has a batch at {batch.seq}")
        if batch.key is not None and self.batch_by_key(batch.run_id, batch.key) is not None:
            raise ValueError(f"run {batch.run_id} has a batch with key {batch.key}")

    def _merge_open(self, head: Head) -> None:
        tables, thread = self._tables, (head.owner, head.thread_id)
        if not head.status.terminal:
            if head.run_id not in tables.open_runs:
                tables.open_runs[head.run_id] = None
                tables.open_in_thread[thread] = (*tables.open_in_thread.get(thread, ()), head.run_id)
        elif head.run_id in tables.open_runs:
            del tables.open_runs[head.run_id]
            left = tuple(run_id for run_id in tables.open_in_thread[thread] if run_id != head.run_id)
            if left:
                tables.open_in_thread[thread] = left
            else:
                del tables.open_in_thread[thread]


def _seq(batch: Batch) -> int:
    return batch.seq
