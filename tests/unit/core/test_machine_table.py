"""The machine's table: every operation in every state of a run, and the answer (P1, P3, P7, P9, P12).

A row that is refused, or that finds its work done, writes nothing: that is asserted for all rows in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from runtime.core import ops, refusing
from runtime.core.decision import Decision
from runtime.core.machine import decide
from runtime.core.ops import (
    AlreadyEnded,
    Appended,
    Assign,
    Assigned,
    Attach,
    Claimed,
    Closed,
    Created,
    Detach,
    DigestDiffers,
    Done,
    Exhausted,
    Finished,
    IllegalMove,
    Joined,
    LogFull,
    MustAbort,
    NotClaimable,
    Note,
    NothingToResume,
    Op,
    OpenSupervisor,
    RequestHandover,
    SeqConflict,
    Superseded,
    SupervisorOpened,
    SupervisorStale,
    ThreadBusy,
    TooManyRuns,
    UnknownRun,
)
from runtime.core.reap_ops import Account, Expire, Forget, LogDropped, NoticeOp, PruneLog
from runtime.core.record import TRANSITIONS, ClaimReason, Limits, Status
from runtime.errors import OutlastError
from runtime.testing.dict_view import DictView
from runtime.testing.sample_ops import RUN, append, cancel, claim, create, ending, finish, journal, live, nothing, spec

DONE = live(1, 1, "a")  # what is stored at 1 in every state that was driven
KEYED = live(2, 1, "emitted", key="k")
HOLDER = "holder"


def _empty(view: DictView) -> None:
    """Store nothing."""


def _created(view: DictView) -> None:
    view.do(create())
    view.do(OpenSupervisor(claimant="s"))


def _driven(view: DictView) -> None:
    _created(view)
    view.do(claim())
    view.do(append(DONE))
    view.do(append(KEYED))


def _superseded(view: DictView) -> None:
    _driven(view)
    view.do(claim(1, "successor"))


def _cancelled(view: DictView) -> None:
    _driven(view)
    view.do(cancel())


def _ended(view: DictView) -> None:
    _driven(view)
    view.do(finish(3, 1))


def _interrupted(view: DictView) -> None:
    _driven(view)
    view.do(finish(3, 1, Status.INTERRUPTED))


def _interrupted_cancelled(view: DictView) -> None:
    _interrupted(view)
    view.do(cancel())


def _queued(view: DictView) -> None:
    view.do(create(HOLDER))
    view.do(create(on_busy="enqueue"))
    view.do(OpenSupervisor(claimant="s"))


def _queued_cancelled(view: DictView) -> None:
    _queued(view)
    view.do(cancel())
    view.do(claim(0, "driver", reason=ClaimReason.CANCEL))


def _assign(expected: int = 1, supervisor: int = 1, most: int = 1) -> Assign:
    return Assign(run_id=RUN, expected_epoch=expected, supervisor_epoch=supervisor, max_attempts=most)


def _note(epoch: int = 1, **changes: object) -> Note:
    return Note(run_id=RUN, epoch=epoch, **changes)  # type: ignore[arg-type]


def _detached(view: DictView) -> None:
    """Detached at 1, for 5 ms less than the moment at which the table asks."""
    view.do(create(spec=spec(limits=Limits(detached_ttl_s=0))))
    view.do(OpenSupervisor(claimant="s"))


def _watched(view: DictView) -> None:
    _detached(view)
    view.do(Attach(run_id=RUN))


def _expired(view: DictView) -> None:
    _detached(view)
    view.do(Expire(run_id=RUN, supervisor_epoch=1))


def _given_back(view: DictView) -> None:
    _ended(view)
    view.do(_note(destroy_pending=False))


def _accounted(view: DictView) -> None:
    _given_back(view)
    view.do(Account(run_id=RUN, supervisor_epoch=1))


def _expire(supervisor: int = 1) -> Expire:
    return Expire(run_id=RUN, supervisor_epoch=supervisor)


def _account(supervisor: int = 1) -> Account:
    return Account(run_id=RUN, supervisor_epoch=supervisor)


def _prune(kind: type[PruneLog | Forget], supervisor: int = 1) -> PruneLog | Forget:
    return kind(run_id=RUN, supervisor_epoch=supervisor, ended_before=9, retention_ms=0)


State = Callable[[DictView], None]
TABLE: list[tuple[State, Op, type[object]]] = [
    # create
    (_empty, create(), Created),
    (_created, create(), Joined),
    (_ended, create(), Joined),
    (_created, create(digest="other"), DigestDiffers),
    (_created, create(owner="stranger", digest="other"), DigestDiffers),
    (_created, create("run-2"), ThreadBusy),
    (_interrupted, create("run-2"), ThreadBusy),
    (_created, create("run-2", on_busy="enqueue"), Created),
    (_created, create("run-2", on_busy="cancel-previous"), Created),
    (_cancelled, create("run-2"), Created),
    (_ended, create("run-2"), Created),
    (_created, create("run-2", "thread-2", max_runs=1), TooManyRuns),
    (_created, create("run-2", "thread-2", owner_max_bytes=1), ops.TooManyBytes),
    (_interrupted, create("run-2", resumes=True), Created),
    (_interrupted, create("run-2", resumes=True, max_runs=1), Created),
    (_interrupted, create(resumes=True), Joined),
    (_driven, create("run-2", resumes=True), NothingToResume),
    (_cancelled, create("run-2", resumes=True), NothingToResume),
    (_interrupted_cancelled, create("run-2", resumes=True), NothingToResume),
    (_ended, create("run-2", resumes=True), NothingToResume),
    (_empty, create("run-2", resumes=True), NothingToResume),
    (_queued, create("run-3", resumes=True), NothingToResume),
    (_created, create(max_runs=1), Joined),
    (_ended, create("run-2", max_runs=1), Created),
    # claim
    (_empty, claim(), UnknownRun),
    (_created, claim(), Claimed),
    (_created, claim(1), Superseded),
    (_driven, claim(0), Claimed),
    (_driven, claim(0, "other"), Superseded),
    (_driven, claim(1, "other"), Claimed),
    (_superseded, claim(0), Superseded),
    (_ended, claim(1), AlreadyEnded),
    (_ended, claim(0), Claimed),
    (_interrupted, claim(1), NotClaimable),
    (_interrupted, claim(1, reason=ClaimReason.REAP), Claimed),
    (_queued, claim(), NotClaimable),
    (_queued, claim(reason=ClaimReason.CANCEL), Claimed),
    # append: epoch, repeat, closed, sequence, size
    (_empty, append(DONE), UnknownRun),
    (_created, append(live(1, 0, "a")), Superseded),
    (_created, append(DONE), Superseded),
    (_driven, append(live(3, 1, "b")), Appended),
    (_driven, append(live(3, 2, "b")), Superseded),
    (_driven, append(DONE), Appended),
    (_driven, append(journal(1, 1, "a")), SeqConflict),
    (_driven, append(live(1, 1, "x")), SeqConflict),
    (_driven, append(live(9, 1, "x")), SeqConflict),
    (_driven, append(nothing(3, 1)), SeqConflict),
    (_driven, append(live(9, 1, "x", key="k")), Appended),
    (_driven, append(live(3, 1, "x"), max_log_bytes=1), LogFull),
    (_driven, append(DONE, max_log_bytes=1), Appended),
    (_driven, append(live(9, 1, "x"), max_log_bytes=1), SeqConflict),
    (_superseded, append(DONE), Superseded),
    (_superseded, append(live(3, 1, "x")), Superseded),
    (_superseded, append(live(3, 1, "x", key="k")), Superseded),
    (_superseded, append(live(3, 2, "x", key="k")), Appended),
    (_superseded, append(live(1, 2, "a")), SeqConflict),
    (_cancelled, append(live(3, 1, "b")), Appended),
    (_ended, append(DONE), Appended),
    (_ended, append(live(4, 1, "x")), Closed),
    (_ended, append(live(9, 1, "x")), Closed),
    (_ended, append(live(1, 2, "a")), Superseded),
    (_interrupted, append(DONE), Appended),
    (_interrupted, append(live(4, 1, "x")), Closed),
    # finish: epoch, repeat, ended, closed, sequence, cancel, transition
    (_empty, finish(1, 1), UnknownRun),
    (_created, finish(1, 0), Superseded),
    (_driven, finish(3, 1), Finished),
    (_driven, finish(3, 1, Status.FAILED), Finished),
    (_driven, finish(3, 1, Status.INTERRUPTED), Finished),
    (_driven, finish(3, 1, Status.ABORTED), IllegalMove),
    (_driven, finish(3, 1, Status.RUNNING), IllegalMove),
    (_driven, finish(2, 1), SeqConflict),
    (_driven, finish(4, 1), SeqConflict),
    (_driven, finish(3, 1, batch=nothing(3, 1)), SeqConflict),
    (_driven, finish(3, 1, batch=live(3, 1, "x", key="new")), SeqConflict),
    (_driven, finish(3, 2), Superseded),
    (_superseded, finish(3, 1), Superseded),
    (_superseded, finish(3, 2), Finished),
    (_cancelled, finish(3, 1), MustAbort),
    (_cancelled, finish(3, 1, Status.INTERRUPTED), MustAbort),
    (_cancelled, finish(3, 1, Status.ABORTED), Finished),
    (_cancelled, finish(2, 1), SeqConflict),
    (_ended, finish(3, 1), Finished),
    (_ended, finish(3, 1, Status.FAILED), AlreadyEnded),
    (_ended, finish(4, 1), AlreadyEnded),
    (_ended, finish(3, 2), Superseded),
    (_interrupted, finish(3, 1, Status.INTERRUPTED), Finished),
    (_interrupted, finish(4, 1), Closed),
    (_interrupted, finish(4, 1, Status.ABORTED, batch=nothing(4, 1)), IllegalMove),
    (_interrupted, finish(4, 1, Status.COMPLETED, batch=nothing(4, 1)), Finished),
    (_queued_cancelled, finish(1, 1, Status.ABORTED), Finished),
    (_queued_cancelled, finish(1, 1, Status.INTERRUPTED), MustAbort),
    # notes and intents
    (_empty, _note(), UnknownRun),
    (_created, _note(0), Superseded),
    (_driven, _note(), Done),
    (_driven, _note(sandbox_key="k"), Done),
    (_superseded, _note(sandbox_key="k"), Superseded),
    (_ended, _note(destroy_pending=False), Done),
    (_empty, cancel(), UnknownRun),
    (_driven, cancel(), Done),
    (_cancelled, cancel(), Done),
    (_ended, cancel(), Done),
    (_driven, cancel(only_if_detached_since=0), Done),
    (_empty, Attach(run_id=RUN), UnknownRun),
    (_driven, Attach(run_id=RUN), Done),
    (_empty, Detach(run_id=RUN, since=9), UnknownRun),
    (_driven, Detach(run_id=RUN, since=9), Done),
    (_empty, RequestHandover(run_id=RUN), UnknownRun),
    (_driven, RequestHandover(run_id=RUN), Done),
    (_ended, RequestHandover(run_id=RUN), AlreadyEnded),
    # the supervisor
    (_empty, OpenSupervisor(claimant="s"), SupervisorOpened),
    (_empty, OpenSupervisor(claimant=""), SupervisorOpened),
    (_created, OpenSupervisor(claimant="s"), SupervisorOpened),
    (_empty, _assign(supervisor=0), SupervisorStale),
    (_created, Assign(run_id="nobody", expected_epoch=0, supervisor_epoch=1, max_attempts=1), UnknownRun),
    (_created, _assign(0), Assigned),
    (_created, _assign(0, most=0), Exhausted),
    (_created, _assign(0, supervisor=2), SupervisorStale),
    (_ended, _assign(supervisor=2), SupervisorStale),
    (_superseded, _assign(1), Superseded),
    (_ended, _assign(1), AlreadyEnded),
    (_interrupted, _assign(1), NotClaimable),
    (_queued, _assign(0), NotClaimable),
    (_queued_cancelled, _assign(1), Assigned),
    # the reaper
    (_empty, _expire(0), SupervisorStale),
    (_empty, _account(0), SupervisorStale),
    # what is too old
    (_empty, _prune(PruneLog, 0), SupervisorStale),
    (_empty, _prune(Forget, 0), SupervisorStale),
    (_empty, LogDropped(run_id=RUN, supervisor_epoch=0), SupervisorStale),
    (_created, PruneLog(run_id="nobody", supervisor_epoch=1, ended_before=9, retention_ms=0), UnknownRun),
    (_created, _prune(PruneLog), Done),
    (_ended, _prune(PruneLog), Done),
    (_ended, _prune(Forget), Done),
    (_ended, LogDropped(run_id=RUN, supervisor_epoch=1), Done),
    (_created, Expire(run_id="nobody", supervisor_epoch=1), UnknownRun),
    (_created, Account(run_id="nobody", supervisor_epoch=1), UnknownRun),
    (_created, _expire(), Done),
    (_detached, _expire(), Done),
    (_detached, _expire(2), SupervisorStale),
    (_watched, _expire(), Done),
    (_expired, _expire(), Done),
    (_ended, _expire(), Done),
    (_detached, _account(), Done),
    (_ended, _account(), Done),
    (_given_back, _account(), Done),
    (_given_back, _account(2), SupervisorStale),
    (_accounted, _account(), Done),
]
WRITES = (Created, Claimed, Appended, Finished, Done, SupervisorOpened, Assigned)


def _name(value: object) -> str:
    return str(getattr(value, "__name__", "")) or type(value).__name__


@pytest.mark.parametrize(("state", "op", "kind"), TABLE, ids=_name)
def test_an_operation_in_a_state_gets_its_answer(state: State, op: Op, kind: type[object]) -> None:
    view = DictView()
    state(view)
    before = view.copy()
    decision = decide(view, op, 7)
    assert type(decision.outcome) is kind
    assert view.rows() == before.rows(), "deciding writes nothing"
    view.write(decision)
    silent = _is_repeat(decision) or not isinstance(decision.outcome, WRITES)
    assert (view.rows() == before.rows()) == silent, "only what is new is written"


def _is_repeat(decision: Decision) -> bool:
    outcome = decision.outcome
    match outcome:
        case Appended() | Finished():
            return outcome.repeat
        case Done():
            return not outcome.changed
        case Claimed():
            return decision.heads == ()
        case SupervisorOpened():
            return decision.supervisor is None
        case _:
            return False


def test_every_operation_and_every_answer_is_in_the_table() -> None:
    assert {type(op) for _, op, _ in TABLE} == set(get_args(ops.Op)) - set(get_args(NoticeOp))  # in test_noticing.py
    assert {kind for _, _, kind in TABLE} == set(get_args(ops.Outcome)) - {ops.Unstorable}


def test_every_refusal_has_an_error_and_no_answer_has() -> None:
    for state, op, kind in TABLE:
        view = DictView()
        state(view)
        outcome = view.do(op)
        if kind in get_args(ops.Refusal):
            assert isinstance(outcome, ops.Refusal)
            assert isinstance(refusing.to_error(outcome), OutlastError)
    defect = refusing.to_error(ops.Unstorable(run_id=RUN, detail="why"))
    assert (defect.code, "why" in str(defect)) == ("internal", True)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("to", list(Status))
@pytest.mark.parametrize("from_", [Status.RUNNING, Status.INTERRUPTED])
def test_a_status_moves_along_the_transitions_only(from_: Status, to: Status, cancelled: bool) -> None:
    view = DictView()
    (_driven if from_ is Status.RUNNING else _interrupted)(view)
    if cancelled:
        view.do(cancel())
    seq = view.heads[RUN].next_seq
    batch = ending(seq, 1) if from_ is Status.RUNNING else nothing(seq, 1)
    outcome = view.do(finish(seq, 1, to, batch=batch))
    allowed = (from_, to) in TRANSITIONS and (to is Status.ABORTED) == cancelled
    assert isinstance(outcome, Finished) == allowed
    assert view.heads[RUN].status is (to if allowed else from_)


def test_a_queued_run_is_not_interrupted_even_without_a_cancel() -> None:
    view = DictView()
    _queued(view)
    view.do(claim(reason=ClaimReason.CANCEL))
    assert type(view.do(finish(1, 1, Status.INTERRUPTED))) is IllegalMove
    assert type(view.do(finish(1, 1, Status.FAILED))) is Finished
    assert not view.heads[HOLDER].queued


def test_the_version_counts_the_writes_of_a_head() -> None:
    view = DictView()
    _superseded(view)
    versions = [view.heads[RUN].version]
    for op in (append(live(3, 2, "b")), cancel(), append(live(3, 2, "b")), finish(4, 2, Status.ABORTED)):
        view.do(op)
        versions.append(view.heads[RUN].version)
    assert versions[1:4] == [versions[0] + 1, versions[0] + 2, versions[0] + 2]
    assert versions[4] > versions[3]
