"""How long a run stands still when its driver is killed.

From `kill -9` of the run actor's process to the arrival, at a client that stays attached all the while, of the first
chunk that the successor has appended. Which one that is, the record's claims say: what the dead driver had stored and
the client not got yet is no sign of life. The agent prints 20 lines a second, so up to 50 ms of a trial are its pause.

`takeover`: warm workers, one run after another, killed 1.5 to 3 s after its first text, by a seeded plan.
`takeover_cold`: the same on an instance without warm workers. `takeover_66k`: the log holds 66,000 chunks by then; the
median of few trials.

Up to the kill and after it, every line must come once and in order.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from typing import Any

from delivery import texts_of
from rows import Figure, Figures, quantile, spread
from served import TEXT, Served, new_run
from sse_client import BenchError, Stream

TRIALS, COLD_TRIALS, LONG_TRIALS, QUICK_TRIALS = 20, 10, 3, 3
RATE = 20
LINES = 2_000
LONG_CHUNKS = 66_000
AFTER_S = (1.5, 3.0)
SETTLE_S = 0.5  # of stream after the takeover: to see it go on without loss
SEED = 20
FILES, TOLD_S = 200, 60
WRITES_FILES = f"""
for i in $(seq {FILES}); do echo $i > file-$i; done; sleep 4
while :; do echo /tick; sleep 0.05; done
"""


async def warm(served: Served, quick: bool) -> Figures:
    """Measure with warm workers."""
    return spread("takeover", await _trials(served, QUICK_TRIALS if quick else TRIALS))


async def cold(served: Served, quick: bool) -> Figures:
    """Measure without: `served` must have none."""
    return spread("takeover_cold", await _trials(served, QUICK_TRIALS if quick else COLD_TRIALS))


async def long_log(served: Served, quick: bool) -> Figures:
    """Measure with a log of LONG_CHUNKS."""
    found = []
    for _ in range(1 if quick else LONG_TRIALS):
        run_id = new_run()
        stream = await served.replay(run_id, LONG_CHUNKS + LINES, rate=RATE, burst=LONG_CHUNKS)
        await stream.until(b"@@%d:" % (LONG_CHUNKS + RATE))  # the first that were not part of the burst
        found.append(await lose_driver(served, run_id, stream))
    return {"takeover_66k_ms": Figure(quantile(found, 0.5), len(found))}


async def files(served: Served, quick: bool) -> Figures:
    """Measure where the log has told of FILES files by then, live chunks that no replay makes. All of them are told
    once, before the kill or after it."""
    found = []
    for _ in range(1 if quick else LONG_TRIALS):
        run_id = new_run()
        stream = await served.post(run_id, "shell", WRITES_FILES, fileEvents="files")
        await stream.until(b"/tick")
        await asyncio.sleep(SETTLE_S)
        found.append(await lose_shell_driver(served, run_id, stream))
        await _all_told(stream)
        await served.end(run_id, stream)
    return {"takeover_200_files_ms": Figure(quantile(found, 0.5), len(found))}


async def _all_told(stream: Stream) -> None:
    """Return once FILES files were told of. Raises BenchError if one is told of twice, or they are not in TOLD_S."""
    made: list[bytes] = []
    for _ in range(TOLD_S):
        told = [event.data for event in stream.events() if b'"sandbox.file"' in event.data]
        made = [data for data in told if b'"create"' in data]
        if len(made) != len(set(made)):
            raise BenchError("a file is told of twice")
        if len(made) == FILES:
            return
        await asyncio.sleep(1.0)
    raise BenchError(f"{len(made)} of {FILES} files were told of within {TOLD_S} s")


async def lose_shell_driver(served: Served, run_id: str, stream: Stream) -> float:
    """Kill the driver of a shell's run that streams; return the ms to its successor's first chunk."""
    claims = (await served.record(run_id))["claims"]
    lost_ns = time.time_ns()
    os.kill(claims[-1]["pid"], signal.SIGKILL)
    first = await _first_of_successor(served, run_id, len(claims))
    await stream.until(b"_%016d\n" % first)
    return (next(event.came_ns for event in stream.events() if event.position == first) - lost_ns) / 1e6


async def _trials(served: Served, count: int) -> list[float]:
    plan = random.Random(SEED)  # noqa: S311 - a plan that can be repeated
    found = []
    for _ in range(count):
        run_id = new_run()
        stream = await served.replay(run_id, LINES, rate=RATE)
        await stream.until(TEXT)
        await asyncio.sleep(plan.uniform(*AFTER_S))
        found.append(await lose_driver(served, run_id, stream))
    return found


async def lose_driver(served: Served, run_id: str, stream: Stream, by: signal.Signals = signal.SIGKILL) -> float:
    """Kill or stop the driver of a run that streams; return the ms to its successor's first chunk."""
    claims = (await served.record(run_id))["claims"]
    lost_ns = time.time_ns()
    os.kill(claims[-1]["pid"], by)
    return await until_taken_over(served, run_id, stream, claims, lost_ns)


async def until_taken_over(
    served: Served, run_id: str, stream: Stream, claims: list[dict[str, Any]], lost_ns: int, comes_back: bool = False
) -> float:
    """Return the ms from `lost_ns` to the first chunk of whoever claims after `claims`; then end the run.

    `comes_back`: the client's replica may have gone too; it then attaches anew, and its way counts."""
    first = await _first_of_successor(served, run_id, len(claims))
    try:
        await stream.until(b"_%016d\n" % first)
    except BenchError:
        if not comes_back:
            raise
        stream = await served.attach(run_id)
        await stream.until(b"_%016d\n" % first)
    await asyncio.sleep(SETTLE_S)
    await served.end(run_id, stream)
    texts_of(stream, whole=False)
    came_ns = next(event.came_ns for event in stream.events() if event.position == first)
    return (came_ns - lost_ns) / 1e6


async def _first_of_successor(served: Served, run_id: str, dead: int) -> int:
    """Return the position after the first chunk of the first claim after `dead` ones, once it has one."""
    for _ in range(200):
        claims = (await served.record(run_id))["claims"]
        if len(claims) > dead + 1:
            reasons = [f"{claim['reason']}, {claim['chunks']} chunks" for claim in claims[dead:]]
            raise BenchError(f"{len(claims) - dead} claims after one kill: {reasons}")
        if len(claims) > dead and claims[dead]["firstAppendAt"] is not None:
            return sum(int(claim["chunks"]) for claim in claims[:dead]) + 2  # the run's creation has stored one
        await asyncio.sleep(0.1)
    raise BenchError(f"run {run_id}: nobody took over within 20 s")
