"""Steps of telling of an end, in each state: what is answered, and that only what is new is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.core.machine import decide
from runtime.core.ops import Done, Op, OpenSupervisor, SupervisorStale, UnknownRun
from runtime.core.reap_ops import BeginNotice, EndNotice
from runtime.core.record import Status
from runtime.testing.dict_view import DictView
from runtime.testing.sample_ops import RUN, claim, create, finish

NOW = 7


def _driven(view: DictView) -> None:
    for op in (create(), OpenSupervisor(claimant="s"), claim()):
        view.do(op)


def _ended(view: DictView) -> None:
    _driven(view)
    view.do(finish(1, 1))


def _to_tell(view: DictView) -> None:
    _driven(view)
    view.do(finish(1, 1, tell=True))


def _interrupted(view: DictView) -> None:
    _driven(view)
    view.do(finish(1, 1, Status.INTERRUPTED, tell=True))


def _telling(view: DictView) -> None:
    _to_tell(view)
    view.do(_begin())


def _begin(attempt: int = 1, supervisor: int = 1, run_id: str = RUN) -> BeginNotice:
    return BeginNotice(run_id=run_id, supervisor_epoch=supervisor, attempt=attempt)


def _told(attempt: int = 1, *, supervisor: int = 1, over: bool = False) -> EndNotice:
    return EndNotice(run_id=RUN, supervisor_epoch=supervisor, attempt=attempt, done=("a",), over=over)


NOT_CHANGED, CHANGED = False, True


@pytest.mark.parametrize(
    ("state", "op", "answer"),
    [
        (_driven, _begin(run_id="nobody"), UnknownRun),
        (_driven, _begin(), NOT_CHANGED),
        (_driven, _told(), NOT_CHANGED),
        (_ended, _begin(), NOT_CHANGED),
        (_ended, _told(over=True), NOT_CHANGED),
        (_interrupted, _begin(), NOT_CHANGED),
        (_to_tell, _begin(), CHANGED),
        (_to_tell, _begin(2), NOT_CHANGED),
        (_to_tell, _begin(supervisor=2), SupervisorStale),
        (_to_tell, _told(), NOT_CHANGED),  # of an attempt that was never begun
        (_to_tell, _told(over=True), NOT_CHANGED),
        (_telling, _begin(), NOT_CHANGED),
        (_telling, _begin(2), NOT_CHANGED),  # before its time
        (_telling, _told(), CHANGED),
        (_telling, _told(over=True), CHANGED),
        (_telling, _told(supervisor=2), SupervisorStale),
    ],
)
def test_a_step_in_a_state_gets_its_answer(state: Callable[[DictView], None], op: Op, answer: type | bool) -> None:
    view = DictView()
    state(view)
    before = view.copy().rows()
    decision = decide(view, op, NOW)
    view.write(decision)
    outcome = decision.outcome
    assert (outcome.changed if isinstance(outcome, Done) else type(outcome)) == answer
    assert (view.rows() == before) == (answer is not CHANGED)
