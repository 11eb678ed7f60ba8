"""How long a line takes from the agent to a client, durable on the way, at a steady rate; to one client and to 200.

`delivery_20`, `delivery_200`: from the agent's write of a line (the time is in its text) to the arrival of the event's
last byte at the one client, which had sent the POST. Every line of every pass counts.

`viewers200`: the same with 200 clients that have attached before the first line (a gate holds the agent), at 20 lines a
second. Every pair of client and line counts. The bench itself receives for all of them, on the same cores.

Every stream must have every line once and in order, or there is no figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rows import Figure, Figures, quantile, spread
from served import Measure, Served, new_run
from sse_client import BenchError, Stream

PASSES = 2
SECONDS = {20: 18, 200: 8}
QUICK_SECONDS = 3
VIEWERS, VIEWER_RATE, VIEWER_SECONDS = 200, 20, 12


def texts_of(stream: Stream, whole: bool = True) -> list[float]:
    """Return the ms from write to arrival of each stamped text. Raises BenchError if one is lost or doubled.

    `whole`: the stream was followed to its end, so that it must have reached the agent's last line."""
    events = [event for event in stream.events() if event.number is not None]
    if [event.number for event in events] != list(range(len(events))):
        raise BenchError(f"lines are lost, doubled or out of order: {len(events)} came")
    if whole and b"RUN_FINISHED" not in stream.body[-2000:]:
        raise BenchError(f"the run did not complete: {stream.body[-300:]!r}")
    return [(event.came_ns - event.written_ns) / 1e6 for event in events if event.written_ns is not None]


def deliver(rate: int) -> Measure:
    """Return the measurement at `rate` lines a second."""

    async def measure(served: Served, quick: bool) -> Figures:
        found: list[float] = []
        for _ in range(1 if quick else PASSES):
            lines = rate * (QUICK_SECONDS if quick else SECONDS[rate])
            stream = await served.replay(new_run(), lines, rate=rate)
            await stream.end()
            found += texts_of(stream)
        return spread(f"delivery_{rate}", found)

    return measure


async def viewers(served: Served, quick: bool) -> Figures:
    """Measure 200 viewers of one run."""
    run_id, gate = new_run(), served.gate()
    lines = VIEWER_RATE * (QUICK_SECONDS if quick else VIEWER_SECONDS)
    first = await served.replay(run_id, lines, rate=VIEWER_RATE, gate=gate.path)
    await first.until(b"run.accepted")
    watching = [first, *[await served.attach(run_id) for _ in range(VIEWERS - 1)]]
    await _all_have(watching, b"run.accepted")
    await gate.reached(1)
    gate.open()
    await asyncio.gather(*(stream.end() for stream in watching))
    found = [texts_of(stream) for stream in watching]
    if {len(texts) for texts in found} != {len(found[0])}:
        raise BenchError("viewers of one run were shown different numbers of lines")
    every = [ms for texts in found for ms in texts]
    return {"viewers200_p99_ms": Figure(quantile(every, 0.99), len(every))}


async def _all_have(streams: Sequence[Stream], wanted: bytes) -> None:
    await asyncio.gather(*(stream.until(wanted) for stream in streams))
