"""Ends what nobody came back for, and tells what became of what ended unwatched (P19, P22).

One sweep looks at what the stores say is due (`core/reaping.py`), each run on its own and with a deadline:

    expire     one transaction decides, so that a viewer who has just come back wins; then the run is cancelled as for a
               person (P21). All of it goes on without us: the cancel is on the record, and the shard tells of it
               until the run has ended
    account    the outcome is written on the record, once, when the run holds nothing any more; and counted
    give back  `engine/returning.py`
    prune      `engine/pruning.py`

What an outcome says comes from the record alone. That an agent has finished is known from its exit record, by its
driver: a detached run has a driver like every other (I7), so nothing here reads a journal or guesses. A sweep never
throws, and no run, shard or provider holds it up for longer than its own deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any

from runtime.core.ops import Done, Outcome, SupervisorStale
from runtime.core.reap_ops import Account, Expire, ReapStage
from runtime.core.reaping import became, due, unaccounted
from runtime.core.record import CancelReason, Head, Struct
from runtime.engine.authority import repeat
from runtime.engine.pruning import Pruned, Pruner
from runtime.engine.returning import Orphans
from runtime.engine.supervisor import Supervisor
from runtime.errors import OutlastError
from runtime.ports import Clock, ShardPort

log = logging.getLogger("outlast.supervisor")

RUN_BUDGET_S = 30.0  # for one expired run to come to its end; it goes on afterwards, unattended
GRACE_S = 8.0  # beside it, for the store
LIST_S = 5.0  # for a shard to say what is due
LOOK_S = 1.0
MAX_RUNS = 50  # of each kind, shard and sweep, all at once; the next sweep goes on
SETTLE_MS = 60_000  # a sandbox that is not given back so long after the end is told as a failure
FOR_EVER_MS = (1 << 63) - 1


class ReapOutcome(StrEnum):
    """What a sweep found a detached run to be, or made of it."""

    FINALIZED = "finalized"  # it has come to an end of its own, and holds nothing any more
    EXPIRED = "expired"  # nobody came back in time: it has been ended
    PRODUCING = "producing"  # it goes on, and is not touched
    UNKNOWN = "unknown"  # its shard does not know it, or does not answer
    BUDGET_EXCEEDED = "budget-exceeded"  # its end is recorded, and has not come within the budget
    NOT_CLAIMED = "not-claimed"  # a viewer came back, or somebody else ended it
    RECLAIM_FAILED = "reclaim-failed"  # it has ended, and its sandbox could not be given back yet
    FAILED = "failed"  # the attempt failed; the next sweep tries again


class ReapedRun(Struct, frozen=True, kw_only=True):
    """One line of a report."""

    run_id: str
    outcome: ReapOutcome
    status: str | None = None
    exit_code: int | None = None
    error: str | None = None


class Report(Struct, frozen=True, kw_only=True):
    """One sweep: `outcomes` has every outcome's count, `runs` a line for each run that was looked at."""

    at: int
    dry_run: bool
    considered: int
    outcomes: dict[str, int]
    runs: list[ReapedRun]
    pruned: Pruned
    failures: list[str]
    orphans: int  # sandboxes destroyed that were nobody's, since the supervisor began
    kept: dict[str, str]  # sandboxes that are nobody's known one and were left, and why


class Reaper:
    """Sweeps for one supervisor, whose epoch every decision rests on."""

    def __init__(
        self,
        supervisor: Supervisor,
        shards: Mapping[int, ShardPort],
        shard_of: Callable[[str], ShardPort],
        clock: Clock,
        orphans: Orphans,
        pruner: Pruner,
    ) -> None:
        self.counts: Counter[str] = Counter()  # of what is not merely going on, since this supervisor began
        self.last: Report | None = None
        self._supervisor = supervisor
        self._shards = shards
        self._shard = shard_of
        self._clock = clock
        self._orphans = orphans
        self._pruner = pruner

    async def sweep(self, *, dry_run: bool = False, budget_s: float = RUN_BUDGET_S) -> Report:
        """Look at what is due once, and return what came of it within about `budget_s`. `dry_run`: look only."""
        at = self._clock.wall_ms()
        failures: list[str] = []
        found, pruned = await asyncio.gather(
            self._look(at, failures, budget_s, dry_run=dry_run), self._pruner.turn(failures, dry_run=dry_run)
        )
        counts = Counter(one.outcome.value for one in found)
        if not dry_run:
            self.counts.update({name: n for name, n in counts.items() if name != ReapOutcome.PRODUCING})
        outcomes = {outcome.value: counts[outcome.value] for outcome in ReapOutcome}
        report = Report(
            at=at,
            dry_run=dry_run,
            considered=len(found),
            outcomes=outcomes,
            runs=found,
            pruned=pruned,
            failures=failures,
            orphans=self._orphans.ended,
            kept={key: why.value for key, why in self._orphans.kept.items()},
        )
        self.last = report
        return report

    async def _look(self, at: int, failures: list[str], budget_s: float, *, dry_run: bool) -> list[ReapedRun]:
        """Look at each run that nobody came back for, all at once."""
        listed = await asyncio.gather(*(self._listed(number, at, failures) for number in self._shards))
        works = [
            self._guarded(head, work, budget_s)
            for detached, ended in listed
            for head, work in [
                *((head, self._expired(head, at, budget_s, dry_run=dry_run)) for head in detached),
                *((head, self._told(head, dry_run=dry_run)) for head in ended),
            ]
        ]
        return [one for one in await asyncio.gather(*works) if one is not None]

    async def _listed(self, number: int, at: int, failures: list[str]) -> tuple[list[Head], list[Head]]:
        """Return the detached runs of a shard, the longest due first, and those that have ended untold."""
        shard = self._shards[number]
        try:
            async with asyncio.timeout(LIST_S):
                detached = await shard.reapable(ReapStage.EXPIRE, FOR_EVER_MS, MAX_RUNS)
                ended = await shard.reapable(ReapStage.ACCOUNT, at, MAX_RUNS)
        except Exception as error:  # noqa: BLE001 - a sweep never throws
            failures.append(f"log:{number} does not say what is due: {error!r}")
            return [], []
        return detached, ended + await self._pending(number, failures)

    async def _pending(self, number: int, failures: list[str]) -> list[Head]:
        """Return runs of a shard that are to be told of and cannot be yet, for their sandboxes: apart from the others,
        which never wait behind them."""
        try:
            async with asyncio.timeout(LIST_S):
                pending = await self._shards[number].destroy_pending()
        except Exception as error:  # noqa: BLE001 - a sweep never throws
            failures.append(f"log:{number} does not say which sandboxes are not given back: {error!r}")
            return []
        return [head for head in pending if unaccounted(head)][:MAX_RUNS]

    async def _guarded(
        self, head: Head, work: Coroutine[Any, Any, ReapedRun | None], budget_s: float
    ) -> ReapedRun | None:
        try:
            async with asyncio.timeout(budget_s + GRACE_S):
                return await work
        except Exception as error:  # noqa: BLE001 - one run's trouble holds up no other run
            log.warning("run %s: could not be reaped yet: %r", head.run_id, error)
            unknown = isinstance(error, OutlastError | TimeoutError)
            return _line(head, ReapOutcome.UNKNOWN if unknown else ReapOutcome.FAILED, error=repr(error))

    async def _expired(self, head: Head, at: int, budget_s: float, *, dry_run: bool) -> ReapedRun | None:
        """Expire one detached run, if it is due."""
        next_ = due(head)
        if next_ is None or next_[1] > at:
            return _line(head, ReapOutcome.PRODUCING)
        if dry_run:
            return _line(head, ReapOutcome.EXPIRED)
        outcome = await self._decide(Expire(run_id=head.run_id, supervisor_epoch=self._supervisor.epoch))
        if not isinstance(outcome, Done):
            return _line(head, ReapOutcome.NOT_CLAIMED, error=type(outcome).__name__)
        if outcome.head.cancel_reason is not CancelReason.DETACHED_EXPIRED:
            return _line(outcome.head, ReapOutcome.NOT_CLAIMED)
        log.info("run %s: nobody came back for it, and it is ended", head.run_id)
        ended = await self._end(head.run_id, budget_s)
        return _line(outcome.head, ReapOutcome.BUDGET_EXCEEDED) if ended is None else await self._told(ended)

    async def _end(self, run_id: str, budget_s: float) -> Head | None:
        """See that a run whose expiry is recorded ends, and gives back what it had; return its record, or None if its
        end took too long."""
        ended = None
        try:
            async with asyncio.timeout(budget_s):
                await self._supervisor.cancel(run_id)
                while True:
                    stored = await repeat(lambda: self._shard(run_id).record(run_id))
                    if stored is not None and stored[0].status.terminal:
                        ended = stored[0]
                        if not ended.destroy_pending:
                            return ended
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return ended

    async def _told(self, head: Head, *, dry_run: bool = False) -> ReapedRun | None:
        """Tell, once, of a run that has ended; None if that is not to be told yet, or has been."""
        if head.to_give_back:
            waits = self._clock.wall_ms() - (head.finished_at or 0) < SETTLE_MS
            return None if waits else _line(head, ReapOutcome.RECLAIM_FAILED)
        if dry_run:
            return _line(head, _ending(head))
        outcome = await self._decide(Account(run_id=head.run_id, supervisor_epoch=self._supervisor.epoch))
        return _line(outcome.head, _ending(outcome.head)) if isinstance(outcome, Done) and outcome.changed else None

    async def _decide(self, op: Expire | Account) -> Outcome:
        outcome = await repeat(lambda: self._shard(op.run_id).submit(op))
        if isinstance(outcome, SupervisorStale):
            self._supervisor.stale.set()
        return outcome


def _ending(head: Head) -> ReapOutcome:
    return ReapOutcome(became(head).value)


def _line(head: Head, outcome: ReapOutcome, error: str | None = None) -> ReapedRun:
    over = head.status.terminal
    status = head.status.value if over else None
    return ReapedRun(run_id=head.run_id, outcome=outcome, status=status, exit_code=head.exit_code, error=error)
