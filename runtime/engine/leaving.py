"""The end of `serve`: every driver hands over, and nobody is made in its place.

A handover is what the record says, and the driver hears of it from its shard: it stores what it has, ends its claim,
and goes. Its successor, after the next `serve`, goes on from there. A driver that does not hand over in time is
killed, best effort (P5): it would keep its run's name and wait for a shard that is gone. That is no danger, only rude;
the journal has what it had not stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from runtime.core.ops import RequestHandover
from runtime.engine.authority import repeat
from runtime.engine.fleet import DriverDied, RunHandle
from runtime.engine.supervisor import Supervisor
from runtime.ports import ShardPort

log = logging.getLogger("outlast.supervisor")


async def leave(supervisor: Supervisor, shard_of: Callable[[str], ShardPort], within_s: float) -> int:
    """Make no driver any more, and have those that run hand over; return how many are still there after `within_s`.

    Those are killed then. What begins now is for the next supervisor."""
    supervisor.leaving = True
    driving = supervisor.driving
    asked = {run_id: asyncio.create_task(_hand_over(run_id, handle, shard_of)) for run_id, handle in driving.items()}
    if asked:
        await asyncio.wait(asked.values(), timeout=within_s)
    stuck = [run_id for run_id, task in asked.items() if not task.done()]
    for run_id in stuck:
        asked[run_id].cancel()
        driving[run_id].kill()
    await asyncio.gather(*asked.values(), return_exceptions=True)
    if stuck:
        log.warning("%d driver(s) did not hand over and were ended: %s", len(stuck), ", ".join(stuck))
    return len(stuck)


async def _hand_over(run_id: str, driver: RunHandle, shard_of: Callable[[str], ShardPort]) -> None:
    """Ask for it, and return once the driver has gone, one way or another."""
    try:
        await repeat(lambda: shard_of(run_id).submit(RequestHandover(run_id=run_id)))
        await driver.cancel()  # it asks its shard at once, and so hears of it
        await driver.ended()
    except DriverDied:
        log.debug("run %s: its driver has gone", run_id)
