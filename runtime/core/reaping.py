"""What is to be done about a run that nobody came back for, and from when on (P22): a function of its record.

    EXPIRE     it goes on, detached:        at `detachedSince` + its own TTL; never where it has none
    ACCOUNT    it has ended, detached:      once its sandbox is given back, the report names it, once
    PRUNE      it has ended:                its log is kept for as long as the retention says

A store keeps (stage, due) beside each run, so that a sweep looks only at what is due. `detachedSince` is never cleared
here: that is the viewer's act (P20). Whether somebody watches is not in the store: the shard asks its viewers in the
moment before the transaction (`Watchlist.spares`).
"""

from __future__ import annotations

from runtime.core.decision import Decision, View
from runtime.core.heads import stale, with_cancel
from runtime.core.ops import Done, UnknownRun
from runtime.core.reap_ops import Account, Expire, ReapStage
from runtime.core.record import CancelReason, Head, Reaped


def due(head: Head) -> tuple[ReapStage, int] | None:
    """Return what is next, and the UTC ms at which it is due; None for a run that the reaper has nothing to do with."""
    if head.status.terminal:
        unwatched = head.detached_since is not None and head.reaped is None
        return ReapStage.ACCOUNT if unwatched else ReapStage.PRUNE, head.finished_at or head.created_at
    if head.cancel_requested or head.detached_since is None or head.detached_ttl_s is None:
        return None
    return ReapStage.EXPIRE, head.detached_since + head.detached_ttl_s * 1000


def reap(view: View, op: Expire | Account, now_ms: int) -> Decision:
    """Decide one of the reaper's operations, under the supervisor's epoch (P6)."""
    if (refusal := stale(view, op.supervisor_epoch)) is not None:
        return Decision(outcome=refusal)
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    changed = expired(head, now_ms) if isinstance(op, Expire) else accounted(head)
    if changed is None:
        return Decision(outcome=Done(head=head, changed=False))
    return Decision(outcome=Done(head=changed), heads=(changed,))


def expired(head: Head, now_ms: int) -> Head | None:
    """Return the head with its expiry recorded; None if a viewer came back, or there is nothing to expire."""
    next_ = due(head)
    if next_ is None or next_[0] is not ReapStage.EXPIRE or next_[1] > now_ms:
        return None
    return with_cancel(head, CancelReason.DETACHED_EXPIRED)


def accounted(head: Head) -> Head | None:
    """Return the head with what became of the run; None if that is known, or not to be told yet."""
    next_ = due(head)
    if next_ is None or next_[0] is not ReapStage.ACCOUNT or head.destroy_pending:
        return None
    return head.with_(reaped=became(head))


def became(head: Head) -> Reaped:
    """Return what became of a run that has ended while nobody watched."""
    return Reaped.EXPIRED if head.cancel_reason is CancelReason.DETACHED_EXPIRED else Reaped.FINALIZED
