"""Tells of the ends of runs, from the store, until everybody knows (`core/noticing.py`).

Each turn asks the shards whose end is due to be told, and makes one attempt for each, all at once, within bounds. An
attempt is begun in the store before anything is sent, and tells everybody who is left at the same time: whoever hangs
holds up nobody else. One who fails again and again is not asked for a while, so that those who answer do not wait for
the time that he takes. Who cannot be told in three days is given up, also where nobody can be named for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from runtime.core.noticing import fresh, too_old
from runtime.core.ops import Done, Outcome, SupervisorStale
from runtime.core.reap_ops import BeginNotice, EndNotice, ReapStage
from runtime.core.record import Head, RunSpec
from runtime.engine.authority import repeat
from runtime.engine.supervisor import Supervisor
from runtime.ports import Clock, ShardPort

log = logging.getLogger("outlast.notices")

LIST_S = 5.0  # for a shard to say what is due
ATTEMPT_S = 60.0  # for one attempt with all its store writes
MAX_RUNS = 50  # of one shard and turn
MOST_AT_ONCE = 64
PAUSE_AFTER = 5  # failures in a row of one name
PAUSE_S = 15.0
UNNAMED_S = 600.0  # that nobody could be named, before what is too old is given up without an attempt


class Announcer(Protocol):
    """Who is to be told, and the way there."""

    async def names(self) -> frozenset[str]:
        """Return everybody. Raises if that cannot be found out now."""

    async def tell(self, name: str, head: Head, spec: RunSpec) -> bool:
        """Tell one; return whether that is settled: told, or refused for good. Never longer than 20 s."""


class Nobody:
    """The announcer of an instance without hooks and webhooks: what an earlier one still owes is dropped."""

    async def names(self) -> frozenset[str]:
        """Return nobody."""
        return frozenset()

    async def tell(self, name: str, head: Head, spec: RunSpec) -> bool:
        """Never asked."""
        del name, head, spec
        return True


class Notices:
    """Tells for one supervisor, whose epoch every decision rests on."""

    def __init__(
        self,
        supervisor: Supervisor,
        shards: Mapping[int, ShardPort],
        shard_of: Callable[[str], ShardPort],
        clock: Clock,
        announcer: Announcer,
    ) -> None:
        self.counts: Counter[str] = Counter()  # told, failed, given_up; since this supervisor began
        self._supervisor = supervisor
        self._shards = shards
        self._shard = shard_of
        self._clock = clock
        self._announcer = announcer
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._failures: Counter[str] = Counter()
        self._paused: dict[str, float] = {}
        self._trouble = ""
        self._unnamed_since: float | None = None

    async def turn(self) -> None:
        """Begin an attempt for every run that is due, and that none is under way for. Waits for none of them."""
        names = await self._names()
        unnamed_s = 0.0 if self._unnamed_since is None else self._clock.monotonic() - self._unnamed_since
        now_ms = self._clock.wall_ms()
        for heads in await asyncio.gather(*(self._due(shard) for shard in self._shards.values())):
            for head in heads:
                if names is None and (unnamed_s < UNNAMED_S or not too_old(head, now_ms)):
                    continue  # its entry stays; nothing is lost
                if head.run_id not in self._busy and len(self._busy) < MOST_AT_ONCE:
                    task = asyncio.create_task(self._guarded(head, names), name=f"tell of {head.run_id}")
                    self._busy[head.run_id] = task

    async def _names(self) -> frozenset[str] | None:
        """Return everybody who is to be told; None while nobody can be named."""
        try:
            names = await self._announcer.names()
        except Exception as error:  # noqa: BLE001 - the next turn asks again
            if repr(error) != self._trouble:
                log.warning("nobody can be told of the ends of runs now: %r", error)
            self._trouble = repr(error)
            if self._unnamed_since is None:
                self._unnamed_since = self._clock.monotonic()
            return None
        self._trouble, self._unnamed_since = "", None
        return names

    async def close(self) -> None:
        """Stop; what was begun is begun again by the next supervisor."""
        for task in list(self._busy.values()):
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _due(self, shard: ShardPort) -> list[Head]:
        try:
            async with asyncio.timeout(LIST_S):
                now_ms = self._clock.wall_ms()
                found = await shard.reapable(ReapStage.TELL, now_ms, MAX_RUNS)
                unaccounted = await shard.reapable(ReapStage.ACCOUNT, now_ms, MAX_RUNS)
                return found + [head for head in unaccounted if fresh(head)]  # the first attempt waits for no sweep
        except Exception as error:  # noqa: BLE001 - the next turn asks again
            log.debug("a shard does not say whose end is to be told: %r", error)
            return []

    async def _guarded(self, head: Head, names: frozenset[str] | None) -> None:
        try:
            async with asyncio.timeout(ATTEMPT_S):
                await self._attempt(head, names)
        except Exception as error:  # noqa: BLE001 - the entry is due again
            log.warning("run %s: its end could not be told: %r", head.run_id, error)
        finally:
            del self._busy[head.run_id]

    async def _attempt(self, head: Head, names: frozenset[str] | None) -> None:
        """Tell everybody who is left; `names` is None of a run that is too old, while nobody can be named."""
        attempt = head.notice.attempts + 1 if head.notice is not None else 0
        epoch = self._supervisor.epoch
        begun = await self._decide(BeginNotice(run_id=head.run_id, supervisor_epoch=epoch, attempt=attempt))
        if not isinstance(begun, Done) or not begun.changed or begun.head.notice is None:
            return
        stored = await repeat(lambda: self._shard(head.run_id).record(head.run_id))
        if stored is None:
            return
        if names is None:
            log.warning("run %s: it is not known who is to be told of its end, and that is given up", head.run_id)
            self.counts["given_up"] += 1
            await self._decide(EndNotice(run_id=head.run_id, supervisor_epoch=epoch, attempt=attempt, over=True))
            return
        left = names - set(begun.head.notice.done)
        asked = sorted(name for name in left if self._paused.get(name, 0.0) <= self._clock.monotonic())
        settled = await asyncio.gather(*(self._tell(name, begun.head, stored[1]) for name in asked))
        done = {name for name, is_settled in zip(asked, settled, strict=True) if is_settled}
        given_up = sorted(left - done) if too_old(head, self._clock.wall_ms()) else []
        for name in given_up:
            log.warning("run %s: %s is given up: it was not told of the end in %d attempts", head.run_id, name, attempt)
        self.counts["given_up"] += len(given_up)
        over = not left - done or bool(given_up)
        end = EndNotice(
            run_id=head.run_id, supervisor_epoch=epoch, attempt=attempt, done=tuple(sorted(done)), over=over
        )
        await self._decide(end)

    async def _tell(self, name: str, head: Head, spec: RunSpec) -> bool:
        try:
            settled = await self._announcer.tell(name, head, spec)
        except Exception as error:  # noqa: BLE001 - one who cannot be told holds up no other
            log.info("run %s: %s was not told of its end: %r", head.run_id, name, error)
            settled = False
        self.counts["told" if settled else "failed"] += 1
        self._failures[name] = 0 if settled else self._failures[name] + 1
        if self._failures[name] >= PAUSE_AFTER:
            self._paused[name] = self._clock.monotonic() + PAUSE_S
        return settled

    async def _decide(self, op: BeginNotice | EndNotice) -> Outcome:
        outcome = await repeat(lambda: self._shard(op.run_id).submit(op))
        if isinstance(outcome, SupervisorStale):
            self._supervisor.stale.set()
        return outcome
