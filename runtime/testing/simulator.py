"""Play one seeded history of a whole deployment, and say whether the invariants held.

The production core and engine run unchanged: shards, drivers, a supervisor. What is made up lies behind their ports: a
world of sandboxes, a network, OS threads, processes that are killed or frozen. A seed decides everything: what is
asked, what breaks, and which of the ready callbacks runs next. The same seed gives the same history, line for line.

    sim_loop, sim_turns        the event loop                  sim_world, sim_sandbox, sim_agent  where agents live
    sim_net                    messages and processes          sim_store, sim_postgres            threads, store faults
    sim_shards                 incarnations of the shards      sim_fleet, sim_supervisors         drivers, supervisors
    sim_clients                what comes from outside         sim_plan, sim_chaos                what breaks, and when
    sim_check, sim_verdict     what must hold              sim_asking                             questions, answers

Not made up, and so not here: any rule about who may write what. `tests/sim` has a test that this stays so.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from runtime.ports import Store
from runtime.settings import Settings
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_chaos import Chaos
from runtime.testing.sim_check import Checker
from runtime.testing.sim_deployment import Deployment
from runtime.testing.sim_loop import SimLoop, Stuck
from runtime.testing.sim_plan import Plan, draw_plan
from runtime.testing.sim_verdict import judge

# I7: once nothing breaks any more, every run ends within this (virtual): the longest of start TTL and lease, all
# backoffs, the grace after a result, an unreachable sandbox, and what the agent itself still has to do.
BOUND_S = 120.0
# Then sleepers wake up and late messages arrive; nothing may come of it. Longer than the supervisor's reap interval,
# and after the last of them as long as a lease and what follows it.
REAP_INTERVAL_S = 5
QUIET_S = REAP_INTERVAL_S + 2.0
AFTER_THE_LAST_S = 6.0
SETTLE_S = 5.0  # a finish is followed by a destroy


@dataclass(frozen=True, slots=True)
class Report:
    """One history: `breaches` is empty if everything held. `digest` is of the whole trace."""

    seed: int
    breaches: tuple[str, ...]
    trace: tuple[str, ...]
    plan: Plan
    virtual_s: float

    @property
    def digest(self) -> str:
        """Return the hex SHA-256 of the trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    @property
    def repeat(self) -> str:
        """Return the command that plays this history again."""
        return f"python -m runtime.testing.simulate --schedules 1 --seed {self.seed} --trace"


def simulate(
    seed: int,
    make_store: Callable[[int], Store] | None = None,
    most_shards: int = 3,
    change: Callable[[Plan], None] = lambda _plan: None,
) -> Report:
    """Play the history of `seed`, over the store that its plan says or that `make_store` makes for so many shards.

    `change` may change the plan before it is played: then the seed alone does not repeat the history."""
    loop = SimLoop(random.Random(seed))
    plan = draw_plan(loop.rng)
    change(plan)
    plan.shards = min(plan.shards, most_shards)
    settings = Settings(
        sandbox_return_s=20,
        reap_interval_s=REAP_INTERVAL_S,
        takeover_attempts=plan.takeover_attempts,
        shards=plan.shards,
        log_retention_s=plan.log_retention_s,
        transcript_retention_s=plan.transcript_retention_s,
    )
    if make_store is None and not plan.postgres:
        make_store = MemoryStore
    deployment = Deployment(loop, make_store(plan.shards) if make_store else None, plan.scripts, settings)
    checker = deployment.checker
    defects = _Defects(checker)
    logger = logging.getLogger("outlast")
    logger.addHandler(defects)
    propagates, logger.propagate = logger.propagate, False  # thousands of warnings, as meant: the trace tells more
    try:
        loop.play(_play(plan, deployment))
    except Stuck as error:
        checker.breach("I7", str(error))
    finally:
        logger.removeHandler(defects)
        logger.propagate = propagates
    return Report(seed, tuple(checker.breaches), tuple(checker.trace), plan, loop.time())


class _Defects(logging.Handler):
    """What production logs as an error is a defect in a history, too."""

    def __init__(self, checker: Checker) -> None:
        super().__init__(logging.ERROR)
        self._checker = checker

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._checker.breach("defect", f"{record.getMessage()} {error!r}")


async def _play(plan: Plan, deployment: Deployment) -> None:
    """Let it all happen, then judge."""
    loop, checker, outside = deployment.loop, deployment.checker, deployment.outside
    chaos = Chaos(plan, deployment)
    deployment.open()
    await chaos.rage()
    await _peace(chaos, deployment)
    await _quiet(deployment)
    await _peace(chaos, deployment)  # a post that was delivered twice may have come late and started a run
    await asyncio.sleep(SETTLE_S)
    judge(checker, deployment.store, deployment.world, outside.sessions, outside.emitted)
    for context in loop.unhandled:
        checker.breach("defect", f"{context.get('message')}: {context.get('exception')!r}")
    checker.closed = True


async def _quiet(deployment: Deployment) -> None:
    """Wait until nobody sleeps and nothing is under way any more, and what they may have caused had its time."""
    loop = deployment.loop
    end = loop.time() + QUIET_S
    while loop.time() < end:
        await asyncio.sleep(1.0)
        if deployment.unsettled:
            end = max(end, loop.time() + AFTER_THE_LAST_S)


async def _peace(chaos: Chaos, deployment: Deployment) -> None:
    """Wait until every run has ended and every viewer has seen it; that must come within BOUND_S (I7)."""
    loop, checker = deployment.loop, deployment.checker
    deadline = loop.time() + BOUND_S
    while not chaos.over and loop.time() < deadline and not checker.breaches:  # noqa: ASYNC110 - virtual: it costs nothing
        await asyncio.sleep(1.0)
    if not chaos.over and not checker.breaches:
        checker.breach("I7", f"after {BOUND_S:.0f} s of peace: {deployment.outside.watching} viewers still watch")
