"""The plainest View: dicts that a Decision is written to at once. For tests of the machine alone."""

from __future__ import annotations

from typing import Any

from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.decision import Decision, SupervisorRow
from runtime.core.generations import next_epoch, next_generation, raised
from runtime.core.machine import decide
from runtime.core.ops import Op, Outcome
from runtime.core.owned import total_bytes
from runtime.core.record import Head, RunSpec


class DictView:
    """Rows in dicts. `rows()` is all of them, to compare before and after."""

    def __init__(self) -> None:
        self.heads: dict[str, Head] = {}
        self.specs: dict[str, RunSpec] = {}
        self.batches: dict[tuple[str, int], Batch] = {}
        self.tails: dict[str, bytes] = {}
        self.transcripts: dict[str, bytes] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.supervisor_row = SupervisorRow(epoch=0, claimant="")
        self.now_generation = 0

    def head(self, run_id: str) -> Head | None:
        """Return the run's head."""
        return self.heads.get(run_id)

    def spec(self, run_id: str) -> RunSpec:
        """Return the spec of a run that exists."""
        return self.specs[run_id]

    def batch_at(self, run_id: str, seq: int) -> Batch | None:
        """Return the batch that starts at `seq`."""
        return self.batches.get((run_id, seq))

    def batch_by_key(self, run_id: str, key: str) -> Batch | None:
        """Return the live batch with this key."""
        return next((batch for batch in self.log(run_id) if batch.key == key), None)

    def holder(self, owner: str, thread_id: str) -> Head | None:
        """Return the active run of the thread."""
        return next((head for head in self._thread(owner, thread_id) if head.active), None)

    def oldest_queued(self, owner: str, thread_id: str) -> Head | None:
        """Return the run of the thread that has been queued longest."""
        return next((head for head in self._thread(owner, thread_id) if head.queued), None)

    def unfinished_runs(self, owner: str | None = None) -> int:
        """Return how many runs are not terminal, of all owners or of one."""
        mine = (head for head in self.heads.values() if owner in (None, head.owner))
        return sum(not head.status.terminal for head in mine)

    def owned_bytes(self, owner: str) -> int:
        """Return what the owner's logs hold."""
        return total_bytes(self.heads.values(), owner)

    def supervisor(self) -> SupervisorRow:
        """Return the current supervisor."""
        return self.supervisor_row

    def generation(self) -> int:
        """Return the generation of new runs."""
        return self.now_generation

    def raise_generation(self, now_ms: int = 1) -> None:
        """Let it be known that something is lost."""
        generation = self.now_generation = next_generation(self.now_generation, now_ms)
        self.supervisor_row = SupervisorRow(epoch=next_epoch(self.supervisor_row.epoch, generation), claimant="")
        self.heads |= {
            run_id: raised(head, generation) for run_id, head in self.heads.items() if not head.status.terminal
        }

    def log(self, run_id: str) -> list[Batch]:
        """Return the run's batches in order."""
        return [batch for (of_run, _), batch in sorted(self.batches.items()) if of_run == run_id]

    def do(self, op: Op, now_ms: int = 1) -> Outcome:
        """Decide `op` and write the decision."""
        decision = decide(self, op, now_ms)
        self.write(decision)
        return decision.outcome

    def write(self, decision: Decision) -> None:
        """Write the decision, asserting what every store's indexes hold."""
        for head in decision.heads:
            assert head.run_id in self.heads
            self._put(head)
        if decision.created is not None:
            head, self.specs[head.run_id] = decision.created
            assert head.run_id not in self.heads
            self._put(head)
        if decision.batch is not None:
            place = decision.batch.run_id, decision.batch.seq
            assert place not in self.batches
            self.batches[place] = decision.batch
        if decision.stderr is not None:
            self.tails[decision.heads[0].run_id] = decision.stderr
        if decision.transcript is not None:
            self.transcripts[decision.heads[0].run_id] = decision.transcript
        if decision.checkpoint is not None:
            self.checkpoints[decision.checkpoint.run_id] = decision.checkpoint
        if decision.ended:
            self.checkpoints.pop(decision.heads[0].run_id, None)
        if decision.forgotten:
            self.tails.pop(decision.heads[0].run_id, None)
            self.transcripts.pop(decision.heads[0].run_id, None)
        if decision.supervisor is not None:
            self.supervisor_row = decision.supervisor

    def _put(self, head: Head) -> None:
        self.heads[head.run_id] = head
        active = [other for other in self._thread(head.owner, head.thread_id) if other.active]
        assert len(active) <= 1, f"{active} hold one thread"

    def copy(self) -> DictView:
        """Return an independent copy; rows are immutable."""
        twin = DictView()
        twin.heads, twin.specs = dict(self.heads), dict(self.specs)
        twin.batches, twin.tails = dict(self.batches), dict(self.tails)
        twin.checkpoints, twin.transcripts = dict(self.checkpoints), dict(self.transcripts)
        twin.supervisor_row = self.supervisor_row
        twin.now_generation = self.now_generation
        return twin

    def rows(self) -> tuple[object, ...]:
        """Return everything stored."""
        kept = self.tails, self.transcripts, self.checkpoints
        rows: tuple[dict[Any, Any], ...] = (self.heads, self.specs, self.batches, *kept)
        return *(dict(each) for each in rows), self.supervisor_row

    def _thread(self, owner: str, thread_id: str) -> list[Head]:
        return [head for head in self.heads.values() if (head.owner, head.thread_id) == (owner, thread_id)]
