"""That the end of a run is to be told: stored with it, by whoever ends it, and kept until everybody knows."""

from __future__ import annotations

from runtime.core.noticing import MOST_DELAY_MS, delay_ms, too_old
from runtime.core.ops import Create, Created, Done, Note, OpenSupervisor, SupervisorStale, UnknownRun
from runtime.core.reap_ops import Account, BeginNotice, EndNotice, ReapStage
from runtime.core.record import Head, Notice, Status
from runtime.testing.sample_ops import OWNER, RUN, THREAD, claim, create, finish, spec
from runtime.testing.store_cases.reaping import due
from runtime.testing.store_cases.shard_driver import ShardDriver


def end(shard: ShardDriver, status: Status = Status.COMPLETED, run_id: str = RUN) -> Head:
    """Create, claim and finish a run whose end is to be told."""
    shard.do(OpenSupervisor(claimant="s"), create(run_id, run_id), claim(run_id=run_id))
    shard.do(finish(1, 1, status, run_id, tell=True))
    return shard.head(run_id)


def begin(attempt: int, run_id: str = RUN, supervisor: int = 1) -> BeginNotice:
    """Return the beginning of an attempt."""
    return BeginNotice(run_id=run_id, supervisor_epoch=supervisor, attempt=attempt)


def told(attempt: int, *done: str, over: bool = False, supervisor: int = 1) -> EndNotice:
    """Return what came of an attempt."""
    return EndNotice(run_id=RUN, supervisor_epoch=supervisor, attempt=attempt, done=done, over=over)


class NoticeCases:
    """Begin, end; what is due."""

    def test_an_end_is_to_be_told_only_if_its_finish_says_so(self, shard: ShardDriver) -> None:
        assert end(shard).notice == Notice()
        shard.do(create("run-2", "thread-2"), claim(run_id="run-2"))
        assert shard.end("run-2").notice is None
        assert due(shard, ReapStage.TELL) == [RUN]
        ended = shard.head().finished_at
        assert ended is not None
        assert due(shard, ReapStage.TELL, ended) == [RUN]
        assert due(shard, ReapStage.TELL, ended - 1) == []

    def test_each_attempt_is_begun_once_and_the_next_is_due_later_and_later(self, shard: ShardDriver) -> None:
        end(shard)
        assert not shard.refused(begin(2), Done).changed
        for attempt in range(1, 16):
            begun = shard.ask(begin(attempt), Done)
            assert begun.changed
            at = shard.now_ms + delay_ms(attempt)
            assert begun.head.notice == Notice(attempts=attempt, due_at=at)
            assert due(shard, ReapStage.TELL, at - 1) == []
            assert due(shard, ReapStage.TELL, at) == [RUN]
            assert not shard.refused(begin(attempt), Done).changed
            assert not shard.refused(begin(attempt + 1), Done).changed
            shard.now_ms = at
        assert delay_ms(1) < delay_ms(2) < delay_ms(14) == delay_ms(1000) == MOST_DELAY_MS

    def test_who_was_told_is_remembered_until_all_are(self, shard: ShardDriver) -> None:
        end(shard)
        shard.do(begin(1), told(1, "b"))
        assert shard.head().notice == Notice(attempts=1, due_at=shard.now_ms + delay_ms(1), done=("b",))
        shard.now_ms += delay_ms(1)
        shard.do(begin(2), told(1, "a"))
        after = shard.head().notice
        assert after is not None
        assert (after.attempts, after.done) == (2, ("a", "b"))
        assert not shard.refused(told(2, "a"), Done).changed
        assert shard.ask(told(2, over=True), Done).head.notice is None
        assert due(shard, ReapStage.TELL) == []
        assert not shard.refused(told(2, over=True), Done).changed
        assert not shard.refused(begin(3), Done).changed

    def test_only_the_newest_supervisor_tells(self, shard: ShardDriver) -> None:
        end(shard)
        shard.do(OpenSupervisor(claimant="another"))
        for op in (begin(1), told(1, "a")):
            assert shard.refused(op, SupervisorStale).current_epoch == 2
        shard.refused(begin(1, "nobody", 2), UnknownRun)
        assert shard.ask(begin(1, supervisor=2), Done).changed

    def test_an_interrupted_run_is_told_of_once_it_has_ended(self, shard: ShardDriver) -> None:
        end(shard, Status.INTERRUPTED)
        assert due(shard, ReapStage.TELL) == []
        assert not shard.refused(begin(1), Done).changed
        answer = Create(
            run_id="run-2", thread_id=RUN, owner=OWNER, spec=spec(), digest="another", on_busy="reject", resumes=True
        )
        shard.ask(answer, Created)
        assert due(shard, ReapStage.TELL) == [RUN]
        assert shard.ask(begin(1), Done).changed

    def test_who_is_to_be_told_since_the_run_was_interrupted_hears_of_its_end(self, shard: ShardDriver) -> None:
        shard.do(OpenSupervisor(claimant="s"), create(RUN, RUN), claim())
        shard.do(finish(1, 1, Status.INTERRUPTED))
        assert shard.head().notice is None
        answer = Create(run_id="run-2", thread_id=RUN, owner=OWNER, spec=spec(), digest="d", resumes=True, tell=True)
        assert shard.ask(answer, Created).head.notice is None
        assert shard.head().notice == Notice()
        assert due(shard, ReapStage.TELL) == [RUN]

    def test_telling_and_accounting_wait_for_one_another_by_nothing(self, shard: ShardDriver) -> None:
        end(shard)
        shard.do(begin(1))
        assert due(shard, ReapStage.TELL) == [RUN]  # its sandbox is not given back: there is nothing to account for
        shard.do(Note(run_id=RUN, epoch=1, destroy_pending=False))
        assert due(shard, ReapStage.ACCOUNT) == [RUN]
        assert shard.ask(Account(run_id=RUN, supervisor_epoch=1), Done).changed
        assert due(shard, ReapStage.TELL) == [RUN]
        shard.do(told(1, over=True))
        assert (due(shard, ReapStage.TELL), due(shard, ReapStage.FORGET)) == ([], [RUN])

    def test_an_end_that_nobody_has_tried_to_tell_hides_no_account(self, shard: ShardDriver) -> None:
        end(shard)
        shard.do(Note(run_id=RUN, epoch=1, destroy_pending=False))
        assert (due(shard, ReapStage.TELL), due(shard, ReapStage.ACCOUNT)) == ([], [RUN])
        assert shard.ask(begin(1), Done).changed  # and is told all the same
        assert shard.ask(Account(run_id=RUN, supervisor_epoch=1), Done).changed
        assert due(shard, ReapStage.TELL, shard.now_ms) == []
        assert due(shard, ReapStage.TELL, shard.now_ms + delay_ms(1)) == [RUN]

    def test_a_run_is_told_of_for_three_days(self, shard: ShardDriver) -> None:
        ended = end(shard)
        assert ended.thread_id != THREAD
        assert ended.finished_at is not None
        assert not too_old(ended, ended.finished_at + 3 * 86_400_000)
        assert too_old(ended, ended.finished_at + 3 * 86_400_000 + 1)
