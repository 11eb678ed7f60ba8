"""Deliberate faults are caught, by the name of what they break, within a bounded number of histories."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import pytest
from msgspec import structs
from sim import ask_mutants, mutants, reap_mutants
from sim.mutants import applied

from runtime.core.record import OnDisconnect
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
    mutants.transcribe_one_page: "P9",
    mutants.end_a_run_without_its_transcript: "P9",
    mutants.refuse_the_whole_group: "I2",
    mutants.commit_under_any_shard_epoch: "P11",
    mutants.cancel_whoever_is_not_watched: "I6",
    mutants.count_viewers_by_edges: "P20",
    mutants.act_without_the_grace: "P20",
    mutants.mark_where_the_reading_ends: "P25",
    mutants.mark_ahead_of_the_append: "P25",
    mutants.forget_what_is_open: "P9",
    mutants.trust_every_checkpoint: "P24",
    mutants.go_on_without_the_state: "I4",
    mutants.keep_a_refused_checkpoint: "P25",
    mutants.look_for_no_orphans: "P22",
    reap_mutants.expire_before_the_time: "P22",
    reap_mutants.expire_what_is_excluded: "P22",
    reap_mutants.clear_who_is_detached: "P22",
    reap_mutants.never_expire: "I7",
    reap_mutants.account_for_nothing: "P22",
    reap_mutants.reap_without_the_supervisor_epoch: "P6",
    ask_mutants.answer_what_is_being_ended: "P23",
    ask_mutants.answer_beside_the_question: "I7",
    ask_mutants.drive_what_waits: "P23",
    mutants.write_on_what_was_believed: "I7",
    mutants.remember_what_failed: "I7",
    mutants.keep_half_of_a_group: "I3",
    mutants.have_no_unique_index: "P12",
    mutants.take_every_sandbox_for_an_orphan: "P4",
    mutants.raise_nothing: "P10",
    mutants.raise_epochs_alone: "P10",
    mutants.raise_offsets_alone: "I7",  # a driver whose appends do not fit any more drives on
    mutants.no_repeat_detection: "defect",  # a driver whose retry is a conflict: it logs that it has a bug
}


def _alone_for_long(plan: Plan) -> bool:
    """Return whether a run that nobody watches for longer than the grace is still at work then."""
    return any(
        post.unwatched_s > 20
        and post.create.spec.on_disconnect is OnDisconnect.DETACH
        and sum(delay_s for delay_s, _ in plan.scripts[post.create.run_id].pieces) > 20
        for post in plan.posts
    )


def _nothing(_plan: Plan) -> None:
    pass


def _meet_at_once(plan: Plan) -> None:
    """Have shards of PostgreSQL asked for one thread at the same moment, and write between one another."""
    plan.postgres, plan.shards, plan.crossing, plan.store_slow_s = True, 3, 0.5, 0.1
    in_one = {"thread_id": "thread-1", "on_busy": "enqueue"}
    for at, post in enumerate(plan.posts):
        spec = structs.replace(post.create.spec, input={**post.create.spec.input, "threadId": "thread-1"})
        plan.posts[at] = replace(post, at=1.0, create=structs.replace(post.create, spec=spec, **in_one))


# What a fault needs to show, where most histories do not have it: they would be played in vain.
NEEDS: dict[Mutant, Callable[[Plan], bool]] = {
    mutants.forget_the_latch: lambda plan: {"hold driver", "take over"} <= set(plan.kinds) and plan.spared > 0,
    mutants.launch_without_the_link: lambda plan: plan.weather.repeat > 0.06,
    mutants.act_without_asking: lambda plan: (
        "hold driver" in plan.kinds and plan.weather.slow_s > 0.1 and plan.weather.lose > 0.03
    ),
    mutants.finish_without_the_cancel_check: lambda plan: plan.late_cancels,
    mutants.refuse_the_whole_group: lambda plan: not plan.postgres and plan.store_slow_s > 0.5,
    mutants.cancel_whoever_is_not_watched: _alone_for_long,
    mutants.trust_every_checkpoint: lambda plan: (
        "crash driver" in plan.kinds and plan.damaged > 0.3 and plan.checkpoint_chunks <= 10
    ),
    mutants.look_for_no_orphans: lambda plan: plan.weather.repeat > 0.05,
    mutants.write_on_what_was_believed: lambda plan: plan.postgres,
    mutants.remember_what_failed: lambda plan: plan.postgres,
    mutants.keep_half_of_a_group: lambda plan: plan.postgres,
    mutants.have_no_unique_index: lambda plan: len(plan.posts) > 1,
    mutants.raise_nothing: lambda plan: plan.losses > 0,
    mutants.raise_epochs_alone: lambda plan: plan.losses > 0,
    mutants.raise_offsets_alone: lambda plan: plan.losses > 0,
}
NEEDS |= dict.fromkeys(
    [reap_mutants.expire_before_the_time, reap_mutants.clear_who_is_detached],
    lambda plan: any(post.leaves_at is not None for post in plan.posts),
)
NEEDS |= {
    reap_mutants.never_expire: lambda plan: any(
        delay_s > 1000 for script in plan.scripts.values() for delay_s, _ in script.pieces
    ),
    reap_mutants.expire_what_is_excluded: lambda plan: (
        _alone_for_long(plan) and all(post.create.spec.limits.detached_ttl_s is None for post in plan.posts)
    ),
    reap_mutants.reap_without_the_supervisor_epoch: lambda plan: (
        "hold supervisor" in plan.kinds and plan.spared > 0 and any(post.leaves_at for post in plan.posts)
    ),
}
NEEDS |= {mutant: (lambda plan: bool(plan.asking)) for mutant in CAUGHT_AS if mutant.__module__ == ask_mutants.__name__}
CHANGED: dict[Mutant, Callable[[Plan], None]] = {mutants.have_no_unique_index: _meet_at_once}


def _seeds(mutant: Mutant) -> Iterator[int]:
    """Yield the first seeds whose plan has what the mutant needs."""
    needs = NEEDS.get(mutant)
    seeds = (seed for seed in range(1_000_000) if needs is None or needs(draw_plan(random.Random(seed))))
    return islice(seeds, HISTORIES)


@pytest.mark.parametrize("mutant", CAUGHT_AS, ids=lambda mutant: mutant.__name__)
def test_is_caught(mutant: Mutant) -> None:
    name = CAUGHT_AS[mutant]
    others: set[str] = set()
    with applied(mutant):
        for seed in _seeds(mutant):
            breaches = simulate(seed, change=CHANGED.get(mutant, _nothing)).breaches
            if any(breach.startswith(f"{name}:") for breach in breaches):
                return
            others.update(breaches)
    pytest.fail(f"{HISTORIES} histories with {mutant.__name__} show no breach of {name} but {sorted(others)[:5]}")


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
