"""Create a run, and claim it (P1, P2, P12). The order of checks is told in `machine.py`."""

from __future__ import annotations

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.decision import Decision, View
from runtime.core.generations import claimed_epoch
from runtime.core.heads import end_last_claim, superseded, with_cancel, with_claim
from runtime.core.ops import (
    AlreadyEnded,
    Claimed,
    ClaimRun,
    Create,
    Created,
    DigestDiffers,
    Joined,
    NotClaimable,
    NothingToResume,
    ThreadBusy,
    TooManyBytes,
    TooManyRuns,
    UnknownRun,
)
from runtime.core.record import CancelReason, Claim, ClaimEnd, ClaimReason, Head, Notice, Status


def create(view: View, op: Create, now_ms: int) -> Decision:
    """Decide the creation of a run, or find the one of the same request (P2, P12, I9)."""
    found = view.head(op.run_id)
    if found is not None:
        same = found.digest == op.digest and found.owner == op.owner
        return Decision(outcome=Joined(head=found) if same else DigestDiffers(run_id=op.run_id))
    if op.max_runs and not op.resumes and view.unfinished_runs() >= op.max_runs:
        return Decision(outcome=TooManyRuns(limit=op.max_runs))
    if op.owner_max_runs and not op.resumes and view.unfinished_runs(op.owner) >= op.owner_max_runs:
        return Decision(outcome=TooManyRuns(limit=op.owner_max_runs, of_owner=True))
    if op.owner_max_bytes and not op.resumes and view.owned_bytes(op.owner) >= op.owner_max_bytes:
        return Decision(outcome=TooManyBytes(limit=op.owner_max_bytes))
    holder = view.holder(op.owner, op.thread_id)
    if op.resumes:
        return _resume(view, op, holder, now_ms)
    cancels = holder is not None and op.on_busy == "cancel-previous" and not holder.cancel_requested
    if holder is not None and op.on_busy == "reject" and not holder.cancel_requested:
        return Decision(outcome=ThreadBusy(thread_id=op.thread_id, active_run_id=holder.run_id))
    head, accepted = _new(view, op, now_ms, queued=holder is not None)
    cancelled = with_cancel(holder, CancelReason.USER) if holder is not None and cancels else None
    return Decision(
        outcome=Created(head=head, cancelled_previous=cancelled.run_id if cancelled else None),
        created=(head, op.spec),
        heads=(cancelled,) if cancelled else (),
        batch=accepted,
    )


def _resume(view: View, op: Create, holder: Head | None, now_ms: int) -> Decision:
    """Decide a run that goes on where its thread's interrupted one asked: that one is completed (P23). No bound on the
    number of runs is in its way."""
    if holder is None or holder.status is not Status.INTERRUPTED or holder.cancel_requested:
        return Decision(outcome=NothingToResume(thread_id=op.thread_id))
    notice = holder.notice or (Notice() if op.tell else None)
    resumed = holder.with_(status=Status.COMPLETED, finished_at=now_ms, notice=notice)
    head, accepted = _new(view, op, now_ms, queued=False)
    return Decision(
        outcome=Created(head=head, resumed=resumed), created=(head, op.spec), heads=(resumed,), batch=accepted
    )


def _new(view: View, op: Create, now_ms: int, *, queued: bool) -> tuple[Head, Batch]:
    accepted = Batch(run_id=op.run_id, seq=0, count=1, epoch=0, band=Band.LIVE, data=chunk.run_accepted())
    head = Head(
        run_id=op.run_id,
        thread_id=op.thread_id,
        owner=op.owner,
        digest=op.digest,
        created_at=now_ms,
        queued=queued,
        queued_at=now_ms if queued else None,
        detached_since=now_ms,
        detached_ttl_s=op.spec.limits.detached_ttl_s,
        next_seq=1,
        log_bytes=len(accepted.data),
        generation=view.generation(),
    )
    return head, accepted


def claim(view: View, op: ClaimRun, now_ms: int) -> Decision:
    """Decide a compare-and-set on the driver epoch; the first answer again for the same claimant (P1)."""
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    if head.driver_epoch != op.expected_epoch:
        if _is_first_answer(head, op):
            return Decision(outcome=Claimed(head=head, spec=view.spec(op.run_id), batches=[]))
        return Decision(outcome=superseded(head, op.expected_epoch + 1))
    if head.status.terminal:
        return Decision(outcome=AlreadyEnded(run_id=op.run_id, status=head.status))
    if not head.needs_driver and op.reason not in (ClaimReason.CANCEL, ClaimReason.REAP):
        return Decision(outcome=NotClaimable(run_id=op.run_id))
    epoch = claimed_epoch(head.driver_epoch, head.generation)
    spec = view.spec(op.run_id)
    claim = Claim(epoch=epoch, claimant=op.claimant, reason=op.reason, claimed_at=now_ms)
    claimed = head.with_(
        driver_epoch=epoch,
        started_at=head.started_at if head.started_at is not None else now_ms,
        detached_ttl_s=spec.limits.detached_ttl_s,  # a run made by a version that kept it in the spec alone
        claims_without_progress=head.claims_without_progress + 1,
        claims=with_claim(end_last_claim(head.claims, now_ms, ClaimEnd.SUPERSEDED), claim),
    )
    return Decision(outcome=Claimed(head=claimed, spec=spec, batches=[]), heads=(claimed,))


def _is_first_answer(head: Head, op: ClaimRun) -> bool:
    return (
        head.driver_epoch == claimed_epoch(op.expected_epoch, head.generation)
        and bool(head.claims)
        and head.claims[-1].claimant.claimant == op.claimant.claimant
    )
