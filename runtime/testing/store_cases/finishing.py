"""A run ends once, as a cancel allows, and gives its thread to the next (P7, P9, P12, I5)."""

from __future__ import annotations

from runtime.core import chunk
from runtime.core.ops import (
    AlreadyEnded,
    Closed,
    Done,
    Finished,
    IllegalMove,
    MustAbort,
    Note,
    SeqConflict,
    Superseded,
    UnknownRun,
)
from runtime.core.record import CancelReason, ClaimEnd, ClaimReason, RunError, Status
from runtime.testing.sample_ops import (
    OWNER,
    RUN,
    THREAD,
    append,
    cancel,
    claim,
    create,
    ending,
    finish,
    live,
    nothing,
)
from runtime.testing.store_cases.shard_driver import ShardDriver

ERROR = RunError(message="it \ud83d broke", code="agent_exit")  # half a surrogate pair, as an agent may print it


class FinishCases:
    """Endings."""

    def test_a_finish_is_one_transaction(self, shard: ShardDriver) -> None:
        shard.start()
        op = finish(
            1, 1, Status.FAILED, error=ERROR, exit_code=3, signal=9, usage={"tokens": 2**70}, stderr=b"\xff\x00tail"
        )
        finished = shard.ask(op, Finished)
        head = shard.head()
        assert (finished.head, finished.repeat, finished.unqueued) == (head, False, None)
        assert (head.status, head.closed, head.finished_at) == (Status.FAILED, True, shard.now_ms)
        assert (head.error, head.exit_code, head.signal, head.usage) == (ERROR, 3, 9, {"tokens": 2**70})
        assert (head.next_seq, head.destroy_pending, head.claims[-1].ended_at) == (2, True, shard.now_ms)
        assert head.claims[-1].end is ClaimEnd.FINISHED
        assert shard.log()[1:] == [chunk.run_finished(RUN, THREAD)]
        assert shard.store.read_stderr(RUN) == b"\xff\x00tail"

    def test_a_completed_run_may_keep_its_sandbox_until_its_thread_goes_on(self, shard: ShardDriver) -> None:
        shard.start()
        kept = shard.ask(finish(1, 1, keep_s=60), Finished).head
        assert (kept.destroy_pending, kept.sandbox_kept_until, kept.to_give_back) == (
            True,
            shard.now_ms + 60_000,
            False,
        )
        assert shard.refused(finish(1, 1, keep_s=60), Finished).head == kept
        assert shard.store.list_destroy_pending(0) == [kept]
        pending = Note(run_id=RUN, epoch=1, destroy_pending=True)
        over = shard.ask(pending, Done).head
        assert (over.destroy_pending, over.sandbox_kept_until, over.to_give_back) == (True, None, True)
        assert not shard.refused(pending, Done).changed
        shard.do(Note(run_id=RUN, epoch=1, destroy_pending=False))
        assert shard.store.list_destroy_pending(0) == []

    def test_a_kept_sandbox_that_is_gone_is_not_kept(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(finish(1, 1, keep_s=60))
        gone = shard.ask(Note(run_id=RUN, epoch=1, destroy_pending=False), Done).head
        assert (gone.destroy_pending, gone.sandbox_kept_until) == (False, None)

    def test_no_other_ending_keeps_a_sandbox(self, shard: ShardDriver) -> None:
        for status in (Status.FAILED, Status.INTERRUPTED, Status.ABORTED):
            run_id = f"run-{status.value}"
            shard.start(run_id, f"thread-{status.value}")
            if status is Status.ABORTED:
                shard.do(cancel(run_id))
            shard.ask(finish(1, 1, status, run_id, keep_s=60), Finished)
            assert shard.head(run_id).to_give_back
        shard.start()
        shard.ask(finish(1, 1, keep_s=60, destroy_pending=False), Finished)
        assert shard.head().sandbox_kept_until is None, "there is none"

    def test_no_sandbox_is_kept_while_a_run_waits_for_its_workspace(self, shard: ShardDriver) -> None:
        shard.start()
        shard.enqueue("run-2")
        ended = shard.ask(finish(1, 1, keep_s=60), Finished)
        assert ended.unqueued is not None
        assert ended.head.to_give_back

    def test_a_repeated_finish_gets_the_first_answer(self, shard: ShardDriver) -> None:
        shard.start()
        first = shard.ask(finish(1, 1), Finished)
        again = shard.refused(finish(1, 1), Finished)
        assert (again.head, again.repeat) == (first.head, True)

    def test_another_finish_is_refused(self, shard: ShardDriver) -> None:
        shard.start()
        shard.end()
        assert shard.refused(finish(1, 1, Status.FAILED), AlreadyEnded).status is Status.COMPLETED
        shard.refused(finish(2, 1), AlreadyEnded)
        shard.refused(finish(1, 1, batch=live(1, 1, "other")), AlreadyEnded)

    def test_of_two_finishes_in_one_transaction_one_ends_the_run(self, shard: ShardDriver) -> None:
        shard.start()
        outcomes = shard.do(
            finish(1, 1, Status.FAILED), finish(1, 1), finish(1, 1, Status.FAILED), append(live(2, 1, "x"))
        )
        assert [type(outcome) for outcome in outcomes] == [Finished, AlreadyEnded, Finished, Closed]
        assert shard.head().status is Status.FAILED

    def test_a_superseded_driver_ends_nothing(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(claim(1, "b"))
        assert shard.refused(finish(1, 1), Superseded).current_epoch == 2
        shard.ask(finish(1, 2), Finished)
        assert shard.refused(finish(1, 1), Superseded).current_epoch == 2

    def test_an_unclaimed_or_unknown_run_has_no_ending(self, shard: ShardDriver) -> None:
        shard.do(create())
        shard.refused(finish(1, 0), Superseded)
        shard.refused(finish(1, 1, run_id="nobody"), UnknownRun)

    def test_an_ending_continues_the_log_and_has_a_chunk(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")))
        assert shard.refused(finish(1, 1), SeqConflict).next_seq == 2
        shard.refused(finish(3, 1), SeqConflict)
        shard.refused(finish(2, 1, batch=nothing(2, 1)), SeqConflict)

    def test_an_ending_has_no_key(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "emitted", key="k")))
        shard.refused(finish(2, 1, batch=live(2, 1, "end", key="k")), SeqConflict)

    def test_a_recorded_cancel_binds_the_ending(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(cancel(reason=CancelReason.OPERATOR), cancel(reason=CancelReason.USER))
        for status in (Status.COMPLETED, Status.FAILED, Status.INTERRUPTED):
            refusal = shard.refused(finish(1, 1, status), MustAbort)
            assert (refusal.run_id, refusal.reason) == (RUN, CancelReason.OPERATOR)
        assert shard.ask(finish(1, 1, Status.ABORTED), Finished).head.status is Status.ABORTED

    def test_a_cancel_earlier_in_the_same_transaction_binds_too(self, shard: ShardDriver) -> None:
        shard.start()
        _, refusal = shard.do(cancel(), finish(1, 1))
        assert isinstance(refusal, MustAbort)

    def test_without_a_cancel_nothing_is_aborted(self, shard: ShardDriver) -> None:
        shard.start()
        refusal = shard.refused(finish(1, 1, Status.ABORTED), IllegalMove)
        assert (refusal.from_, refusal.to) == (Status.RUNNING, Status.ABORTED)
        shard.refused(finish(1, 1, Status.RUNNING), IllegalMove)

    def test_an_interrupted_run_is_closed_and_not_terminal(self, shard: ShardDriver) -> None:
        shard.start()
        head = shard.end(status=Status.INTERRUPTED)
        assert (head.closed, head.finished_at, head.active) == (True, None, True)
        shard.refused(append(live(head.next_seq, 1, "late")), Closed)
        shard.refused(finish(head.next_seq, 1), Closed)
        shard.refused(finish(0, 0, batch=nothing(head.next_seq, 1), status=Status.ABORTED), IllegalMove)

    def test_an_interrupted_run_ends_without_a_chunk_and_keeps_what_it_knew(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(finish(1, 1, Status.INTERRUPTED, exit_code=0, usage={"tokens": 1}, stderr=b"tail"))
        log = shard.log()
        assert type(shard.reap_interrupted()[-1]) is Finished
        head = shard.head()
        assert (head.status, head.exit_code, head.usage) == (Status.ABORTED, 0, {"tokens": 1})
        assert head.finished_at == shard.now_ms
        assert shard.log() == log
        assert shard.store.read_stderr(RUN) == b"tail"

    def test_a_finish_gives_the_thread_to_the_oldest_in_the_queue(self, shard: ShardDriver) -> None:
        shard.start()
        for run_id in ("run-3", "run-2", "run-4"):
            shard.enqueue(run_id)
        finished = shard.ask(finish(1, 1), Finished)
        assert finished.unqueued == shard.head("run-3")
        assert [shard.head(run_id).queued for run_id in ("run-3", "run-2", "run-4")] == [False, True, True]
        active = shard.store.find_active(OWNER, THREAD)
        assert active == shard.head("run-3")
        again = shard.refused(finish(1, 1), Finished)
        assert (again.repeat, again.unqueued) == (True, active)
        shard.do(claim(0, "b", "run-3"))
        shard.end("run-3", Status.FAILED)
        assert [shard.head(run_id).queued for run_id in ("run-2", "run-4")] == [False, True]

    def test_runs_queued_in_the_same_millisecond_keep_their_order(self, shard: ShardDriver) -> None:
        shard.start()
        waiting = [f"run-{place}" for place in (9, 5, 7)]
        shard.do(*(create(run_id, on_busy="enqueue") for run_id in waiting))
        for run_id in waiting:
            active = shard.store.find_active(OWNER, THREAD)
            assert active is not None
            shard.end(active.run_id)
            shard.do(claim(0, "b", run_id))
            assert shard.store.find_active(OWNER, THREAD) == shard.head(run_id)

    def test_the_queue_of_another_thread_or_owner_is_left_alone(self, shard: ShardDriver) -> None:
        shard.start()
        shard.start("run-2", "thread-2")
        shard.start("run-3", THREAD, owner="stranger")
        shard.enqueue("run-4", "thread-2")
        shard.do(create("run-5", THREAD, owner="stranger", on_busy="enqueue"))
        assert shard.ask(finish(1, 1), Finished).unqueued is None
        assert shard.head("run-4").queued
        assert shard.head("run-5").queued

    def test_an_interruption_gives_no_thread_away(self, shard: ShardDriver) -> None:
        shard.start()
        shard.enqueue("run-2")
        assert shard.ask(finish(1, 1, Status.INTERRUPTED), Finished).unqueued is None
        assert shard.head("run-2").queued
        last = shard.reap_interrupted()[-1]
        assert isinstance(last, Finished)
        assert last.unqueued == shard.head("run-2")

    def test_a_cancelled_queued_run_ends_without_touching_the_thread(self, shard: ShardDriver) -> None:
        shard.start()
        shard.enqueue("run-2")
        shard.enqueue("run-3")
        shard.do(cancel("run-2"), claim(0, "supervisor", "run-2", ClaimReason.CANCEL))
        finished = shard.ask(finish(1, 1, Status.ABORTED, "run-2"), Finished)
        assert (finished.unqueued, finished.head.queued) == (None, False)
        assert shard.head("run-3").queued
        assert shard.store.find_active(OWNER, THREAD) == shard.head()

    def test_a_queued_run_cannot_be_interrupted(self, shard: ShardDriver) -> None:
        shard.start()
        shard.enqueue("run-2")
        shard.do(claim(0, "supervisor", "run-2", ClaimReason.CANCEL))
        shard.refused(finish(1, 1, Status.INTERRUPTED, "run-2"), IllegalMove)

    def test_the_end_of_stderr_is_kept(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(finish(1, 1, batch=ending(1, 1), stderr=b"x" * 70_000 + b"end"))
        tail = shard.store.read_stderr(RUN)
        assert tail == b"x" * (65536 - 3) + b"end"
