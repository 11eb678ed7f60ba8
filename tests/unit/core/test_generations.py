"""A generation is past everything that was given before it, and who was told what is lost shows that it is (P10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.generations import next_epoch, next_generation, raised, witnessed
from runtime.core.ids import START, Offset
from runtime.core.ops import Assign, Note, Op, OpenSupervisor
from runtime.testing.dict_view import DictView
from runtime.testing.sample_ops import RUN, append, claim, create, finish, live

number = st.integers(0, 2_000_000_000_000)


@given(number, number, number)
def test_a_generation_is_past_what_was_given_and_no_earlier_than_now(stored: int, now_ms: int, above: int) -> None:
    generation = next_generation(stored, now_ms, above)
    assert generation > max(stored, above)
    assert generation >= now_ms
    assert generation in (stored + 1, above + 1, now_ms)


@given(number, number)
def test_an_epoch_of_a_generation_is_past_the_one_before(epoch: int, generation: int) -> None:
    assert next_epoch(epoch, generation) > epoch
    assert next_epoch(epoch, generation) >= generation


@given(st.tuples(number, number), number, number)
def test_an_offset_leads_into_a_log_of_its_own_generation(offset: tuple[int, int], generation: int, end: int) -> None:
    place = Offset(*offset)
    assert place.leads_into(generation, end) is (place == START or (offset[0] == generation and offset[1] <= end))
    assert START.leads_into(generation, end)


def test_a_raise_gives_who_was_away_the_time_to_come_back_anew() -> None:
    head = _driven().heads[RUN]
    away = raised(head.with_(detached_since=5), 1000)
    assert away.detached_since == 1000
    assert raised(head.with_(detached_since=2000), 1000).detached_since == 2000
    assert raised(head.with_(detached_since=None), 1000).detached_since is None


def _driven() -> DictView:
    view = DictView()
    for op in (create(), OpenSupervisor(claimant="s"), claim(), append(live(1, 1, "a"))):
        view.do(op)
    return view


def _open_supervisor(claimant: str) -> Op:
    return OpenSupervisor(claimant=claimant)


def _assign(expected: int, supervisor: int) -> Assign:
    return Assign(run_id=RUN, expected_epoch=expected, supervisor_epoch=supervisor, max_attempts=9)


LATER: list[tuple[list[Op], Op]] = [
    ([append(live(2, 1, "lost"))], append(live(3, 1, "late"))),
    ([append(live(2, 1, "lost"))], finish(3, 1)),
    ([claim(1, "successor")], append(live(2, 2, "late"))),
    ([claim(1, "successor")], finish(2, 2)),
    ([claim(1, "successor")], Note(run_id=RUN, epoch=2, progressed=True)),
    ([claim(1, "successor")], _assign(2, 1)),
    ([OpenSupervisor(claimant="another")], _assign(1, 2)),
]


@pytest.mark.parametrize(("lost", "late"), LATER)
def test_who_was_told_what_is_lost_shows_it(lost: list[Op], late: Op) -> None:
    view = _driven()
    for op in lost:
        view.do(op)
    assert witnessed(late, view.do(late)) is None, "nothing is lost"
    went_back = _driven()
    above = witnessed(late, went_back.do(late))
    assert above is not None
    went_back.now_generation = next_generation(0, 1, above)
    went_back.raise_generation()
    assert witnessed(late, went_back.do(late)) is None, "it is known now"


@pytest.mark.parametrize("late", [late for _, late in LATER] + [claim(7, "whoever"), append(live(0, 1, "early"))])
def test_who_was_superseded_shows_nothing(late: Op) -> None:
    view = _driven()
    ops: list[Op] = [append(live(2, 1, "b")), claim(1, "a"), claim(2, "b"), *map(_open_supervisor, "xy")]
    for op in ops:
        view.do(op)
    assert witnessed(late, view.do(late)) is None
