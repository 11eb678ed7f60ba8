"""From a refusal, which is a value, to the exception that a caller's handler branches on."""

from __future__ import annotations

from runtime.core.ids import shown_run_id
from runtime.core.ops import (
    AlreadyEnded,
    Closed,
    DigestDiffers,
    IllegalMove,
    LogFull,
    MustAbort,
    NotClaimable,
    NothingToResume,
    Refusal,
    SeqConflict,
    Superseded,
    SupervisorStale,
    ThreadBusy,
    TooManyBytes,
    TooManyRuns,
    UnknownRun,
    Unstorable,
)
from runtime.errors import (
    InputInvalid,
    LogClosedError,
    OutlastError,
    RunClaimLostError,
    RunEnded,
    RunExists,
    RunNotFound,
    SequenceConflictError,
    SupervisorSuperseded,
    ThreadActive,
    TooMany,
)

LOGS_AGE_S = 3600  # what is to be waited for is a retention, of days


def to_error(refusal: Refusal) -> OutlastError:
    """Return the exception for a refusal, for callers that raise. It names runs as their owners do."""
    match refusal:
        case DigestDiffers() | ThreadBusy() | NothingToResume() | TooManyRuns() | TooManyBytes():
            return _not_created(refusal)
        case UnknownRun(run_id=run_id):
            return RunNotFound(shown_run_id(run_id))
        case Superseded(run_id=run_id, held_epoch=held, current_epoch=current):
            return RunClaimLostError(run_id, held, current)
        case AlreadyEnded(run_id=run_id, status=status):
            return RunEnded(shown_run_id(run_id), status)
        case NotClaimable(run_id=run_id):
            return RunEnded(shown_run_id(run_id), "queued or interrupted")
        case Closed(run_id=run_id):
            return LogClosedError(run_id)
        case SeqConflict(run_id=run_id, seq=seq, next_seq=next_seq):
            return SequenceConflictError(run_id, seq, next_seq)
        case LogFull(run_id=run_id, limit=limit):
            return OutlastError(f"The log of run {run_id!r} is at its bound of {limit} bytes.", code="log_limit")
        case MustAbort(run_id=run_id):
            return OutlastError(f"Run {run_id!r} is cancelled and can only end as aborted.", code="aborted")
        case IllegalMove(run_id=run_id, from_=from_, to=to):
            return OutlastError(f"Run {run_id!r} cannot go from {from_} to {to}.", code="illegal_move")
        case SupervisorStale(held_epoch=held, current_epoch=current):
            return SupervisorSuperseded(held, current)
        case Unstorable(run_id=run_id, detail=detail):
            return OutlastError(f"An operation of run {run_id!r} cannot be stored: {detail}", code="internal")


def _not_created(refusal: DigestDiffers | ThreadBusy | NothingToResume | TooManyRuns | TooManyBytes) -> OutlastError:
    match refusal:
        case DigestDiffers(run_id=run_id):
            return RunExists(shown_run_id(run_id))
        case ThreadBusy(thread_id=thread_id, active_run_id=active):
            return ThreadActive(thread_id, shown_run_id(active))
        case NothingToResume(thread_id=thread_id):
            return InputInvalid(
                f"resume answers an interrupted run, and thread {thread_id!r} has none now. Send a message instead.",
                code="resume_invalid",
                field="resume",
            )
        case TooManyBytes(limit=limit):
            return TooMany(
                f"Your logs hold {limit} bytes or more, which is the limit (OUTLAST_OWNER_MAX_BYTES). It is less again "
                "when logs are older than they are kept.",
                code="too_many_bytes",
                retry_after_s=LOGS_AGE_S,
            )
        case TooManyRuns(limit=limit, of_owner=of_owner):
            whose, setting = (" of yours", "OWNER_MAX_RUNS") if of_owner else ("", "MAX_RUNS")
            return TooMany(
                f"{limit} runs{whose} are active, which is the limit (OUTLAST_{setting}). Try again when one has ended."
            )
