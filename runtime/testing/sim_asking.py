"""Agents that ask, people who answer, and what must be true of it (P23).

An asking agent ends with the line `ask`: its run is interrupted. Somebody then answers: once, twice, from two tabs at
once, after Stop, or only when everything else is over. What else happens to a run, crashes and takeovers too, happens
to one that waits as well.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from runtime.core.ops import (
    Append,
    Appended,
    Assign,
    Assigned,
    Claimed,
    ClaimRun,
    Create,
    Created,
    Done,
    Finish,
    Finished,
    Op,
    OpenSupervisor,
    Outcome,
    RequestCancel,
)
from runtime.core.reap_ops import Expire
from runtime.core.record import ClaimReason, Status
from runtime.ports import Store
from runtime.testing.sim_agent import write_script
from runtime.testing.sim_loop import SimLoop

if TYPE_CHECKING:
    from runtime.testing.sim_clients import Outside
    from runtime.testing.sim_plan import Plan

SHARE = 4  # in one of so many histories somebody asks
TABS = ("answer", "other")
TO_END = (ClaimReason.CANCEL, ClaimReason.REAP)


def let_ask(plan: Plan, rng: random.Random) -> None:
    """Have some agents of the plan ask at their end, and write what the agents of the runs that answer print."""
    for post in plan.posts:
        if rng.randrange(2):
            run_id = post.create.run_id
            script = plan.scripts[run_id]
            script.pieces.append((rng.random(), b"\nask\n"))
            script.code, script.signal, script.hangs, script.recorder_dies_after = 0, None, False, None
            for tab in TABS:
                plan.scripts[f"{run_id}-{tab}"] = write_script(rng, rng.randrange(40), plan.seconds * rng.random())
            plan.asking[run_id] = post.create


class AskCheck:
    """Sees what is stored, and calls `breach(name, text)`; calls `heard` with a run that asks now."""

    def __init__(self, store: Store, breach: Callable[[str, str], None]) -> None:
        self.asked: dict[str, str] = {}  # run -> asks | stopped | answered | ended
        self.heard: Callable[[str], None] = _nobody
        self._epochs: dict[str, int] = {}
        self._store = store
        self._breach = breach

    def decided(self, op: Op, outcome: Outcome) -> None:
        """See one operation and its answer."""
        if isinstance(op, OpenSupervisor):
            return
        match op, outcome:
            case Finish(status=Status.INTERRUPTED), Finished(repeat=False):
                self.asked[op.run_id], self._epochs[op.run_id] = "asks", op.batch.epoch
                self.heard(op.run_id)
            case Finish(), Finished(repeat=False) if op.run_id in self.asked:
                self._ended(op)
            case Create(), Created():
                self._created(op, outcome)
            case ((RequestCancel() | Expire()), Done(changed=True)) if self.asked.get(op.run_id) == "asks":
                self.asked[op.run_id] = "stopped"
            case Append(), Appended(repeat=False) if op.run_id in self.asked:
                self._breach("P23", f"{op.run_id}: an append was stored after its question")
            case ClaimRun() | Assign(), Claimed() | Assigned() if op.run_id in self.asked:
                self._driven(op, outcome)

    def went_back(self) -> None:
        """What was stored may be lost (P10): believe the store."""
        for run_id in self._epochs:  # also of what an earlier copy had not
            head = (self._store.read_run(run_id) or (None,))[0]
            if head is None or head.status is Status.RUNNING:
                self.asked.pop(run_id, None)
            elif head.status is Status.INTERRUPTED:
                before, self.asked[run_id] = self.asked.get(run_id), "stopped" if head.cancel_requested else "asks"
                if before != "asks" and not head.cancel_requested:
                    self.heard(run_id)  # the answer is lost: whoever gave it finds the question there again

    def _created(self, op: Create, outcome: Created) -> None:
        if outcome.cancelled_previous in self.asked:
            self.asked[outcome.cancelled_previous] = "stopped"
        resumed = outcome.resumed
        if op.resumes != (resumed is not None):
            self._breach("P23", f"{op.run_id}: it answers {op.resumes}, and what it resumes is {resumed}")
        if resumed is not None:
            was = self.asked.get(resumed.run_id)
            if was != "asks":
                self._breach("P23", f"{op.run_id}: it answers {resumed.run_id}, of which it is known: {was}")
            self.asked[resumed.run_id] = "answered"

    def _ended(self, op: Finish) -> None:
        if self.asked[op.run_id] != "stopped" or op.batch.count:
            self._breach("P23", f"{op.run_id}: {self.asked[op.run_id]}, and ended with {op.batch.count} chunks more")
        self.asked[op.run_id] = "ended"

    def _driven(self, op: ClaimRun | Assign, outcome: Claimed | Assigned) -> None:
        """Nobody drives a run that waits; whoever ends it claims it."""
        if isinstance(op, ClaimRun) and (op.reason in TO_END or outcome.head.driver_epoch <= self._epochs[op.run_id]):
            return  # the last one's is the first answer again
        if isinstance(op, ClaimRun) or self.asked[op.run_id] != "stopped":
            self._breach("P23", f"{outcome.head.run_id}: {self.asked[outcome.head.run_id]}, and gets a driver")


class People:
    """Whoever reads the questions. `busy`: somebody has not made up his mind yet."""

    def __init__(self, loop: SimLoop, plan: Plan, outside: Outside, check: AskCheck) -> None:
        self.busy = 0
        self._loop = loop
        self._rng = loop.rng
        self._plan = plan
        self._outside = outside
        self._check = check

    def hear(self, run_id: str) -> None:
        """React to the question of a run, sooner or later."""
        self.busy += 1
        self._loop.start("client", self._react(run_id))

    async def _react(self, run_id: str) -> None:
        await asyncio.sleep(self._rng.expovariate(1 / 3))
        match self._rng.randrange(5):
            case 0:
                await self._answer(run_id, "answer")
            case 1:
                await asyncio.gather(*(self._answer(run_id, tab) for tab in TABS))
            case 2:
                await asyncio.gather(self._answer(run_id, "answer"), self._answer(run_id, "answer"))
            case 3:
                await asyncio.gather(self._outside.cancel(run_id), self._answer(run_id, "answer"))
            case _:
                await asyncio.sleep(max(0.0, self._plan.seconds - self._loop.time()))
        while self._check.asked.get(run_id) == "asks":  # it may have been asked again, the store having forgotten
            await self._answer(run_id, "answer")
            await asyncio.sleep(1.0)
        self.busy -= 1

    async def _answer(self, run_id: str, tab: str) -> None:
        await asyncio.sleep(0.05 * self._rng.random())
        own = f"{run_id}-{tab}"
        create = msgspec.structs.replace(self._plan.asking[run_id], run_id=own, digest=own, resumes=True)
        if await self._outside.post(create) and self._rng.randrange(2):
            self._outside.view(own)


def _nobody(_run_id: str) -> None:
    pass
