"""Whether the wall clock may be believed where it would have something removed for ever.

A machine's clock may be far ahead when it starts, or be set so, until somebody or NTP sets it right. So nothing is
given up for an hour

    after a jump      the wall clock went ahead of the monotonic one by more than five minutes (a machine that slept
                      looks the same, and what it holds up is an hour of removal)
    at the beginning  if the newest time in the store, before this supervisor began, is more than a day ago

What was given up before that is removed to its end all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from runtime.ports import Clock, RunQuery, ShardPort

log = logging.getLogger("outlast.supervisor")

HOLD_S = 3600.0
JUMP_MS = 5 * 60_000
FAR_MS = 86_400_000
NEWEST = 50  # runs that are looked at


class WallWatch:
    """Watches one process's clocks, from when it is made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = clock.monotonic()
        self._begun_ms = clock.wall_ms()
        self._ahead_ms = self._ahead()
        self._held_until = self._begun
        self._why = ""
        self._compared = False

    async def doubt(self, shards: Iterable[ShardPort]) -> str:
        """Return why nothing is to be given up now; empty if nothing speaks against it. Raises StoreError.

        Each shard can tell of all runs (P12), so the first one is asked, once."""
        ahead_ms = self._ahead()
        jump_ms = ahead_ms - self._ahead_ms
        if abs(jump_ms) > JUMP_MS:
            self._ahead_ms = ahead_ms
        if jump_ms > JUMP_MS:
            self._hold(self._clock.monotonic(), f"the clock has jumped {jump_ms // 1000} s ahead")
        if not self._compared:
            for shard in shards:
                newest_ms = await self._newest_ms(shard)
                if newest_ms is not None and self._begun_ms - newest_ms > FAR_MS:
                    hours = (self._begun_ms - newest_ms) // 3_600_000
                    self._hold(self._begun, f"the newest time in the store is {hours} h behind the clock")
                break
            self._compared = True
        return self._why if self._clock.monotonic() < self._held_until else ""

    def _ahead(self) -> int:
        return self._clock.wall_ms() - int(1000 * self._clock.monotonic())

    def _hold(self, since: float, why: str) -> None:
        self._held_until = since + HOLD_S
        self._why = f"no log or transcript is given up for an hour: {why}"
        log.warning("%s", self._why)

    async def _newest_ms(self, shard: ShardPort) -> int | None:
        """Return the newest time of the newest runs from before the beginning; None if there are none."""
        page = await shard.list_runs(RunQuery(owner=None, limit=NEWEST))
        times = [at for head, _ in page.runs for at in (head.created_at, head.finished_at or 0)]
        if not times:
            return None
        return max((at for at in times if at <= self._begun_ms), default=0)
