"""How long runs stand still when every process of the cluster but the agents is lost, per run.

Twenty runs print 10 lines a second. Every process of the instance is killed; at once `outlast serve` is started anew on
the same data directory. The clock starts with that program and stops when the last of the twenty has its first chunk
from a new driver stored, as the records say; divided by twenty. So the start of Ray and of the gateway is in it, and
the drivers' own starts, which share the cores with both.

Then every log is read from its start: each line once, in order, over the gap.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from delivery import texts_of
from rows import Figure, Figures
from served import TEXT, Served, instance, new_run
from sse_client import BenchError

BUILD = Path("build").resolve() / "bench"
RUNS, QUICK_RUNS = 20, 4
RATE = 10
LINES = 3_000
SETTLE_S = 1.0
KILL_S = 15.0
PROC = Path("/proc")
BACK_S = 120.0


async def replace_cluster(quick: bool) -> Figures:
    """Measure on an instance of its own."""
    count = QUICK_RUNS if quick else RUNS
    async with instance(BUILD, max_runs=count + 4) as served:
        runs = [new_run() for _ in range(count)]
        for run_id in runs:
            stream = await served.replay(run_id, LINES, rate=RATE)
            await stream.until(TEXT)
            stream.close()
        await asyncio.sleep(SETTLE_S)
        await _kill_everything(served)
        begun_ms = time.time_ns() / 1e6
        await served.start()
        back_ms = [await _back(served, run_id, begun_ms) for run_id in runs]
        for run_id in runs:
            stream = await served.attach(run_id)
            await served.end(run_id, stream)
            texts_of(stream, whole=False)
    return {"cluster_replace_per_run_ms": Figure((max(back_ms) - begun_ms) / count, count)}


async def _kill_everything(served: Served) -> None:
    """Kill what carries the data directory in its environment, until nothing does: agents do not."""
    deadline = time.monotonic() + KILL_S
    while left := _processes(served):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise BenchError(f"{len(left)} processes of the instance do not die")
        await asyncio.sleep(0.02)


def _processes(served: Served) -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal() and _is_of(served, entry)]


def _is_of(served: Served, entry: Path) -> bool:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return False
    return int(entry.name) != os.getpid() and b"OUTLAST_DATA_DIR=%b" % os.fsencode(
        served.data_dir
    ) in environment.split(b"\0")


async def _back(served: Served, run_id: str, since_ms: float) -> float:
    """Return when the run's first driver of the new cluster stored its first chunk."""
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        for claim in (await served.record(run_id))["claims"]:
            if claim["claimedAt"] > since_ms and claim["firstAppendAt"] is not None:
                return float(claim["firstAppendAt"])
        await asyncio.sleep(0.2)
    raise BenchError(f"run {run_id}: nobody took over within {BACK_S:.0f} s")
