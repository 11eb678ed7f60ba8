"""Fifty runs that nobody comes back for, in virtual time: all end, hold nothing, and are told of (I7, P22).

Half of the agents end by themselves, half never do. The supervisor is killed at some moment of that, or in the middle
of a step: when what it decided has been stored, or done, and before it knows. Its successor may be killed there too."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from runtime.core.ops import Create
from runtime.core.record import Head, Limits, Reaped, RunSpec, Status
from runtime.core.transcript import encode, of_log
from runtime.engine.reaping import Report
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_agent import Script
from runtime.testing.sim_check import Checker
from runtime.testing.sim_deployment import Deployment
from runtime.testing.sim_loop import SimLoop, elapse
from runtime.testing.sim_verdict import judge

RUNS = 50
NAMES = [f"run-{number}" for number in range(RUNS)]
TTL_S = 60  # of the first one; each next one has a second more
LEAVE_S = 20.0
KILLED_AT = (None, 70.05, *(pytest.param(at, marks=pytest.mark.long) for at in (65.3, 68.0, 70.2, 75.5, 90.0, 110.1)))

# Of what the reaper does about a run, in order, how the history tells that it is stored or asked for. Before it, the
# supervisor gives every run its driver.
STEPS = {
    "a driver is decided on": r": Assign .* -> Assigned",
    "who nobody watches is known": r": Detach .* -> Done .*changed=True",
    "an agent has ended by itself": r": Finish .* status=completed .* -> Finished",
    "its sandbox is known to be given back": r": Note .* -> Done .*changed=True .* completed",
    "the first expiry is stored": r": Expire .* -> Done .*changed=True",
    "a driver ends an expired agent": r": ask destroy ",
    "an expired run has ended": r": Finish .* status=aborted .* -> Finished",
    "the first account is stored": r": Account .* -> Done .*changed=True",
}


def _create(run_id: str) -> Create:
    spec = RunSpec(
        harness="sim",
        translator_version=1,
        provider="sim",
        input={"threadId": run_id, "messages": []},
        limits=Limits(detached_ttl_s=TTL_S + NAMES.index(run_id)),
    )
    return Create(run_id=run_id, thread_id=run_id, owner="", spec=spec, digest=run_id)


def _scripts() -> dict[str, Script]:
    scripts = {}
    for number, run_id in enumerate(NAMES):
        for_ever = [(1e7, b"")] * (number % 2)
        said = [(4.0 + number / 10, b"start m\n"), *[(4.0, b"say m a word\n")] * 9]
        scripts[run_id] = Script(pieces=[*said, *for_ever, (0.0, b"result\n")])
    return scripts


class Played:
    """One history: what is in the store, and every report of every supervisor."""

    def __init__(self, during: Callable[[Deployment], None]) -> None:
        loop = SimLoop(random.Random(5))
        settings = Settings(reap_interval_s=5, sandbox_return_s=20)
        self.store = MemoryStore(1)
        self.deployment = Deployment(loop, self.store, _scripts(), settings)
        loop.play(self._story(during))

    async def _story(self, during: Callable[[Deployment], None]) -> None:
        deployment, loop, outside = self.deployment, self.deployment.loop, self.deployment.outside
        deployment.open()
        outside.leaves_at = dict.fromkeys(NAMES, LEAVE_S)
        for run_id in NAMES:
            loop.start("client", outside.post(_create(run_id)))
            loop.call_later(1.0, outside.view, run_id)
        during(deployment)
        while loop.time() < LEAVE_S + TTL_S + RUNS + 60:
            await elapse(1.0)
        judge(deployment.checker, self.store, deployment.world, outside.sessions, {})
        deployment.checker.closed = True
        self.actors = deployment.fleet.living()

    @property
    def reports(self) -> list[Report]:
        return [report for office in self.deployment.supervisors.all for report in office.reports]

    @property
    def told(self) -> list[tuple[str, str]]:
        """Return what the reports say became of which run, in all."""
        told = [(run.run_id, run.outcome.value) for report in self.reports for run in report.runs]
        return [(run_id, outcome) for run_id, outcome in told if outcome in ("finalized", "expired", "failed")]

    def heads(self) -> list[Head]:
        return [stored[0] for run_id in NAMES if (stored := self.store.read_run(run_id))]

    def check(self) -> None:
        """Nothing is left behind, and all of it is known."""
        deployment, heads = self.deployment, self.heads()
        checker: Checker = deployment.checker
        assert not checker.breaches
        assert Counter((head.status, head.error and head.error.code, head.reaped) for head in heads) == {
            (Status.COMPLETED, None, Reaped.FINALIZED): RUNS // 2,
            (Status.ABORTED, "detached_expired", Reaped.EXPIRED): RUNS // 2,
        }
        assert all(head.closed and head.detached_since is not None and not head.destroy_pending for head in heads)
        for run_id in NAMES:
            log = [data for batch in self.store.read_batches(run_id, 0, 1 << 40) for data in batch.chunks()]
            transcript = self.store.read_transcript(run_id)
            assert transcript == encode(of_log(log)), run_id
            assert transcript is not None
            assert transcript.count(b"a word") == 9
        assert not deployment.world.boxes, "sandboxes, and the journals in them"
        assert not self.actors, "run actors"
        told = self.told
        assert len(dict(told)) == len(told), "nobody is told of twice"
        became = {head.run_id: str(head.reaped and head.reaped.value) for head in heads}
        assert dict(told).items() <= became.items()


def _kill(deployment: Deployment) -> None:
    office = deployment.supervisors.current
    assert office is not None
    office.process.kill()
    deployment.supervisors.current = None
    deployment.loop.call_later(2.0, deployment.supervisors.open)


@pytest.mark.parametrize("killed_at", KILLED_AT)
def test_everything_ends_and_is_told_of_whatever_becomes_of_the_supervisor(killed_at: float | None) -> None:
    def during(deployment: Deployment) -> None:
        if killed_at is not None:
            deployment.loop.call_later(LEAVE_S + killed_at, _kill, deployment)

    played = Played(during)
    played.check()
    if killed_at is None:
        assert sorted(run_id for run_id, _ in played.told) == sorted(NAMES), "the reports account for each"


def _killing(steps: Sequence[str]) -> Callable[[Deployment], None]:
    """Kill the supervisor when the history tells of the first of `steps`, its successor at the second, and so on."""
    left = list(steps)

    def during(deployment: Deployment) -> None:
        write = deployment.checker.write

        def hear(text: str) -> None:
            write(text)
            if left and deployment.supervisors.current is not None and re.search(STEPS[left[0]], text):
                write(f"the supervisor is killed: {left.pop(0)}")
                _kill(deployment)

        deployment.checker.write = hear  # type: ignore[method-assign]

    return during


@pytest.mark.parametrize("step", STEPS)
def test_a_supervisor_killed_in_the_middle_of_a_step_changes_nothing_of_that(step: str) -> None:
    played = Played(_killing([step]))
    played.check()
    assert len(played.deployment.supervisors.all) == 2, f"nothing tells of the step: {step}"


def test_supervisors_killed_in_the_middle_of_every_step_one_after_another_change_nothing_of_that() -> None:
    played = Played(_killing(list(STEPS)))
    played.check()
    assert len(played.deployment.supervisors.all) == 1 + len(STEPS)


def test_supervisors_killed_in_the_middle_of_the_same_step_again_and_again_change_nothing_of_that() -> None:
    played = Played(_killing(["the first expiry is stored"] * 3 + ["the first account is stored"] * 3))
    played.check()
    assert len(played.deployment.supervisors.all) == 7
