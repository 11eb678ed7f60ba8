"""Runs that nobody comes back for: expired in one transaction, accounted for once, found by what is due (P22)."""

from __future__ import annotations

from runtime.core.ops import Attach, Created, Detach, Done, Note, OpenSupervisor, SupervisorStale, UnknownRun
from runtime.core.reap_ops import Account, Expire, ReapStage
from runtime.core.record import CancelReason, Limits, Reaped, Status
from runtime.testing.sample_ops import RUN, append, cancel, claim, create, live, spec
from runtime.testing.store_cases.shard_driver import ShardDriver

FAR = 1 << 60
STAGES = (ReapStage.EXPIRE, ReapStage.ACCOUNT, ReapStage.FORGET)  # of a run without a transcript


def detached(shard: ShardDriver, ttl_s: int | None = 60, run_id: str = RUN, thread_id: str = "thread-1") -> int:
    """Create a run with a TTL, detached from its creation on; return when that is over."""
    limits = Limits(detached_ttl_s=ttl_s)
    shard.do(OpenSupervisor(claimant="s"))
    created = shard.ask(create(run_id, thread_id, spec=spec(limits=limits)), Created)
    assert created.head.detached_since == shard.now_ms
    return shard.now_ms + (ttl_s or 0) * 1000


def expire(run_id: str = RUN, supervisor: int = 1) -> Expire:
    """Return an expiry."""
    return Expire(run_id=run_id, supervisor_epoch=supervisor)


def account(run_id: str = RUN, supervisor: int = 1) -> Account:
    """Return what accounts for a run."""
    return Account(run_id=run_id, supervisor_epoch=supervisor)


def due(shard: ShardDriver, stage: ReapStage, before_ms: int = FAR, limit: int = 100) -> list[str]:
    """Return the runs that a store lists."""
    return [head.run_id for head in shard.store.list_reapable(0, stage, before_ms, limit)]


class ReapCases:
    """Expire and account; what is due."""

    def test_a_run_expires_when_its_own_ttl_is_over_and_not_before(self, shard: ShardDriver) -> None:
        over = detached(shard)
        shard.do(claim())
        shard.now_ms = over - 2
        assert not shard.refused(expire(), Done).changed
        since = shard.head().detached_since
        done = shard.ask(expire(), Done)
        assert done.changed
        assert done.head == shard.head()
        assert (done.head.cancel_requested, done.head.cancel_reason) == (True, CancelReason.DETACHED_EXPIRED)
        assert (done.head.status, done.head.detached_since) == (Status.RUNNING, since)
        assert not shard.refused(expire(), Done).changed

    def test_a_viewer_who_came_back_wins(self, shard: ShardDriver) -> None:
        shard.now_ms = detached(shard) + 1
        shard.do(Attach(run_id=RUN))
        assert not shard.refused(expire(), Done).changed
        shard.do(Detach(run_id=RUN, since=shard.now_ms))
        assert not shard.refused(expire(), Done).changed
        shard.now_ms += 60_000
        assert shard.ask(expire(), Done).changed

    def test_a_run_without_a_ttl_never_expires(self, shard: ShardDriver) -> None:
        detached(shard, None)
        shard.now_ms = 1 << 50
        assert not shard.refused(expire(), Done).changed
        assert due(shard, ReapStage.EXPIRE) == []

    def test_a_recorded_cancel_keeps_its_reason(self, shard: ShardDriver) -> None:
        shard.now_ms = detached(shard) + 1
        shard.do(cancel())
        assert shard.refused(expire(), Done).head.cancel_reason is CancelReason.USER

    def test_an_interrupted_run_expires_and_a_queued_one(self, shard: ShardDriver) -> None:
        over = detached(shard)
        shard.do(claim())
        shard.end(status=Status.INTERRUPTED)
        shard.do(create("run-2", on_busy="enqueue", spec=spec(limits=Limits(detached_ttl_s=60))))
        shard.now_ms = over + 10
        for run_id in (RUN, "run-2"):
            assert shard.ask(expire(run_id), Done).changed

    def test_an_ended_run_does_not_expire(self, shard: ShardDriver) -> None:
        over = detached(shard)
        shard.do(claim())
        shard.end()
        shard.now_ms = over
        assert not shard.refused(expire(), Done).changed

    def test_only_the_newest_supervisor_reaps(self, shard: ShardDriver) -> None:
        shard.now_ms = detached(shard)
        shard.do(OpenSupervisor(claimant="another"))
        for op in (expire(), account()):
            assert shard.refused(op, SupervisorStale).current_epoch == 2
        shard.refused(expire("nobody", 2), UnknownRun)
        assert shard.ask(expire(supervisor=2), Done).changed

    def test_a_run_that_ended_unwatched_is_accounted_for_once(self, shard: ShardDriver) -> None:
        detached(shard)
        shard.do(claim())
        assert not shard.refused(account(), Done).changed
        shard.end()
        assert not shard.refused(account(), Done).changed  # it may still hold a sandbox
        shard.do(Note(run_id=RUN, epoch=1, destroy_pending=False))
        assert shard.ask(account(), Done).head.reaped is Reaped.FINALIZED
        assert not shard.refused(account(), Done).changed

    def test_an_expired_run_is_accounted_for_as_that(self, shard: ShardDriver) -> None:
        shard.now_ms = detached(shard)
        shard.do(claim(), expire())
        shard.end(status=Status.ABORTED)
        shard.do(Note(run_id=RUN, epoch=1, destroy_pending=False))
        assert shard.ask(account(), Done).head.reaped is Reaped.EXPIRED

    def test_what_is_due_is_listed_longest_due_first(self, shard: ShardDriver) -> None:
        ends = [detached(shard, ttl_s, f"run-{ttl_s}", f"thread-{ttl_s}") for ttl_s in (90, 30, 60)]
        assert due(shard, ReapStage.EXPIRE) == ["run-30", "run-60", "run-90"]
        assert due(shard, ReapStage.EXPIRE, limit=2) == ["run-30", "run-60"]
        assert due(shard, ReapStage.EXPIRE, ends[2]) == ["run-30", "run-60"]
        assert due(shard, ReapStage.EXPIRE, ends[1] - 1) == []
        shard.do(Attach(run_id="run-30"))
        assert due(shard, ReapStage.EXPIRE) == ["run-60", "run-90"]
        shard.now_ms = FAR // 2
        shard.do(Detach(run_id="run-30", since=shard.now_ms))
        assert due(shard, ReapStage.EXPIRE) == ["run-60", "run-90", "run-30"]
        shard.do(cancel("run-60"))
        assert due(shard, ReapStage.EXPIRE) == ["run-90", "run-30"]

    def test_each_stage_follows_the_one_before(self, shard: ShardDriver) -> None:
        detached(shard)
        shard.do(claim(), append(live(1, 1, "a")))
        assert [due(shard, stage) for stage in STAGES] == [[RUN], [], []]
        shard.end()
        assert [due(shard, stage) for stage in STAGES] == [[], [], []]
        shard.do(Note(run_id=RUN, epoch=1, destroy_pending=False))
        assert [due(shard, stage) for stage in STAGES] == [[], [RUN], []]
        shard.do(account())
        assert [due(shard, stage) for stage in STAGES] == [[], [], [RUN]]
        ended = shard.head().finished_at
        assert ended is not None
        assert due(shard, ReapStage.FORGET, ended - 1) == []

    def test_no_run_waits_behind_one_whose_sandbox_is_not_given_back(self, shard: ShardDriver) -> None:
        run_ids = [f"run-{place}" for place in range(4)]
        for run_id in run_ids:
            detached(shard, run_id=run_id, thread_id=run_id)
            shard.do(claim(run_id=run_id))
            shard.end(run_id)
        shard.do(Note(run_id="run-3", epoch=1, destroy_pending=False))
        assert due(shard, ReapStage.ACCOUNT, limit=2) == ["run-3"]
        shard.do(Note(run_id="run-1", epoch=1, destroy_pending=False))
        assert due(shard, ReapStage.ACCOUNT, limit=2) == ["run-1", "run-3"]
        assert [head.run_id for head in shard.store.list_destroy_pending(0)] == ["run-0", "run-2"]

    def test_a_watched_run_that_ends_is_nothing_to_tell(self, shard: ShardDriver) -> None:
        detached(shard)
        shard.do(claim(), Attach(run_id=RUN))
        shard.end()
        assert [due(shard, stage) for stage in STAGES] == [[], [], [RUN]]

    def test_who_comes_after_the_end_does_not_hide_that_nobody_was_there(self, shard: ShardDriver) -> None:
        detached(shard)
        shard.do(claim())
        shard.end()
        assert not shard.refused(Attach(run_id=RUN), Done).changed
        shard.do(Note(run_id=RUN, epoch=1, destroy_pending=False))
        assert due(shard, ReapStage.ACCOUNT) == [RUN]
