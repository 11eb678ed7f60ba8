"""Everything that can be asked of a run's record and log, and every answer.

An operation is a value. One store transaction takes a list of them, and `machine.decide` answers each on its own
(P7): a refusal of one never touches another. Operations of a driver carry its `epoch` (P3); intents of outsiders
(cancel, attach, detach, takeover request) carry none and change only their own fields.

Answers are values too. `Refusal`s say why nothing was written; `to_error` in `refusing.py` turns one into the exception
that the caller's handler branches on.
"""

from __future__ import annotations

from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.reap_ops import NoticeOp, ReapOp
from runtime.core.record import (
    CancelReason,
    Claimant,
    ClaimReason,
    Head,
    Launch,
    RunError,
    RunSpec,
    Status,
    Struct,
)

# --- operations ------------------------------------------------------------------------------------------------


class Create(Struct, frozen=True, kw_only=True, tag=True):
    """Create the record and `run.accepted`, or find what is there (P2, P12, I9)."""

    run_id: str
    thread_id: str
    owner: str
    spec: RunSpec
    digest: str
    on_busy: str = "reject"  # reject | enqueue | cancel-previous
    max_runs: int = 0  # not terminal at once in the store; 0: no bound
    owner_max_runs: int = 0  # of the owner's
    owner_max_bytes: int = 0  # that the owner's logs may hold for one more run to begin; 0: no bound
    resumes: bool = False  # it answers what the thread's interrupted run asks, and takes its place (P23)
    tell: bool = False  # as `Finish.tell`: of the interrupted run, which may have ended before somebody was to be told


class ClaimRun(Struct, frozen=True, kw_only=True, tag=True):
    """Become the driver: compare-and-set on the epoch (P1)."""

    run_id: str
    expected_epoch: int
    claimant: Claimant
    reason: ClaimReason


class Append(Struct, frozen=True, kw_only=True, tag=True):
    """Store `batch` at `batch.seq` under `batch.epoch` (P3, P7). The same batch again gets the first answer.

    `checkpoint` replaces the run's, in the same transaction (P25); a repeat has stored it already."""

    batch: Batch
    max_log_bytes: int = 0  # 0: no bound
    checkpoint: Checkpoint | None = None

    @property
    def run_id(self) -> str:
        """Return the run that the batch belongs to."""
        return self.batch.run_id


class Note(Struct, frozen=True, kw_only=True, tag=True):
    """A driver's remark about its sandbox or progress, under its epoch (P3). Unset fields are left alone."""

    run_id: str
    epoch: int
    sandbox_key: str | None = None
    launch: Launch | None = None
    progressed: bool = False
    destroy_pending: bool | None = None  # True, of a sandbox that is kept: it is not any more
    handed_over: bool = False  # everything it had is stored; it goes, as it was asked to
    heard_to: int = 0  # bytes of the journal that were read and made no chunk end here: a sign of the agent (I6)


class Finish(Struct, frozen=True, kw_only=True, tag=True):
    """End the run: `batch` holds closers and the terminal chunk, and is the log's last (P9).

    `keep_s`: with `completed` the sandbox may stay so long, unless another run waits for the thread; `head` says.
    If a cancel is recorded, only `aborted` can be stored: the answer is then `MustAbort` and the driver builds its
    ending again. `stderr` is the tail of the agent's stderr, at most 64 KiB. `transcript` is the whole log's, this
    batch included (`core/transcript.py`); the shard adds it, since it has the log. None: what is stored stays."""

    batch: Batch
    status: Status
    error: RunError | None = None
    exit_code: int | None = None
    signal: int | None = None
    usage: dict[str, object] | None = None
    stderr: bytes = b""
    destroy_pending: bool = True
    keep_s: int = 0
    transcript: bytes | None = None
    tell: bool = False  # somebody is to be told (`core/noticing.py`); the shard adds it, whoever ends the run

    @property
    def run_id(self) -> str:
        """Return the run that ends."""
        return self.batch.run_id


class RequestCancel(Struct, frozen=True, kw_only=True, tag=True):
    """Record that the run shall stop (P21). `only_if_detached_since` is `onDisconnect: cancel`: set only if the run is
    still detached since no later than that UTC ms."""

    run_id: str
    reason: CancelReason
    only_if_detached_since: int | None = None


class RequestHandover(Struct, frozen=True, kw_only=True, tag=True):
    """Record that the current driver shall hand over (operator, drain)."""

    run_id: str


class Attach(Struct, frozen=True, kw_only=True, tag=True):
    """A viewer came: clear `detachedSince` (P20)."""

    run_id: str


class Detach(Struct, frozen=True, kw_only=True, tag=True):
    """The last viewer left: set `detachedSince` if it is unset (P20)."""

    run_id: str
    since: int


class OpenSupervisor(Struct, frozen=True, kw_only=True, tag=True):
    """Become the supervisor; answers `SupervisorOpened` (P6). The same claimant again gets the same epoch."""

    claimant: str


class Assign(Struct, frozen=True, kw_only=True, tag=True):
    """The supervisor decides that a run gets a new driver (P6, P19): checked against the supervisor's epoch and the
    run's; counts attempts without progress. `assignment` names the decision: repeated, it counts once (I9)."""

    run_id: str
    expected_epoch: int
    supervisor_epoch: int
    max_attempts: int
    assignment: str = ""


Op = (
    Create
    | ClaimRun
    | Append
    | Note
    | Finish
    | RequestCancel
    | RequestHandover
    | Attach
    | Detach
    | OpenSupervisor
    | Assign
    | ReapOp
    | NoticeOp
)


# --- answers ---------------------------------------------------------------------------------------------------


class Created(Struct, frozen=True, kw_only=True, tag=True):
    """The run is new. `head.queued` tells whether it waits for its thread; `resumed` is the interrupted run whose place
    it has taken, completed now (P23)."""

    head: Head
    cancelled_previous: str | None = None
    resumed: Head | None = None


class Joined(Struct, frozen=True, kw_only=True, tag=True):
    """The run was there, from the same request (I9)."""

    head: Head


class Claimed(Struct, frozen=True, kw_only=True, tag=True):
    """You drive the run at `head.driver_epoch`. Its log is what is stored below `head.next_seq` (P1, P24): batches
    never change, so they are read after the transaction. A shard adds the run's checkpoint (nobody else may write one
    any more, P3) and the first page after it; a store's own answer has neither."""

    head: Head
    spec: RunSpec
    batches: list[Batch]
    checkpoint: Checkpoint | None = None


class Done(Struct, frozen=True, kw_only=True, tag=True):
    """Written (or found written). `head` is the row after it; `changed` is False if there was nothing to do."""

    head: Head
    changed: bool = True


class Appended(Struct, frozen=True, kw_only=True, tag=True):
    """The chunks are stored at [`seq`, `next_seq`). `repeat`: they already were."""

    seq: int
    next_seq: int
    head: Head
    repeat: bool = False


class Finished(Struct, frozen=True, kw_only=True, tag=True):
    """The run has ended in this one transaction (I5). `unqueued` is the run whose thread it freed (P12)."""

    head: Head
    unqueued: Head | None = None
    repeat: bool = False


class SupervisorOpened(Struct, frozen=True, kw_only=True, tag=True):
    """You decide, at `epoch`."""

    epoch: int


class Assigned(Struct, frozen=True, kw_only=True, tag=True):
    """Create the driver with `expected_epoch`; it is attempt number `attempt` without progress."""

    head: Head
    attempt: int


class Exhausted(Struct, frozen=True, kw_only=True, tag=True):
    """No more attempts: the supervisor claims and finishes with `takeover_exhausted`."""

    head: Head


# --- refusals: nothing was written -----------------------------------------------------------------------------


class UnknownRun(Struct, frozen=True, kw_only=True, tag=True):
    """No such run (for this owner)."""

    run_id: str


class DigestDiffers(Struct, frozen=True, kw_only=True, tag=True):
    """The run id is taken by another request."""

    run_id: str


class ThreadBusy(Struct, frozen=True, kw_only=True, tag=True):
    """Another run holds the thread."""

    thread_id: str
    active_run_id: str


class NothingToResume(Struct, frozen=True, kw_only=True, tag=True):
    """The thread has no run that waits for an answer."""

    thread_id: str


class TooManyRuns(Struct, frozen=True, kw_only=True, tag=True):
    """`limit` runs are active already; `of_owner`: of the owner's."""

    limit: int
    of_owner: bool = False


class TooManyBytes(Struct, frozen=True, kw_only=True, tag=True):
    """The owner's logs hold `limit` bytes already, or more."""

    limit: int


class Superseded(Struct, frozen=True, kw_only=True, tag=True):
    """A newer epoch drives the run (I1)."""

    run_id: str
    held_epoch: int
    current_epoch: int


class AlreadyEnded(Struct, frozen=True, kw_only=True, tag=True):
    """The run is terminal."""

    run_id: str
    status: Status


class NotClaimable(Struct, frozen=True, kw_only=True, tag=True):
    """The run is queued or interrupted: it has no driver and needs none."""

    run_id: str


class Closed(Struct, frozen=True, kw_only=True, tag=True):
    """The log has ended."""

    run_id: str


class SeqConflict(Struct, frozen=True, kw_only=True, tag=True):
    """The batch does not continue the log."""

    run_id: str
    seq: int
    next_seq: int


class LogFull(Struct, frozen=True, kw_only=True, tag=True):
    """The batch would push the log over its byte bound: end the run with `log_limit`."""

    run_id: str
    limit: int


class MustAbort(Struct, frozen=True, kw_only=True, tag=True):
    """A cancel is recorded: only `aborted` can be stored (P9)."""

    run_id: str
    reason: CancelReason


class IllegalMove(Struct, frozen=True, kw_only=True, tag=True):
    """The status does not move that way."""

    run_id: str
    from_: Status
    to: Status


class SupervisorStale(Struct, frozen=True, kw_only=True, tag=True):
    """A newer supervisor decides (P6)."""

    held_epoch: int
    current_epoch: int


class Unstorable(Struct, frozen=True, kw_only=True, tag=True):
    """A defect: this one operation could not be decided or written, for a reason of its own (a value that has no
    stored form, a constraint that a bug ran into). The others of its transaction were (P7). `detail` is for people."""

    run_id: str
    detail: str


Refusal = (
    UnknownRun
    | DigestDiffers
    | ThreadBusy
    | NothingToResume
    | TooManyRuns
    | TooManyBytes
    | Superseded
    | AlreadyEnded
    | NotClaimable
    | Closed
    | SeqConflict
    | LogFull
    | MustAbort
    | IllegalMove
    | SupervisorStale
    | Unstorable
)
Answer = Created | Joined | Claimed | Done | Appended | Finished | SupervisorOpened | Assigned | Exhausted
Outcome = Answer | Refusal
