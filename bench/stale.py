"""Whether a driver that slept through its own replacement can still write: `stale_appends`, of 40 trials.

A run streams 20 lines a second; its driver's process is stopped (SIGSTOP); its lease runs out, a successor claims and
appends; the sleeper is continued (SIGCONT) and finds its journal's backlog. A trial counts if the sleeper tried: the
shard counts every append that it refuses, and a driver is refused at most once, since it latches. Several runs share a
round. Sleepers that were gone before they could be continued, or did not try, are left out; rounds go on until there
are enough.

A trial is stale if the first claim has more chunks after the sleeper woke than before, or the client, which stays
attached, was shown a line twice, out of order or not at all.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from rows import Figure, Figures
from served import TEXT, Served, new_run
from sse_client import BenchError, Stream

TRIALS, QUICK_TRIALS = 40, 4
RUNS = 8  # in one round
MAX_ROUNDS = 12
RATE, LINES = 20, 2_000
AWAKE_S = 3.0
TAKEOVER_TIMEOUT_S = 60
SEED = 40


async def stale(served: Served, quick: bool) -> Figures:
    """Measure."""
    plan = random.Random(SEED)  # noqa: S311 - a plan that can be repeated
    wanted = QUICK_TRIALS if quick else TRIALS
    made = tried = wrote = 0
    for _ in range(MAX_ROUNDS):
        runs = min(RUNS, wanted - tried)
        round_tried, round_wrote = await _round(served, runs, plan.uniform(0.3, 1.2))
        made, tried, wrote = made + runs, tried + round_tried, wrote + round_wrote
        if tried >= wanted:
            break
    if not tried:
        raise BenchError("no sleeper tried to append")
    return {"stale_appends": Figure(wrote, tried, made - tried)}


async def _round(served: Served, runs: int, nap_s: float) -> tuple[int, int]:
    """Return how many sleepers tried to append, and how many of them changed the log."""
    ids = [new_run() for _ in range(runs)]
    streams = [await served.replay(run_id, LINES, rate=RATE) for run_id in ids]
    await asyncio.gather(*(stream.until(TEXT) for stream in streams))
    await asyncio.sleep(nap_s)
    refused = await served.metric(REFUSED)
    sleepers = [(await served.record(run_id))["claims"][0] for run_id in ids]
    for sleeper in sleepers:
        os.kill(sleeper["pid"], signal.SIGSTOP)
    try:
        before = await asyncio.gather(
            *(_taken_over(served, run_id, sleeper) for run_id, sleeper in zip(ids, sleepers, strict=True))
        )
    finally:
        for sleeper in sleepers:
            _continue(sleeper)
    await asyncio.sleep(AWAKE_S)
    tried = min(runs, int(await served.metric(REFUSED) - refused))
    wrote = 0
    for run_id, stream, chunks in zip(ids, streams, before, strict=True):
        after = (await served.record(run_id))["claims"][0]["chunks"]
        await served.end(run_id, stream)
        wrote += after != chunks or not _in_order(stream)
    return tried, wrote


REFUSED = "outlast_appends_refused_total"


async def _taken_over(served: Served, run_id: str, sleeper: dict[str, Any]) -> int:
    """Wake the sleeper once its successor has appended; return how many chunks the sleeper's claim had before."""
    for _ in range(TAKEOVER_TIMEOUT_S * 20):
        claims = (await served.record(run_id))["claims"]
        if len(claims) > 1 and claims[1]["firstAppendAt"] is not None:
            _continue(sleeper)
            return int(claims[0]["chunks"])
        await asyncio.sleep(0.05)
    raise BenchError(f"run {run_id}: its lease ran out and nobody took over within {TAKEOVER_TIMEOUT_S} s")


def _continue(sleeper: dict[str, Any]) -> None:
    """Continue that very process, if it is still there."""
    with suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{sleeper['pid']}/stat").read_text()
        if int(stat.rpartition(")")[2].split()[19]) == sleeper["pidStartedAt"]:
            os.kill(sleeper["pid"], signal.SIGCONT)


def _in_order(stream: Stream) -> bool:
    found = [event.number for event in stream.events() if event.number is not None]
    return found == list(range(len(found)))
