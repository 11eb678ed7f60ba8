"""Intents, remarks and decisions touch their own fields only (P3, P6, P9, P15, P19 to P22)."""

from __future__ import annotations

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
    Op,
    OpenSupervisor,
    RequestHandover,
    Superseded,
    SupervisorOpened,
    SupervisorStale,
    UnknownRun,
)
from runtime.core.record import CancelReason, Head, Launch, Status
from runtime.testing.sample_ops import RUN, append, cancel, claim, create, live
from runtime.testing.store_cases.shard_driver import ShardDriver


def _same_but(before: Head, after: Head, *fields: str) -> None:
    """Assert that `after` is `before` with one version more and only `fields` changed."""
    changed = {name for name in Head.__struct_fields__ if getattr(before, name) != getattr(after, name)}
    assert changed == {*fields, "version"}
    assert after.version == before.version + 1


def assign(expected: int = 1, supervisor: int = 1, max_attempts: int = 3, run_id: str = RUN) -> Assign:
    """Return a supervisor's decision."""
    return Assign(run_id=run_id, expected_epoch=expected, supervisor_epoch=supervisor, max_attempts=max_attempts)


class IntentCases:
    """Cancel, attach, detach, handover; notes; the supervisor."""

    def test_a_cancel_is_recorded_once_and_moves_no_status(self, shard: ShardDriver) -> None:
        before = shard.start()
        done = shard.ask(cancel(reason=CancelReason.DISCONNECT), Done)
        assert done.changed
        assert done.head == shard.head()
        _same_but(before, done.head, "cancel_requested", "cancel_reason")
        assert not shard.refused(cancel(reason=CancelReason.OPERATOR), Done).changed
        assert shard.head().cancel_reason is CancelReason.DISCONNECT

    def test_a_run_is_cancelled_before_anyone_claims_it(self, shard: ShardDriver) -> None:
        shard.do(create())
        assert shard.ask(cancel(), Done).head.cancel_requested

    def test_a_cancel_of_an_ended_run_changes_nothing(self, shard: ShardDriver) -> None:
        shard.start()
        shard.end()
        assert not shard.refused(cancel(), Done).changed

    def test_expiry_cancels_only_what_is_still_detached(self, shard: ShardDriver) -> None:
        shard.do(create())
        since = shard.now_ms
        reason = CancelReason.DETACHED_EXPIRED
        assert not shard.refused(cancel(reason=reason, only_if_detached_since=since - 1), Done).changed
        shard.do(Attach(run_id=RUN))
        assert not shard.refused(cancel(reason=reason, only_if_detached_since=since + 99), Done).changed
        shard.do(Detach(run_id=RUN, since=since + 1))
        assert not shard.refused(cancel(reason=reason, only_if_detached_since=since), Done).changed
        assert shard.ask(cancel(reason=reason, only_if_detached_since=since + 1), Done).head.cancel_reason is reason

    def test_attach_and_detach_touch_one_field(self, shard: ShardDriver) -> None:
        before = shard.start()
        attached = shard.ask(Attach(run_id=RUN), Done)
        _same_but(before, attached.head, "detached_since")
        assert attached.head.detached_since is None
        assert not shard.refused(Attach(run_id=RUN), Done).changed
        detached = shard.ask(Detach(run_id=RUN, since=77), Done)
        _same_but(attached.head, detached.head, "detached_since")
        assert not shard.refused(Detach(run_id=RUN, since=99), Done).changed
        assert shard.head().detached_since == 77

    def test_an_ended_run_is_not_detached_any_more(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(Attach(run_id=RUN))
        shard.end()
        assert not shard.refused(Detach(run_id=RUN, since=99), Done).changed

    def test_nobody_leaves_in_the_future(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(Attach(run_id=RUN))
        assert shard.ask(Detach(run_id=RUN, since=1 << 52), Done).head.detached_since == shard.now_ms

    def test_a_handover_is_asked_of_the_current_epoch(self, shard: ShardDriver) -> None:
        before = shard.start()
        done = shard.ask(RequestHandover(run_id=RUN), Done)
        _same_but(before, done.head, "handover_epoch")
        assert done.head.handover_epoch == 1
        assert not shard.refused(RequestHandover(run_id=RUN), Done).changed
        shard.do(claim(1, "b"))
        assert shard.ask(RequestHandover(run_id=RUN), Done).head.handover_epoch == 2
        shard.end()
        shard.refused(RequestHandover(run_id=RUN), AlreadyEnded)

    def test_an_unknown_run_takes_no_intent(self, shard: ShardDriver) -> None:
        name = "nobody"
        intents: list[Op] = [
            cancel(name),
            Attach(run_id=name),
            Detach(run_id=name, since=1),
            RequestHandover(run_id=name),
        ]
        shard.do(OpenSupervisor(claimant="s"))
        for op in (*intents, Note(run_id=name, epoch=1), assign(run_id=name)):
            assert shard.refused(op, UnknownRun).run_id == name

    def test_a_note_writes_what_it_names(self, shard: ShardDriver) -> None:
        before = shard.start()
        keyed = shard.ask(Note(run_id=RUN, epoch=1, sandbox_key="key", launch=Launch.KEYED), Done).head
        _same_but(before, keyed, "sandbox_key", "launch")
        intended = shard.ask(Note(run_id=RUN, epoch=1, launch=Launch.INTENDED), Done).head
        _same_but(keyed, intended, "launch", "heard_at")
        assert intended.heard_at == shard.now_ms
        pending = shard.ask(Note(run_id=RUN, epoch=1, destroy_pending=True), Done).head
        _same_but(intended, pending, "destroy_pending")
        assert not shard.refused(Note(run_id=RUN, epoch=1), Done).changed

    def test_bytes_that_made_no_chunk_are_a_sign_of_the_agent_once(self, shard: ShardDriver) -> None:
        before = shard.start()
        told = shard.ask(Note(run_id=RUN, epoch=1, heard_to=70), Done).head
        _same_but(before, told, "heard_to", "heard_at")
        assert (told.heard_to, told.heard_at) == (70, shard.now_ms)
        for known in (70, 69):
            assert not shard.refused(Note(run_id=RUN, epoch=1, heard_to=known), Done).changed
        assert shard.ask(Note(run_id=RUN, epoch=1, heard_to=71), Done).head.heard_at == shard.now_ms

    def test_launch_state_never_goes_back(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(Note(run_id=RUN, epoch=1, launch=Launch.INTENDED))
        for launch in Launch:
            assert not shard.refused(Note(run_id=RUN, epoch=1, launch=launch), Done).changed

    def test_a_note_needs_the_current_epoch(self, shard: ShardDriver) -> None:
        shard.do(create())
        shard.refused(Note(run_id=RUN, epoch=0, sandbox_key="key"), Superseded)
        shard.do(claim(0), claim(1, "b"))
        assert shard.refused(Note(run_id=RUN, epoch=1, sandbox_key="key"), Superseded).current_epoch == 2

    def test_the_last_driver_may_note_a_destroy_after_the_end(self, shard: ShardDriver) -> None:
        shard.start()
        assert shard.end().destroy_pending
        assert not shard.ask(Note(run_id=RUN, epoch=1, destroy_pending=False), Done).head.destroy_pending

    def test_each_supervisor_gets_a_higher_epoch(self, shard: ShardDriver) -> None:
        assert shard.ask(OpenSupervisor(claimant="a"), SupervisorOpened).epoch == 1
        assert shard.ask(OpenSupervisor(claimant="a"), SupervisorOpened).epoch == 1
        assert shard.ask(OpenSupervisor(claimant="b"), SupervisorOpened).epoch == 2
        assert shard.ask(OpenSupervisor(claimant="a"), SupervisorOpened).epoch == 3

    def test_a_superseded_supervisor_decides_nothing(self, shard: ShardDriver) -> None:
        shard.start()
        shard.refused(assign(supervisor=0), SupervisorStale)
        shard.do(OpenSupervisor(claimant="a"), OpenSupervisor(claimant="b"))
        refusal = shard.refused(assign(supervisor=1), SupervisorStale)
        assert (refusal.held_epoch, refusal.current_epoch) == (1, 2)

    def test_an_assignment_counts_attempts_without_progress(self, shard: ShardDriver) -> None:
        before = shard.start()
        shard.do(OpenSupervisor(claimant="a"))
        first = shard.ask(assign(), Assigned)
        _same_but(before, first.head, "attempts_without_progress", "last_assigned_at")
        assert (first.attempt, first.head.last_assigned_at) == (1, shard.now_ms)
        assert [shard.ask(assign(), Assigned).attempt for _ in range(2)] == [2, 3]

    def test_only_drivers_that_claimed_exhaust_a_run(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(OpenSupervisor(claimant="a"))
        assert [shard.ask(assign(), Assigned).attempt for _ in range(5)] == [1, 2, 3, 4, 5]
        shard.do(claim(1, "b"))
        assert shard.ask(assign(2), Assigned).attempt == 6
        shard.do(claim(2, "c"))
        assert shard.refused(assign(3), Exhausted).head == shard.head()

    def test_progress_gives_all_attempts_back(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(OpenSupervisor(claimant="a"), assign(), append(live(1, 1, "a")))
        assert shard.head().attempts_without_progress == 0
        shard.do(assign(), Note(run_id=RUN, epoch=1, progressed=True))
        assert shard.ask(assign(), Assigned).attempt == 1

    def test_an_assignment_rests_on_the_epoch_it_saw(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(OpenSupervisor(claimant="a"), claim(1, "b"))
        assert shard.refused(assign(1), Superseded).current_epoch == 2
        shard.end()
        assert shard.refused(assign(2), AlreadyEnded).status is Status.COMPLETED

    def test_a_run_without_need_of_a_driver_gets_one_only_to_be_ended(self, shard: ShardDriver) -> None:
        shard.start()
        shard.enqueue("run-2")
        shard.do(OpenSupervisor(claimant="a"))
        shard.refused(assign(0, run_id="run-2"), NotClaimable)
        shard.do(cancel("run-2"))
        shard.ask(assign(0, run_id="run-2"), Assigned)
        shard.end(status=Status.INTERRUPTED)
        shard.refused(assign(1), NotClaimable)
        shard.do(cancel())
        shard.ask(assign(1), Assigned)
