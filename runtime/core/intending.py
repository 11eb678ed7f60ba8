"""What changes a record beside its log: remarks of drivers, intents of outsiders, decisions of the supervisor."""

from __future__ import annotations

from runtime.core.decision import Decision, SupervisorRow, View
from runtime.core.heads import end_last_claim, holds, stale, superseded, with_cancel
from runtime.core.ops import (
    AlreadyEnded,
    Assign,
    Assigned,
    Attach,
    Detach,
    Done,
    Exhausted,
    NotClaimable,
    Note,
    OpenSupervisor,
    RequestCancel,
    RequestHandover,
    SupervisorOpened,
    UnknownRun,
)
from runtime.core.record import ClaimEnd, Head, Launch

_LAUNCH_ORDER = (Launch.NONE, Launch.KEYED, Launch.INTENDED)


def note(view: View, op: Note, now_ms: int) -> Decision:
    """Decide a driver's remark under its epoch (P3); launch state moves only forward (P15)."""
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    if not holds(head, op.epoch):
        return Decision(outcome=superseded(head, op.epoch))
    changes: dict[str, object] = {}
    if op.sandbox_key is not None and op.sandbox_key != head.sandbox_key:
        changes["sandbox_key"] = op.sandbox_key
    if op.launch is not None and _LAUNCH_ORDER.index(op.launch) > _LAUNCH_ORDER.index(head.launch):
        changes["launch"] = op.launch
        if op.launch is Launch.INTENDED:
            changes["heard_at"] = now_ms
    if op.heard_to > head.heard_to:
        changes |= {"heard_to": op.heard_to, "heard_at": now_ms}
    if op.progressed and (head.attempts_without_progress or head.claims_without_progress):
        changes |= {"attempts_without_progress": 0, "claims_without_progress": 0}
    if op.destroy_pending is not None and op.destroy_pending != head.destroy_pending:
        changes["destroy_pending"] = op.destroy_pending
    if op.destroy_pending is not None and head.sandbox_kept_until is not None:
        changes["sandbox_kept_until"] = None
    if op.handed_over and head.claims[-1].ended_at is None:
        changes["claims"] = end_last_claim(head.claims, now_ms, ClaimEnd.HANDED_OVER)
    return _done(head, changes)


def _done(head: Head, changes: dict[str, object]) -> Decision:
    if not changes:
        return Decision(outcome=Done(head=head, changed=False))
    changed = head.with_(**changes)
    return Decision(outcome=Done(head=changed), heads=(changed,))


def request_cancel(view: View, op: RequestCancel) -> Decision:
    """Decide a recorded cancel: it moves no status, and its first reason wins (P9, P21, P22)."""
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    cutoff = op.only_if_detached_since
    still_there = cutoff is None or (head.detached_since is not None and head.detached_since <= cutoff)
    if head.status.terminal or head.cancel_requested or not still_there:
        return Decision(outcome=Done(head=head, changed=False))
    cancelled = with_cancel(head, op.reason)
    return Decision(outcome=Done(head=cancelled), heads=(cancelled,))


def intent(view: View, op: RequestHandover | Attach | Detach, now_ms: int) -> Decision:
    """Decide an outsider's intent: it touches its own field only (P3). Who comes or goes after the end changes nothing:
    that a run ended with nobody there is for the reaper to tell (P22)."""
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    match op:
        case RequestHandover():
            if head.status.terminal:
                return Decision(outcome=AlreadyEnded(run_id=op.run_id, status=head.status))
            asked = head.handover_epoch == head.driver_epoch
            return _done(head, {} if asked else {"handover_epoch": head.driver_epoch})
        case Attach():
            stays = head.status.terminal or head.detached_since is None
            return _done(head, {} if stays else {"detached_since": None})
        case Detach(since=since):
            stays = head.status.terminal or head.detached_since is not None
            return _done(head, {} if stays else {"detached_since": min(since, now_ms)})


def open_supervisor(view: View, op: OpenSupervisor) -> Decision:
    """Decide who the supervisor is: one epoch higher for each new claimant (P6)."""
    row = view.supervisor()
    if row.epoch and row.claimant == op.claimant:
        return Decision(outcome=SupervisorOpened(epoch=row.epoch))
    opened = SupervisorRow(epoch=row.epoch + 1, claimant=op.claimant)
    return Decision(outcome=SupervisorOpened(epoch=opened.epoch), supervisor=opened)


def assign(view: View, op: Assign, now_ms: int) -> Decision:
    """Decide that a run gets a new driver, under the epochs of the supervisor and the run (P6, P19).

    Only drivers that claimed bring a run to its end: one that could not even be started says nothing about the run, and
    however long that lasts, the agent works on."""
    if (refusal := stale(view, op.supervisor_epoch)) is not None:
        return Decision(outcome=refusal)
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    if head.driver_epoch != op.expected_epoch:
        return Decision(outcome=superseded(head, op.expected_epoch))
    if head.status.terminal:
        return Decision(outcome=AlreadyEnded(run_id=op.run_id, status=head.status))
    if not head.needs_driver and not head.cancel_requested:
        return Decision(outcome=NotClaimable(run_id=op.run_id))
    if op.assignment and op.assignment == head.last_assignment:
        return Decision(outcome=Assigned(head=head, attempt=head.attempts_without_progress))
    attempt = head.attempts_without_progress + 1
    if attempt > op.max_attempts and head.claims_without_progress >= op.max_attempts:
        return Decision(outcome=Exhausted(head=head))
    assigned = head.with_(attempts_without_progress=attempt, last_assigned_at=now_ms, last_assignment=op.assignment)
    return Decision(outcome=Assigned(head=assigned, attempt=attempt), heads=(assigned,))
