"""The schedule of faults is a function of the seed, and keeps faults of one group apart."""

from __future__ import annotations

from itertools import pairwise

from faults import PROCESS_KINDS
from host_faults import HOST_KINDS, STORE_KINDS
from hypothesis import given
from hypothesis import strategies as st
from plan import Kind, plan

KINDS = {**PROCESS_KINDS, **HOST_KINDS, **STORE_KINDS}


def test_the_same_seed_gives_the_same_schedule_and_another_one_another() -> None:
    assert plan(7, 50, KINDS) == plan(7, 50, KINDS)
    assert plan(7, 50, KINDS) != plan(8, 50, KINDS)


@given(st.integers(0, 10_000))
def test_faults_come_in_order_and_those_of_a_group_never_overlap(seed: int) -> None:
    made = plan(seed, 80, KINDS)
    assert [one.number for one in made] == list(range(80))
    assert all(before.at_s < after.at_s for before, after in pairwise(made))
    for group in {kind.group for kind in KINDS.values()} - {""}:
        of_group = [one for one in made if KINDS[one.kind].group == group]
        for before, after in pairwise(of_group):
            assert after.at_s >= before.at_s + before.hold_s + KINDS[before.kind].rest_s - 0.02


def test_every_kind_comes_in_a_schedule_of_five_hundred() -> None:
    assert {one.kind for one in plan(0, 500, KINDS)} == KINDS.keys()


def test_a_fault_holds_as_long_as_its_kind_says() -> None:
    made = plan(1, 60, {"short": Kind(1, ((1.0, 2.0),)), "sudden": Kind(1)})
    assert all(1.0 <= one.hold_s <= 2.0 if one.kind == "short" else one.hold_s == 0.0 for one in made)
