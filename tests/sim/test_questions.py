"""A run that asks, in virtual time: answered, answered twice, stopped, taken over, forgotten, its parts killed (P23).

What is tried here one by one happens in some of the histories of `test_histories.py` together with everything else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from runtime.core.ops import Create
from runtime.core.record import Head, Limits, RunSpec, Status
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_agent import Script
from runtime.testing.sim_deployment import Deployment
from runtime.testing.sim_loop import SimLoop, elapse
from runtime.testing.sim_verdict import judge

RUN, ANSWER, OTHER = "run-1", "run-1-answer", "run-1-other"
THREAD = "thread-1"
TTL_S = 30
SCRIPTS = {
    RUN: Script(pieces=[(1.0, b"start m\nsay m may I?\n"), (1.0, b"end m\nask\n")]),
    ANSWER: Script(pieces=[(1.0, b"say m thanks\nresult\n")]),
    OTHER: Script(pieces=[(1.0, b"say m thanks\nresult\n")]),
}


def asks() -> Create:
    spec = RunSpec(
        harness="sim",
        translator_version=1,
        provider="sim",
        input={"threadId": THREAD, "messages": []},
        limits=Limits(detached_ttl_s=TTL_S),
    )
    return Create(run_id=RUN, thread_id=THREAD, owner="", spec=spec, digest=RUN)


def answers(run_id: str = ANSWER) -> Create:
    return msgspec.structs.replace(asks(), run_id=run_id, digest=run_id, resumes=True)


class Asked:
    """One history: a run asks, `then` something is done, and what comes of it is judged."""

    def __init__(
        self,
        then: Callable[[Asked], Awaitable[None]],
        seed: int = 3,
        before: Callable[[Asked], None] = lambda _asked: None,
    ) -> None:
        self.loop = SimLoop(random.Random(seed))
        self.store = MemoryStore(1)
        self.deployment = Deployment(self.loop, self.store, SCRIPTS, Settings(reap_interval_s=2))
        self.outside = self.deployment.outside
        self.loop.play(self._story(then, before))
        assert not self.deployment.checker.breaches

    async def _story(self, then: Callable[[Asked], Awaitable[None]], before: Callable[[Asked], None]) -> None:
        deployment = self.deployment
        deployment.open()
        before(self)
        await self.outside.post(asks())
        self.outside.view(RUN)
        while self.head().status is not Status.INTERRUPTED:
            await elapse(0.5)
        self.epoch, self.length = self.head().driver_epoch, self.head().next_seq
        await then(self)
        await elapse(60.0)
        judge(deployment.checker, self.store, deployment.world, self.outside.sessions, {})
        deployment.checker.closed = True
        assert not deployment.world.boxes
        assert not deployment.fleet.living()

    def head(self, run_id: str = RUN) -> Head:
        stored = self.store.read_run(run_id)
        assert stored is not None, run_id
        return stored[0]

    def there(self) -> list[str]:
        """Return the runs that were made to answer."""
        return [run_id for run_id in (ANSWER, OTHER) if self.store.read_run(run_id)]


def test_an_answer_completes_the_run_that_asked_and_goes_on_in_its_thread() -> None:
    async def then(asked: Asked) -> None:
        await elapse(10.0)
        assert await asked.outside.post(answers())

    asked = Asked(then)
    assert (asked.head().status, asked.head(ANSWER).status) == (Status.COMPLETED, Status.COMPLETED)
    assert (asked.head().driver_epoch, asked.head().next_seq) == (asked.epoch, asked.length), "no claim, no chunk"


@pytest.mark.parametrize("seed", range(8))
def test_of_two_answers_at_once_one_is_taken(seed: int) -> None:
    async def then(asked: Asked) -> None:
        taken = await asyncio.gather(*(asked.outside.post(answers(run_id)) for run_id in (ANSWER, OTHER)))
        assert sorted(taken) == [False, True]

    asked = Asked(then, seed)
    assert len(asked.there()) == 1
    assert asked.head(*asked.there()).status is Status.COMPLETED


def test_the_same_answer_twice_is_one_run_and_one_agent() -> None:
    async def then(asked: Asked) -> None:
        assert all(await asyncio.gather(*(asked.outside.post(answers()) for _ in range(3))))

    assert Asked(then).deployment.world.started[ANSWER] == 1


def test_stop_while_it_asks_ends_it_and_later_answers_are_refused() -> None:
    async def then(asked: Asked) -> None:
        await asked.outside.cancel(RUN)
        assert not await asked.outside.post(answers())

    asked = Asked(then)
    assert (asked.head().status, asked.head().next_seq) == (Status.ABORTED, asked.length)
    assert asked.there() == []


@pytest.mark.parametrize("seed", range(8))
def test_of_stop_and_an_answer_at_once_either_wins_and_never_both(seed: int) -> None:
    async def then(asked: Asked) -> None:
        await asyncio.gather(asked.outside.cancel(RUN), asked.outside.post(answers()))

    asked = Asked(then, seed)
    expected = Status.COMPLETED if asked.there() else Status.ABORTED
    assert asked.head().status is expected


def test_nobody_drives_a_run_that_asks_whoever_wants_it_taken_over() -> None:
    async def then(asked: Asked) -> None:
        for _ in range(3):
            await asked.outside.take_over(RUN)
            await asked.outside.hand_over(RUN)
            await elapse(4.0)
        assert asked.head().driver_epoch == asked.epoch
        assert not asked.deployment.fleet.living()
        assert await asked.outside.post(answers())

    assert Asked(then).head().status is Status.COMPLETED


def test_a_driver_killed_when_its_question_is_stored_leaves_nothing_behind() -> None:
    """It cannot give back the sandbox any more."""

    def before(asked: Asked) -> None:
        def kill(_run_id: str) -> None:
            for actor in asked.deployment.fleet.living():
                actor.process.kill()

        asked.deployment.checker.questions.heard = kill

    async def then(asked: Asked) -> None:
        assert asked.deployment.world.boxes
        await elapse(15.0)
        assert not asked.deployment.world.boxes
        assert asked.head().driver_epoch == asked.epoch
        assert await asked.outside.post(answers())

    assert Asked(then, before=before).head(ANSWER).status is Status.COMPLETED


def test_a_question_outlives_the_supervisor_and_the_shard() -> None:
    async def then(asked: Asked) -> None:
        shards, supervisors = asked.deployment.shards, asked.deployment.supervisors
        for current in (supervisors.current, shards.current[0]):
            assert current is not None
            current.process.kill()
        await elapse(1.0)
        shards.open(0)
        supervisors.open()
        await elapse(10.0)
        assert await asked.outside.post(answers())

    asked = Asked(then)
    assert (asked.head().status, asked.head(ANSWER).status) == (Status.COMPLETED, Status.COMPLETED)


def test_a_question_that_nobody_comes_back_for_expires() -> None:
    async def then(asked: Asked) -> None:
        await elapse(TTL_S + 20.0)
        assert not await asked.outside.post(answers())

    asked = Asked(then)
    assert (asked.head().status, asked.head().next_seq) == (Status.ABORTED, asked.length)
    error = asked.head().error
    assert error is not None
    assert error.code == "detached_expired"
