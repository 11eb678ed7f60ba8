"""Removes what is not kept any more: logs first, transcripts later, records never.

What is due, the stores say (`core/reaping.py`); how long things are kept, the settings. A log goes in three steps, and
whoever dies between two of them has a successor that goes on from the record:

    mark      one transaction of the record (`PruneLog`): from then on nobody is served from the log, by any cache
    drop      its rows, from its end and a bounded stretch at a time (`Store.drop_log`), so that nobody waits for it
    close     one transaction more (`LogDropped`): nothing is left

A transcript goes in one transaction. Each decision rests on the supervisor's epoch. A turn never throws, and bounds
its time: the next one goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from runtime.core.ops import Done, Op, SupervisorStale
from runtime.core.reap_ops import Forget, LogDropped, PruneLog, ReapStage
from runtime.core.record import Head, Kept, Struct
from runtime.core.retention import Retention
from runtime.engine.supervisor import Supervisor
from runtime.ports import Clock, ShardPort

log = logging.getLogger("outlast.supervisor")

TURN_S = 8.0  # of each shard; what is not done then, the next turn does
RUN_S = 2.0  # of one run, beside the others: none holds them up
MAX_RUNS = 50  # of each kind, shard and turn


class Pruned(Struct, frozen=True, kw_only=True):
    """What one turn removed, or would."""

    logs: int = 0
    transcripts: int = 0


class Pruner:
    """Removes for one supervisor, whose epoch every decision rests on."""

    def __init__(
        self, supervisor: Supervisor, shards: Mapping[int, ShardPort], clock: Clock, retention: Retention
    ) -> None:
        self.counts: Counter[str] = Counter()  # of what was removed since this supervisor began
        self._supervisor = supervisor
        self._shards = shards
        self._clock = clock
        self._retention = retention

    async def turn(self, failures: list[str], *, dry_run: bool = False) -> Pruned:
        """Remove what is due, within about TURN_S, and return what that was; what went wrong is added to `failures`."""
        turns = [_Turn(self._supervisor, number, shard, failures) for number, shard in self._shards.items()]
        await asyncio.gather(*(turn.take(self._clock.wall_ms(), self._retention, dry_run=dry_run) for turn in turns))
        found = sum((turn.found for turn in turns), Counter[str]())
        if not dry_run:
            self.counts.update(found)
        return Pruned(logs=found["log"], transcripts=found["transcript"])


class _Turn:
    """One shard's part of a turn; `found` counts what was removed to its end."""

    def __init__(self, supervisor: Supervisor, number: int, shard: ShardPort, failures: list[str]) -> None:
        self.found: Counter[str] = Counter()
        self._supervisor = supervisor
        self._number = number
        self._shard = shard
        self._failures = failures
        self._dropping = asyncio.Lock()  # one piece at a time, so that a commit waits behind one at most

    async def take(self, now_ms: int, retention: Retention, *, dry_run: bool) -> None:
        stages = (
            (ReapStage.DROP, now_ms),
            (ReapStage.PRUNE, retention.logs_before(now_ms)),
            (ReapStage.FORGET, retention.transcripts_before(now_ms)),
        )
        try:
            async with asyncio.timeout(TURN_S):
                for stage, before_ms in stages:
                    if before_ms is None:
                        continue
                    heads = await self._shard.reapable(stage, before_ms, MAX_RUNS)
                    if dry_run:
                        self.found.update(_what(stage, head) for head in heads)
                    else:
                        await asyncio.gather(*(self._one(head, stage, before_ms) for head in heads))
        except Exception as error:  # noqa: BLE001 - a turn never throws
            self._failures.append(f"log:{self._number} removes nothing now: {error!r}")

    async def _one(self, head: Head, stage: ReapStage, before_ms: int) -> None:
        deadline = asyncio.timeout(RUN_S)
        try:
            async with deadline:
                if await self._remove(head, stage, before_ms):
                    self.found[_what(stage, head)] += 1
        except Exception as error:  # noqa: BLE001 - one run's trouble holds up no other run
            if deadline.expired():
                return  # a large log: the next turn goes on
            self._failures.append(f"run {head.run_id} could not be pruned yet: {error!r}")
            log.warning("%s", self._failures[-1])

    async def _remove(self, head: Head, stage: ReapStage, before_ms: int) -> bool:
        """Return whether this has removed, to its end, what was due."""
        run_id, epoch = head.run_id, self._supervisor.epoch
        if stage is not ReapStage.DROP:
            kind = PruneLog if stage is ReapStage.PRUNE else Forget
            marked = await self._decide(kind(run_id=run_id, supervisor_epoch=epoch, ended_before=before_ms))
            if marked is None or marked.kept is not Kept.DROPPING:
                return marked is not None
        while await self._drop(run_id):
            pass
        return await self._decide(LogDropped(run_id=run_id, supervisor_epoch=epoch)) is not None

    async def _drop(self, run_id: str) -> int:
        async with self._dropping:
            return await self._shard.drop_log(run_id)

    async def _decide(self, op: Op) -> Head | None:
        """Return the record as `op` has changed it; None if it has not."""
        outcome = await self._shard.submit(op)
        if isinstance(outcome, SupervisorStale):
            self._supervisor.stale.set()
        return outcome.head if isinstance(outcome, Done) and outcome.changed else None


def _what(stage: ReapStage, head: Head) -> str:
    return "transcript" if stage is ReapStage.FORGET and head.log_gone else "log"
