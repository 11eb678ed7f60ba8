"""Append to a log, and end it (P3, P7, P9). The order of checks is told in `machine.py`."""

from __future__ import annotations

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.decision import Decision, View
from runtime.core.heads import end_last_claim, holds, superseded, with_appended
from runtime.core.ops import (
    AlreadyEnded,
    Append,
    Appended,
    Closed,
    Finish,
    Finished,
    IllegalMove,
    LogFull,
    MustAbort,
    Refusal,
    SeqConflict,
    UnknownRun,
)
from runtime.core.record import TRANSITIONS, CancelReason, ClaimEnd, FinishMark, Head, Notice, Status

STDERR_BYTES = 64 << 10  # of the agent's stderr is kept with the finish: its end (P9)


def append(view: View, op: Append, now_ms: int) -> Decision:
    """Decide an append: epoch, repeat, closed, sequence, in this order (P7)."""
    batch = op.batch
    head = view.head(batch.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=batch.run_id))
    if not holds(head, batch.epoch):
        return Decision(outcome=superseded(head, batch.epoch))
    repeat = _repeat_of(view, batch)
    if repeat is not None:
        return Decision(outcome=Appended(seq=repeat.seq, next_seq=repeat.next_seq, head=head, repeat=True))
    if head.closed:
        return Decision(outcome=Closed(run_id=batch.run_id))
    misfit = op.checkpoint is not None and not op.checkpoint.fits(batch)
    if batch.seq != head.next_seq or batch.count < 1 or misfit:
        return Decision(outcome=SeqConflict(run_id=batch.run_id, seq=batch.seq, next_seq=head.next_seq))
    if op.max_log_bytes and head.log_bytes + len(batch.data) > op.max_log_bytes:
        return Decision(outcome=LogFull(run_id=batch.run_id, limit=op.max_log_bytes))
    longer = _with_batch(head, batch, now_ms)
    return Decision(
        outcome=Appended(seq=batch.seq, next_seq=longer.next_seq, head=longer),
        heads=(longer,),
        batch=batch,
        checkpoint=op.checkpoint,
    )


def _repeat_of(view: View, batch: Batch) -> Batch | None:
    """Return the stored batch that `batch` is a repeat of: same place and bytes, or the same outside cause (P8)."""
    if batch.key is not None:
        return view.batch_by_key(batch.run_id, batch.key)
    stored = view.batch_at(batch.run_id, batch.seq)
    return stored if stored == batch else None


def _with_batch(head: Head, batch: Batch, now_ms: int, **changes: object) -> Head:
    return head.with_(
        next_seq=batch.next_seq,
        log_bytes=head.log_bytes + len(batch.data),
        attempts_without_progress=0,
        claims_without_progress=0,
        claims=with_appended(head.claims, batch.count, now_ms),
        heard_at=now_ms if batch.band is Band.JOURNAL else head.heard_at,
        **changes,
    )


def finish(view: View, op: Finish, now_ms: int) -> Decision:
    """Decide an ending, in the same order; a recorded cancel binds it to `aborted` (P7, P9)."""
    head = view.head(op.run_id)
    if head is None:
        return Decision(outcome=UnknownRun(run_id=op.run_id))
    if not holds(head, op.batch.epoch):
        return Decision(outcome=superseded(head, op.batch.epoch))
    mark = FinishMark(epoch=op.batch.epoch, seq=op.batch.seq, digest=finish_digest(op))
    if head.finish == mark:
        return Decision(outcome=Finished(head=head, unqueued=_given_the_thread(view, head), repeat=True))
    refusal = _finish_refusal(head, op)
    if refusal is not None:
        return Decision(outcome=refusal)
    unqueued = _next_of_thread(view, head) if op.status.terminal else None
    ended = _with_batch(
        head,
        op.batch,
        now_ms,
        status=op.status,
        closed=True,
        finish=mark,
        finished_at=now_ms if op.status.terminal else None,
        error=op.error,
        # An interrupted run has had its exit: what that said stays when somebody who knows nothing of it ends the run.
        exit_code=op.exit_code if op.exit_code is not None else head.exit_code,
        signal=op.signal if op.signal is not None else head.signal,
        usage=op.usage if op.usage is not None else head.usage,
        queued=False,
        destroy_pending=op.destroy_pending,
        sandbox_kept_until=_kept_until(op, unqueued, now_ms),
        transcript=head.transcript or op.transcript is not None,
        notice=Notice() if op.tell else head.notice,
    )
    ended = ended.with_(claims=end_last_claim(ended.claims, now_ms, ClaimEnd.FINISHED))
    return Decision(
        outcome=Finished(head=ended, unqueued=unqueued),
        heads=(ended, unqueued) if unqueued else (ended,),
        batch=op.batch if op.batch.count else None,
        stderr=None if head.closed and not op.stderr else op.stderr[-STDERR_BYTES:],
        transcript=op.transcript,
        ended=True,
    )


def finish_digest(op: Finish) -> str:
    """Return what tells one finish from another: its chunks and its status."""
    return f"{op.status.value}:{op.batch.count}:{chunk.digest(op.batch.data)}"


def _finish_refusal(head: Head, op: Finish) -> Refusal | None:
    if head.status.terminal:
        return AlreadyEnded(run_id=op.run_id, status=head.status)
    ends_interrupted = head.status is Status.INTERRUPTED and op.batch.count == 0
    if head.closed and not ends_interrupted:
        return Closed(run_id=op.run_id)
    # A key names a cause that may come again (P8). A finish has its mark for that; a key of its own could only clash.
    misfit = op.batch.seq != head.next_seq or op.batch.key is not None
    if misfit or (op.batch.count < 1 and not ends_interrupted):
        return SeqConflict(run_id=op.run_id, seq=op.batch.seq, next_seq=head.next_seq)
    if head.cancel_requested and op.status is not Status.ABORTED:
        return MustAbort(run_id=op.run_id, reason=head.cancel_reason or CancelReason.USER)
    unasked = op.status is Status.ABORTED and not head.cancel_requested
    # A queued run has no agent that could ask anything; interrupted, it would hold a thread that another holds (P12).
    interrupts_queued = head.queued and op.status is Status.INTERRUPTED
    if unasked or interrupts_queued or (head.status, op.status) not in TRANSITIONS:
        return IllegalMove(run_id=op.run_id, from_=head.status, to=op.status)
    return None


def _next_of_thread(view: View, ended: Head) -> Head | None:
    """Return the head of the run that gets the thread now, if the ended one held it (P12)."""
    if ended.queued:
        return None
    waiting = view.oldest_queued(ended.owner, ended.thread_id)
    return None if waiting is None else waiting.with_(queued=False)


def _kept_until(op: Finish, unqueued: Head | None, now_ms: int) -> int | None:
    """Return until when the sandbox is kept: only at `completed`, and if no run waits for the workspace (P18)."""
    keeps = op.keep_s > 0 and op.destroy_pending and op.status is Status.COMPLETED and unqueued is None
    return now_ms + op.keep_s * 1000 if keeps else None


def _given_the_thread(view: View, ended: Head) -> Head | None:
    """Return the run that holds the ended one's thread now, if it came out of the queue: whoever lost the first answer
    must still learn that this run waits for a driver (I7). To hear it twice does no harm."""
    holder = view.holder(ended.owner, ended.thread_id) if ended.status.terminal else None
    return holder if holder is not None and holder.queued_at is not None else None
