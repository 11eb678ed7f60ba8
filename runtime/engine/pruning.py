"""Removes what is not kept any more: logs first, transcripts later, records never.

What is due, the stores say (`core/reaping.py`); how long things are kept, the settings. A log goes in three steps, and
whoever dies between two of them has a successor that goes on from the record:

    mark      one transaction of the record (`PruneLog`): from then on nobody is served from the log, by any cache
    drop      its rows, from its end and a bounded stretch at a time (`Store.drop_log`), so that nobody waits for it
    close     one transaction more (`LogDropped`): nothing is left

A transcript goes in one transaction. Each decision rests on the supervisor's epoch, and on the clocks of both who asks
and who decides; nothing is marked while this one's clock is in doubt (`wall_watch.py`). A turn never throws, and
bounds its time: the next one goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from runtime.core.ops import Done, Op, SupervisorStale
from runtime.core.reap_ops import Forget, LogDropped, PruneLog, ReapStage
from runtime.core.record import Head, Kept, Struct
from runtime.core.retention import Retention
from runtime.engine.supervisor import Supervisor
from runtime.engine.wall_watch import WallWatch
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
        self._watch = WallWatch(clock)

    async def turn(self, failures: list[str], *, dry_run: bool = False) -> Pruned:
        """Remove what is due, within about TURN_S, and return what that was; what went wrong is added to `failures`."""
        turns = [_Turn(self._supervisor, number, shard, failures) for number, shard in self._shards.items()]
        stages = await self._stages(failures)
        await asyncio.gather(*(turn.take(stages, dry_run=dry_run) for turn in turns))
        found = sum((turn.found for turn in turns), Counter[str]())
        if not dry_run:
            self.counts.update(found)
        return Pruned(logs=found["log"], transcripts=found["transcript"])

    async def _stages(self, failures: list[str]) -> list[_Stage]:
        """Return what is to be done, in order: only to go on with what is marked, while the clock is in doubt."""
        now_ms, retention = self._clock.wall_ms(), self._retention
        stages = [_Stage(ReapStage.DROP, now_ms, 0)]
        if retention.log_ms:  # without it transcripts are kept, too
            try:
                async with asyncio.timeout(TURN_S):
                    doubt = await self._watch.doubt(self._shards.values())
            except Exception as error:  # noqa: BLE001 - a turn never throws
                doubt = f"no log or transcript is given up now: {error!r}"
            if doubt:
                failures.append(doubt)
                return stages
            stages.append(_Stage(ReapStage.PRUNE, now_ms - retention.log_ms, retention.log_ms))
        if retention.transcript_ms:
            stages.append(_Stage(ReapStage.FORGET, now_ms - retention.transcript_ms, retention.transcript_ms))
        return stages


class _Stage(NamedTuple):
    """What is done to runs that ended by `before_ms`, if that is `retention_ms` ago."""

    stage: ReapStage
    before_ms: int
    retention_ms: int


class _Turn:
    """One shard's part of a turn; `found` counts what was removed to its end."""

    def __init__(self, supervisor: Supervisor, number: int, shard: ShardPort, failures: list[str]) -> None:
        self.found: Counter[str] = Counter()
        self._supervisor = supervisor
        self._number = number
        self._shard = shard
        self._failures = failures
        self._dropping = asyncio.Lock()  # one piece at a time, so that a commit waits behind one at most

    async def take(self, stages: list[_Stage], *, dry_run: bool) -> None:
        try:
            async with asyncio.timeout(TURN_S):
                for each in stages:
                    heads = await self._shard.reapable(each.stage, each.before_ms, MAX_RUNS)
                    if dry_run:
                        self.found.update(_what(each.stage, head) for head in heads)
                    else:
                        await asyncio.gather(*(self._one(head, each) for head in heads))
        except Exception as error:  # noqa: BLE001 - a turn never throws
            self._failures.append(f"log:{self._number} removes nothing now: {error!r}")

    async def _one(self, head: Head, each: _Stage) -> None:
        deadline = asyncio.timeout(RUN_S)
        try:
            async with deadline:
                if await self._remove(head, each):
                    self.found[_what(each.stage, head)] += 1
        except Exception as error:  # noqa: BLE001 - one run's trouble holds up no other run
            if deadline.expired():
                return  # a large log: the next turn goes on
            self._failures.append(f"run {head.run_id} could not be pruned yet: {error!r}")
            log.warning("%s", self._failures[-1])

    async def _remove(self, head: Head, each: _Stage) -> bool:
        """Return whether this has removed, to its end, what was due."""
        run_id, epoch = head.run_id, self._supervisor.epoch
        if each.stage is not ReapStage.DROP:
            kind = PruneLog if each.stage is ReapStage.PRUNE else Forget
            op = kind(
                run_id=run_id, supervisor_epoch=epoch, ended_before=each.before_ms, retention_ms=each.retention_ms
            )
            marked = await self._decide(op)
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
