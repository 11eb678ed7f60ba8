"""Who still has to be told that a run has ended: an outbox entry on its record, written with the end itself.

    finish     `Finish.tell` makes the entry, in the transaction that ends the run: nobody can lose the one without the
               other. An interrupted run has it too, and it is due once the run has really ended
    begin      counts an attempt and says when the next one is due, before anything is sent: whoever dies in the middle
               is followed by another attempt, later, and two supervisors never begin the same one
    end        notes who has been told; with everybody told, or `over`, the entry goes

So everybody is told at least once, within bounds; twice only where an attempt was cut off, and then under the same id.
"""

from __future__ import annotations

from runtime.core.decision import Decision, View
from runtime.core.heads import stale
from runtime.core.ops import Done, UnknownRun
from runtime.core.reap_ops import BeginNotice, EndNotice, NoticeOp
from runtime.core.record import Head, Notice

FIRST_DELAY_MS = 2_000  # after the first attempt, then twice as long each time
MOST_DELAY_MS = 3_600_000
MOST_AGE_MS = 3 * 86_400_000  # since the end of the run; 78 attempts or so
MOST_DONE = 64  # names that an entry remembers


def delay_ms(attempts: int) -> int:
    """Return how long after attempt number `attempts` the next one is due."""
    return min(FIRST_DELAY_MS << min(attempts - 1, 20), MOST_DELAY_MS)


def owed(head: Head) -> int | None:
    """Return the UTC ms from when on somebody is to be told of the run's end; None if nobody is."""
    if head.notice is None or not head.status.terminal:
        return None
    return head.notice.due_at if head.notice.due_at is not None else head.finished_at or head.created_at


def fresh(head: Head) -> bool:
    """Return whether the run's end is to be told and nobody has tried yet."""
    return owed(head) is not None and head.notice is not None and not head.notice.attempts


def too_old(head: Head, now_ms: int) -> bool:
    """Return whether whoever has not been told by now will not be."""
    return now_ms - (head.finished_at or head.created_at) > MOST_AGE_MS


def notice(view: View, op: NoticeOp, now_ms: int) -> Decision:
    """Decide a step of the telling, under the supervisor's epoch (P6). Unchanged: it is not this attempt's turn."""
    if (refusal := stale(view, op.supervisor_epoch)) is not None:
        return Decision(outcome=refusal)
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    changed = _begun(head, op, now_ms) if isinstance(op, BeginNotice) else _ended(head, op)
    if changed is None:
        return Decision(outcome=Done(head=head, changed=False))
    return Decision(outcome=Done(head=changed), heads=(changed,))


def _begun(head: Head, op: BeginNotice, now_ms: int) -> Head | None:
    due_at = owed(head)
    if head.notice is None or due_at is None or due_at > now_ms or op.attempt != head.notice.attempts + 1:
        return None
    next_ = Notice(attempts=op.attempt, due_at=now_ms + delay_ms(op.attempt), done=head.notice.done)
    return head.with_(notice=next_)


def _ended(head: Head, op: EndNotice) -> Head | None:
    """A late answer counts too: who was told was told, whatever has begun since."""
    if head.notice is None or op.attempt > head.notice.attempts:
        return None
    if op.over:
        return head.with_(notice=None)
    done = tuple(sorted({*head.notice.done, *op.done}))[:MOST_DONE]
    if done == head.notice.done:
        return None
    return head.with_(notice=Notice(attempts=head.notice.attempts, due_at=head.notice.due_at, done=done))
