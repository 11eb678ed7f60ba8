"""What one transaction sees, and what it is told to write."""

from __future__ import annotations

from typing import Protocol

from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.ops import Outcome
from runtime.core.record import Head, RunSpec, Struct


class SupervisorRow(Struct, frozen=True, kw_only=True):
    """Who decides (P6)."""

    epoch: int
    claimant: str


class View(Protocol):
    """What one transaction sees, its own earlier writes included."""

    def head(self, run_id: str) -> Head | None:
        """Return the run's head."""

    def spec(self, run_id: str) -> RunSpec:
        """Return the spec of a run that exists."""

    def batch_at(self, run_id: str, seq: int) -> Batch | None:
        """Return the batch that starts at `seq`."""

    def batch_by_key(self, run_id: str, key: str) -> Batch | None:
        """Return the live batch with this key."""

    def holder(self, owner: str, thread_id: str) -> Head | None:
        """Return the active run of the thread (not terminal, not queued)."""

    def oldest_queued(self, owner: str, thread_id: str) -> Head | None:
        """Return the run of the thread that has been queued longest."""

    def unfinished_runs(self, owner: str | None = None) -> int:
        """Return how many runs are not terminal, of all owners or of one."""

    def owned_bytes(self, owner: str) -> int:
        """Return what the owner's logs hold (`core/owned.py`)."""

    def supervisor(self) -> SupervisorRow:
        """Return the current supervisor; epoch 0 before the first."""

    def generation(self) -> int:
        """Return the generation of the store's offsets (P10)."""


class Decision(Struct, frozen=True, kw_only=True):
    """The answer, and what the transaction writes for it: nothing, for a refusal. `heads` in this order and before
    `created`, since the one-active-run index is checked row by row. `stderr` and `transcript` are the first head's
    run's; `checkpoint` takes the place of its run's. Of the first head's run, `ended` removes the checkpoint, and
    `forgotten` the transcript and stderr."""

    outcome: Outcome
    created: tuple[Head, RunSpec] | None = None
    heads: tuple[Head, ...] = ()
    batch: Batch | None = None
    stderr: bytes | None = None
    transcript: bytes | None = None
    supervisor: SupervisorRow | None = None
    checkpoint: Checkpoint | None = None
    ended: bool = False
    forgotten: bool = False
