"""Histories in which what has ended is soon too old: it goes in its time and to its end, and no reader meets a gap."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from sim import prune_mutants, reap_mutants
from sim.mutants import applied

from runtime.testing.sim_plan import Plan
from runtime.testing.simulate import describe
from runtime.testing.simulator import simulate

pytestmark = pytest.mark.timeout(300)  # seconds of CPU, and a busy machine has few of them

Mutant = Callable[[pytest.MonkeyPatch], None]
HISTORIES = 30
CAUGHT_AS: dict[Mutant, str] = {
    prune_mutants.prune_before_the_time: "retention",
    prune_mutants.close_without_dropping: "retention",
    prune_mutants.believe_that_it_is_gone: "retention",
    prune_mutants.never_close: "retention",
    prune_mutants.serve_from_memory: "retention",
    reap_mutants.reap_without_the_supervisor_epoch: "P6",
}


def forget_soon(plan: Plan) -> None:
    rng = random.Random(plan.seconds)
    plan.log_retention_s = rng.choice([1, 5, 20])
    plan.transcript_retention_s = rng.choice([0, plan.log_retention_s, 60])


@pytest.mark.parametrize("portion", range(2))
def test_the_invariants_hold(portion: int) -> None:
    pruned = 0
    for seed in range(portion, HISTORIES, 2):
        report = simulate(seed, change=forget_soon)
        assert not report.breaches, describe(report)
        pruned += sum("LogDropped" in line and "changed=True" in line for line in report.trace)
    assert pruned >= HISTORIES // 4


@pytest.mark.parametrize("mutant", CAUGHT_AS, ids=lambda mutant: mutant.__name__)
def test_is_caught(mutant: Mutant) -> None:
    name = CAUGHT_AS[mutant]
    others: set[str] = set()
    with applied(mutant):
        for seed in range(250):
            breaches = simulate(seed, change=forget_soon).breaches
            if any(breach.startswith(f"{name}:") for breach in breaches):
                return
            others.update(breaches)
    pytest.fail(f"{mutant.__name__} shows no breach of {name} but {sorted(others)[:5]}")
