"""Whether a driver that slept through its own replacement can still write: `stale_appends`, of 40 trials.

A run's agent prints 20 lines a second. Its driver's process is stopped (SIGSTOP); its lease runs out; the shard's
sweep finds that and the supervisor makes a successor, which claims and appends; a client attaches; the sleeper is
continued (SIGCONT) and finds its journal's backlog. Several runs share a round. `cut_off.py` says why these drivers
have names of their own.

A trial counts if the sleeper tried: the shard counts every append that it refuses, a driver latches at its first
refusal and so is refused once, and nothing else is refused meanwhile. Sleepers that did not try are left out; rounds go
on until there are enough.

A trial is stale if the sleeper's claim has more chunks after it woke than before, or the client was shown a line twice,
out of order or not at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rows import Figure, Figures
from served import Served, new_run
from sse_client import BenchError, Stream

TRIALS, QUICK_TRIALS = 40, 4
RUNS = 8  # in one round
MAX_ROUNDS = 10
RATE, LINES = 20, 2_000
AWAKE_S = 3.0
TIMEOUT_S = 60
SEED = 40
REFUSED = "outlast_appends_refused_total"
STARTER = Path(__file__).with_name("cut_off.py")


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
    """Return how many sleepers tried to append, and how many trials went wrong."""
    ids = [new_run() for _ in range(runs)]
    await _start(served, ids)
    sleepers = [await _claim(served, run_id, 1) for run_id in ids]
    await asyncio.sleep(nap_s)
    for sleeper in sleepers:
        os.kill(sleeper["pid"], signal.SIGSTOP)
    try:
        await asyncio.gather(*(_claim(served, run_id, 2) for run_id in ids))
        streams = [await served.attach(run_id) for run_id in ids]
        await asyncio.gather(*(stream.until(b"RUN_STARTED") for stream in streams))
        before = [(await _claim(served, run_id, 1))["chunks"] for run_id in ids]
        refused = await served.metric(REFUSED)
    finally:
        for sleeper in sleepers:
            _continue(sleeper)
    await asyncio.sleep(AWAKE_S)
    tried = min(runs, int(await served.metric(REFUSED) - refused))
    wrote = 0
    for run_id, stream, chunks in zip(ids, streams, before, strict=True):
        after = (await _claim(served, run_id, 1))["chunks"]
        await served.end(run_id, stream)
        wrote += after != chunks or not _in_order(stream)
    return tried, wrote


async def _start(served: Served, ids: list[str]) -> None:
    prompt = json.dumps({"lines": str(served.session(LINES)), "rate": RATE})
    starter = await asyncio.create_subprocess_exec(
        sys.executable,
        STARTER,
        served.data_dir,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,  # Ray's warnings
        stderr=asyncio.subprocess.PIPE,
    )
    wanted = json.dumps([[run_id, prompt] for run_id in ids]).encode()
    _, errors = await asyncio.wait_for(starter.communicate(wanted), TIMEOUT_S)
    if starter.returncode:
        raise BenchError(f"{STARTER.name} failed: {errors.decode()[-2000:]}")


async def _claim(served: Served, run_id: str, epoch: int) -> dict[str, Any]:
    """Return the run's claim of that epoch, once it has appended."""
    for _ in range(TIMEOUT_S * 10):
        claims = (await served.record(run_id))["claims"]
        if len(claims) >= epoch and claims[epoch - 1]["firstAppendAt"] is not None:
            found: dict[str, Any] = claims[epoch - 1]
            return found
        await asyncio.sleep(0.1)
    raise BenchError(f"run {run_id}: no append under epoch {epoch} within {TIMEOUT_S} s")


def _continue(sleeper: dict[str, Any]) -> None:
    """Continue that very process, if it is still there."""
    with suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{sleeper['pid']}/stat").read_text()
        if int(stat.rpartition(")")[2].split()[19]) == sleeper["pidStartedAt"]:
            os.kill(sleeper["pid"], signal.SIGCONT)


def _in_order(stream: Stream) -> bool:
    found = [event.number for event in stream.events() if event.number is not None]
    return found == list(range(len(found)))
