"""What is to be done about a run that nobody came back for, and from when on (P22): a function of its record.

    EXPIRE     it goes on, detached:        at `detachedSince` + its own TTL; never where it has none
    TELL       it has ended:                who is to know is told (`core/noticing.py`), again and again if need be
    ACCOUNT    it has ended, detached:      once its sandbox is given back, or kept, the report names it, once
    PRUNE      it has ended:                its log is given up when the retention of logs is over
    DROP       its log was given up:        that is removed, piece by piece (`Store.drop_log`)
    FORGET     its transcript is all, or
               its log is the only copy:    that goes when the retention of transcripts is over; the record stays

Retentions are settings, so what is due under the last three is the run's end; whoever asks says how long that lasts,
and it must have passed by his clock and by that of the transaction.

A store keeps (stage, due) beside each run, so that a sweep looks only at what is due. `detachedSince` is never cleared
here: that is the viewer's act (P20). Whether somebody watches is not in the store: the shard asks its viewers in the
moment before the transaction (`Watchlist.spares`).
"""

from __future__ import annotations

from runtime.core import noticing
from runtime.core.decision import Decision, View
from runtime.core.heads import stale, with_cancel
from runtime.core.ops import Done, UnknownRun
from runtime.core.reap_ops import Account, Expire, Forget, LogDropped, PruneLog, ReapOp, ReapStage
from runtime.core.record import CancelReason, Head, Kept, Reaped


def due(head: Head) -> tuple[ReapStage, int] | None:
    """Return what is next, and the UTC ms at which it is due; None for a run that the reaper has nothing to do with."""
    if head.status.terminal:
        owed = noticing.owed(head)
        # Neither waits for the other: while the account can be given and is not, `Notices` looks for new ends there.
        if owed is not None and (head.destroy_pending or not unaccounted(head)):
            return ReapStage.TELL, owed
        stage = _stage_of_ended(head)
        return None if stage is None else (stage, head.finished_at or head.created_at)
    if head.cancel_requested or head.detached_since is None or head.detached_ttl_s is None:
        return None
    return ReapStage.EXPIRE, head.detached_since + head.detached_ttl_s * 1000


def _stage_of_ended(head: Head) -> ReapStage | None:
    if unaccounted(head):
        return ReapStage.ACCOUNT
    match head.kept:
        case Kept.LOG:
            return ReapStage.PRUNE if head.transcript else ReapStage.FORGET
        case Kept.DROPPING:
            return ReapStage.DROP
        case Kept.TRANSCRIPT:
            return ReapStage.FORGET
        case Kept.RECORD:
            return None


def unaccounted(head: Head) -> bool:
    """Return whether the run has ended while nobody watched, and what became of it is not written down."""
    return head.status.terminal and head.detached_since is not None and head.reaped is None


def reap(view: View, op: ReapOp, now_ms: int) -> Decision:
    """Decide one of the reaper's operations, under the supervisor's epoch (P6)."""
    if (refusal := stale(view, op.supervisor_epoch)) is not None:
        return Decision(outcome=refusal)
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    changed = _changed(view, head, op, now_ms)
    if changed is None:
        return Decision(outcome=Done(head=head, changed=False))
    return Decision(outcome=Done(head=changed), heads=(changed,), forgotten=changed.kept is Kept.RECORD)


def _changed(view: View, head: Head, op: ReapOp, now_ms: int) -> Head | None:
    match op:
        case Expire():
            return expired(head, now_ms)
        case Account():
            return accounted(head)
        case PruneLog():
            return pruned(head, ReapStage.PRUNE, min(op.ended_before, now_ms - op.retention_ms))
        case LogDropped():
            # A log goes from its end, so what is left of it, if anything, is its beginning.
            return None if view.batch_at(head.run_id, 0) is not None else pruned(head, ReapStage.DROP, now_ms)
        case Forget():
            return pruned(head, ReapStage.FORGET, min(op.ended_before, now_ms - op.retention_ms))


def expired(head: Head, now_ms: int) -> Head | None:
    """Return the head with its expiry recorded; None if a viewer came back, or there is nothing to expire."""
    next_ = due(head)
    if next_ is None or next_[0] is not ReapStage.EXPIRE or next_[1] > now_ms:
        return None
    return with_cancel(head, CancelReason.DETACHED_EXPIRED)


def accounted(head: Head) -> Head | None:
    """Return the head with what became of the run; None if that is known, or not to be told yet."""
    if not unaccounted(head) or head.to_give_back:
        return None
    return head.with_(reaped=became(head))


def became(head: Head) -> Reaped:
    """Return what became of a run that has ended while nobody watched."""
    return Reaped.EXPIRED if head.cancel_reason is CancelReason.DETACHED_EXPIRED else Reaped.FINALIZED


def pruned(head: Head, stage: ReapStage, ended_before: int) -> Head | None:
    """Return the head with what comes after `stage`; None if that is not its stage, or it ended later.

    Nothing goes that is the only copy before its time: a log without a transcript is kept as long as transcripts."""
    next_ = due(head)
    if next_ is None or next_[0] is not stage or (stage is not ReapStage.DROP and next_[1] > ended_before):
        return None
    if head.kept is Kept.LOG:
        return head.with_(kept=Kept.DROPPING)
    return head.with_(kept=Kept.TRANSCRIPT if stage is ReapStage.DROP and head.transcript else Kept.RECORD)
