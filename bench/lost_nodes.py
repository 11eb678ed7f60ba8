"""How long a run stands still when the node of its driver is lost, and its agent lives on.

Three Ray nodes with networks of their own on this machine (`racked.py`), `serve` and the client on the first; drivers
are on the others. All count as in `takeovers.py`: to the arrival of the successor's first chunk at a client that stays
attached, or comes back at once if its gateway replica was on that node. Ray takes no part: it would need more than a
minute to call a silent node dead, so the lease of 3 s decides.

`takeover_node`: SIGKILL of all that Ray has on that node. Ray is started there again before the next trial.
`takeover_cut`: its cable is taken out, and put back when the run has gone on; what the old driver then tries is
refused.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from racked import Node, RackedServed, missing, rack_served
from rows import Figures, spread
from served import TEXT, new_run
from sse_client import BenchError, Stream
from takeovers import AFTER_S, LINES, RATE, until_taken_over

BUILD = Path("build").resolve() / "bench"
NODES = 3
TRIALS, QUICK_TRIALS = 10, 2
PLACED_TRIES = 10
SEED = 22

__all__ = ["lost_nodes", "missing"]


async def lost_nodes(quick: bool) -> Figures:
    """Measure on a rack of its own, from an OS thread that has entered it."""
    return await asyncio.to_thread(_from_inside, QUICK_TRIALS if quick else TRIALS)


def _from_inside(trials: int) -> Figures:
    with rack_served(BUILD, NODES) as served:
        served.rack.enter()
        return asyncio.run(_measure(served, trials))


async def _measure(served: RackedServed, trials: int) -> Figures:
    await served.start()
    try:
        killed = await _trials(served, trials, partial(_killed, served))
        cut = await _trials(served, trials, _cut)
        if await served.metric("outlast_appends_refused_total") == 0:
            raise BenchError("no driver that was cut off tried to go on: nothing was shown")
        return {**spread("takeover_node", killed), **spread("takeover_cut", cut)}
    finally:
        await served.cancel_all()
        await served.stop()


BringBack = Callable[[], None]


async def _trials(served: RackedServed, count: int, lose: Callable[[Node], Awaitable[BringBack]]) -> list[float]:
    """Return the ms of each trial; `lose` takes a node away, and returns what brings it back."""
    plan = random.Random(SEED)  # noqa: S311 - a plan that can be repeated
    found = []
    for _ in range(count):
        for node in served.rack.nodes[1:]:  # one of them is lost: the other has a warm worker then
            await asyncio.to_thread(node.wait_warm)
        run_id, stream, node = await _elsewhere(served)
        await asyncio.sleep(plan.uniform(*AFTER_S))
        claims = (await served.record(run_id))["claims"]
        lost_ns = time.time_ns()
        bring_back = await lose(node)
        found.append(await until_taken_over(served, run_id, stream, claims, lost_ns, comes_back=True))
        await asyncio.to_thread(bring_back)
    return found


async def _elsewhere(served: RackedServed) -> tuple[str, Stream, Node]:
    """Start a run whose driver is not on the node of `serve`; return it, its stream and that node."""
    for _ in range(PLACED_TRIES):
        run_id = new_run()
        stream = await served.replay(run_id, LINES, rate=RATE)
        await stream.until(TEXT)
        pid = await served.driver_pid(run_id)
        for node in served.rack.nodes[1:]:
            if node.has(pid):
                return run_id, stream, node
        await served.end(run_id, stream)
    raise BenchError(f"{PLACED_TRIES} runs in a row were placed on the node of `serve`")


async def _killed(served: RackedServed, node: Node) -> BringBack:
    await asyncio.to_thread(node.kill)
    return lambda: served.rack.start(node)


async def _cut(node: Node) -> BringBack:
    node.cut()
    return node.heal
