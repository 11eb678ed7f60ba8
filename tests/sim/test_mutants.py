"""Deliberate faults are caught, by the name of what they break, within a bounded number of histories."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from sim import mutants
from sim.mutants import applied

from runtime.testing.sim_plan import Plan, draw_plan
from runtime.testing.simulate import describe, main
from runtime.testing.simulator import simulate

pytestmark = pytest.mark.timeout(300)  # seconds of CPU, and a busy machine has few of them

Mutant = Callable[[pytest.MonkeyPatch], None]
HISTORIES = 250

CAUGHT_AS: dict[Mutant, str] = {
    mutants.drop_the_epoch_check: "I1",
    mutants.check_then_write_in_two_steps: "I1",
    mutants.forget_the_latch: "I1",
    mutants.claim_without_compare: "I1",
    mutants.answer_before_the_commit: "I2",
    mutants.append_the_whole_replay: "I4",
    mutants.launch_without_the_link: "P15",
    mutants.destroy_before_the_finish: "P4",
    mutants.act_without_asking: "P4",
    mutants.decide_without_the_supervisor_epoch: "P6",
    mutants.finish_without_the_cancel_check: "P9",
    mutants.refuse_the_whole_group: "I2",
    mutants.commit_under_any_shard_epoch: "P11",
    mutants.cancel_whoever_is_not_watched: "I6",
    mutants.count_viewers_by_edges: "P20",
    mutants.act_without_the_grace: "P20",
    mutants.mark_where_the_reading_ends: "P25",
    mutants.mark_ahead_of_the_append: "P25",
    mutants.forget_what_is_open: "P9",
    mutants.trust_every_checkpoint: "P25",
    mutants.go_on_without_the_state: "I4",
    mutants.keep_a_refused_checkpoint: "P25",
    mutants.take_every_sandbox_for_an_orphan: "P4",
    mutants.no_repeat_detection: "defect",  # a driver whose retry is a conflict: it logs that it has a bug
}


# Of PostgreSQL: played where the plan has it.
CAUGHT_ON_POSTGRES: dict[Mutant, str] = {
    mutants.write_on_what_was_believed: "I7",
    mutants.remember_what_failed: "I7",
    mutants.keep_half_of_a_group: "I3",
}


def _plans(wanted: Callable[[Plan], bool]) -> Iterator[int]:
    """Yield the first seeds whose plan is wanted."""
    seeds = (seed for seed in range(100_000) if wanted(draw_plan(random.Random(seed))))
    return islice(seeds, HISTORIES)


def _meet_at_once(plan: Plan) -> bool:
    """Return whether two shards are asked for one thread at the same moment, and write between one another."""
    threads = {(post.create.thread_id, post.at) for post in plan.posts}
    return plan.postgres and plan.shards > 1 and plan.crossing > 0 and len(threads) < len(plan.posts)


def _must_be_caught(mutant: Mutant, name: str, seeds: Iterator[int]) -> None:
    others: set[str] = set()
    with applied(mutant):
        for seed in seeds:
            breaches = simulate(seed).breaches
            if any(breach.startswith(f"{name}:") for breach in breaches):
                return
            others.update(breaches)
    pytest.fail(f"{HISTORIES} histories with {mutant.__name__} show no breach of {name} but {sorted(others)[:5]}")


@pytest.mark.parametrize("mutant", CAUGHT_AS, ids=lambda mutant: mutant.__name__)
def test_is_caught(mutant: Mutant) -> None:
    _must_be_caught(mutant, CAUGHT_AS[mutant], iter(range(HISTORIES)))


@pytest.mark.parametrize("mutant", CAUGHT_ON_POSTGRES, ids=lambda mutant: mutant.__name__)
def test_is_caught_on_postgres(mutant: Mutant) -> None:
    _must_be_caught(mutant, CAUGHT_ON_POSTGRES[mutant], _plans(lambda plan: plan.postgres))


def test_two_shards_that_take_one_thread_are_caught() -> None:
    _must_be_caught(mutants.have_no_unique_index, "P12", _plans(_meet_at_once))


def test_a_sandbox_that_is_made_after_its_run_has_ended_is_missed() -> None:
    _must_be_caught(mutants.look_for_no_orphans, "P22", _plans(lambda plan: plan.weather.repeat > 0.05))


def test_a_failing_history_says_how_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    with applied(mutants.destroy_before_the_finish):
        assert main(["--schedules", "5", "--seed", "0"]) == 1
        printed = capsys.readouterr().out
        again = printed.rstrip().rpartition("again: ")[2]
        assert again.startswith("python -m runtime.testing.simulate --schedules 1 --seed ")
        seed = int(again.split()[6])
        report = simulate(seed)
        assert report.breaches
        assert describe(report) in printed
