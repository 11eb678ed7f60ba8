"""How many chunks a second come out at the end when agents print as fast as they can.

From the first stamp of the agents to the arrival of the last text chunk at the last client. `one_run`: one agent,
100,000 lines; the median of the trials. `twenty_runs`: 20 agents with 20,000 lines each, held at a gate until all of
them have started (else the start of 20 actors would be measured), each followed by one client; chunks of all, the
median.

Every stream must have every line once and in order.
"""

from __future__ import annotations

import asyncio

from delivery import texts_of
from rows import Figure, Figures, quantile
from served import Served, new_run
from sse_client import Stream

TRIALS, TWENTY_TRIALS = 5, 2
LINES, LINES_EACH, RUNS = 100_000, 20_000, 20


async def one_run(served: Served, quick: bool) -> Figures:
    """Measure one run."""
    found = []
    for _ in range(1 if quick else TRIALS):
        stream = await served.replay(new_run(), LINES)
        await stream.end()
        found.append(_rate([stream]))
    return {"one_run_chunks_per_s": Figure(quantile(found, 0.5), len(found))}


async def twenty_runs(served: Served, quick: bool) -> Figures:
    """Measure 20 runs at once."""
    found = []
    for _ in range(1 if quick else TWENTY_TRIALS):
        gate = served.gate()
        starting = [served.replay(new_run(), LINES_EACH, gate=gate.path) for _ in range(RUNS)]
        streams = list(await asyncio.gather(*starting))
        await gate.reached(RUNS)
        gate.open()
        await asyncio.gather(*(stream.end() for stream in streams))
        found.append(_rate(streams))
    return {"twenty_runs_chunks_per_s": Figure(quantile(found, 0.5), len(found))}


def _rate(streams: list[Stream]) -> float:
    texts, first_ns, last_ns = 0, [], []
    for stream in streams:
        texts_of(stream)
        events = [event for event in stream.events() if event.number is not None]
        texts += len(events)
        first_ns.append(next(event.written_ns for event in events if event.written_ns is not None))
        last_ns.append(events[-1].came_ns)
    return texts / ((max(last_ns) - min(first_ns)) / 1e9)
