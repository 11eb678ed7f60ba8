"""Fifty runs that nobody comes back for, in virtual time: all end, hold nothing, and are told of (I7, P22).

Half of the agents end by themselves, half never do. The supervisor is killed at some moment of that, or never."""

from __future__ import annotations

import random

import pytest

from runtime.core.ops import Create
from runtime.core.record import Limits, Reaped, RunSpec, Status
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_agent import Script
from runtime.testing.sim_check import Checker
from runtime.testing.sim_deployment import Deployment
from runtime.testing.sim_loop import SimLoop, elapse
from runtime.testing.sim_verdict import judge

RUNS = 50
TTL_S = 60
LEAVE_S = 20.0
KILLED_AT = (None, 70.05, *(pytest.param(at, marks=pytest.mark.long) for at in (65.3, 68.0, 70.2, 71.0, 75.5)))


def _create(run_id: str) -> Create:
    spec = RunSpec(
        harness="sim",
        translator_version=1,
        provider="sim",
        input={"threadId": run_id, "messages": []},
        limits=Limits(detached_ttl_s=TTL_S),
    )
    return Create(run_id=run_id, thread_id=run_id, owner="", spec=spec, digest=run_id)


def _scripts() -> dict[str, Script]:
    scripts = {}
    for number in range(RUNS):
        for_ever = [(1e7, b"")] * (number % 2)
        pieces = [*[(4.0, b"other a word\n")] * 10, *for_ever, (0.0, b"result\n")]
        scripts[f"run-{number}"] = Script(pieces=pieces)
    return scripts


async def _story(deployment: Deployment, killed_at: float | None) -> list[tuple[str, str]]:
    loop, outside = deployment.loop, deployment.outside
    deployment.open()
    outside.leaves_at = dict.fromkeys((f"run-{number}" for number in range(RUNS)), LEAVE_S)
    for number in range(RUNS):
        loop.start("client", outside.post(_create(f"run-{number}")))
        loop.call_later(1.0, outside.view, f"run-{number}")
    if killed_at is not None:
        await elapse(LEAVE_S + killed_at)
        assert deployment.supervisors.current is not None
        deployment.supervisors.current.process.kill()
        await elapse(2.0)
        deployment.supervisors.open()
    while loop.time() < LEAVE_S + TTL_S + 60:
        await elapse(1.0)
    judge(deployment.checker, deployment.store, deployment.world, outside.sessions, {})
    deployment.checker.closed = True
    reports = [report for office in deployment.supervisors.all for report in office.reports]
    told = [(run.run_id, run.outcome.value) for report in reports for run in report.runs]
    return [(run_id, outcome) for run_id, outcome in told if outcome not in ("producing", "budget-exceeded")]


@pytest.mark.parametrize("killed_at", KILLED_AT)
def test_everything_ends_and_is_told_of_whatever_becomes_of_the_supervisor(killed_at: float | None) -> None:
    loop = SimLoop(random.Random(5))
    settings = Settings(reap_interval_s=5, sandbox_return_s=20)
    deployment = Deployment(loop, MemoryStore(1), _scripts(), settings)
    told = loop.play(_story(deployment, killed_at))
    checker: Checker = deployment.checker
    assert not checker.breaches
    heads = [stored[0] for number in range(RUNS) if (stored := deployment.store.read_run(f"run-{number}"))]
    ended = {(head.status, head.error.code if head.error else None, head.reaped) for head in heads}
    assert len(heads) == RUNS
    assert ended == {
        (Status.COMPLETED, None, Reaped.FINALIZED),
        (Status.ABORTED, "detached_expired", Reaped.EXPIRED),
    }
    assert sum(head.reaped is Reaped.EXPIRED for head in heads) == RUNS // 2
    assert all(head.closed and head.detached_since is not None and not head.destroy_pending for head in heads)
    assert not deployment.world.boxes
    assert not deployment.fleet.living()
    if killed_at is None:
        assert sorted(told) == sorted((head.run_id, str(head.reaped and head.reaped.value)) for head in heads)
