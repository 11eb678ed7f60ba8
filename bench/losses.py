"""Takeovers beyond the plain one of `takeovers.py`: frozen drivers, twenty at once, long logs, and what one costs.

All count as there: from the signal to the arrival, at a client that stays attached, of the successor's first chunk.

`takeover_frozen`: the driver's process is stopped (SIGSTOP), so nobody sees an end; its lease has to run out.
`takeover_20_at_once`: the drivers of 20 runs are killed in the same moment; the last of the 20 to go on.
`takeover_stored_1k`, `_10k`, `_100k`: the log holds so many chunks by then; the median. `takeover_stored_growth`: the
longest by the shortest.

`takeover_cpu_s`: CPU seconds of a takeover, of all processes of the instance but its agents and this client: the driver
of one streaming run is killed again and again, and what the same run costs in the same time without that is taken off.
It holds the start of the next idle worker too.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from delivery import texts_of
from rows import Figure, Figures, quantile, spread
from served import TEXT, Served, new_run
from sse_client import BenchError, Stream
from takeovers import AFTER_S, LINES, RATE, lose_driver, until_taken_over

FROZEN_TRIALS, STORED_TRIALS, TWENTY_TRIALS, KILLS, QUICK_TRIALS = 20, 5, 3, 10, 2
RUNS = 20
STORED = {"1k": 1_000, "10k": 10_000, "100k": 100_000}
TURN_S = 2.0
SEED = 21


async def frozen(served: Served, quick: bool) -> Figures:
    """Measure with stopped drivers."""
    plan = random.Random(SEED)  # noqa: S311 - a plan that can be repeated
    found = []
    for _ in range(QUICK_TRIALS if quick else FROZEN_TRIALS):
        run_id, stream = await _streaming(served)
        await asyncio.sleep(plan.uniform(*AFTER_S))
        found.append(await lose_driver(served, run_id, stream, signal.SIGSTOP))
    return spread("takeover_frozen", found)


async def twenty(served: Served, quick: bool) -> Figures:
    """Measure 20 runs that lose their drivers in one moment."""
    found = []
    for _ in range(1 if quick else TWENTY_TRIALS):
        runs = [await _streaming(served) for _ in range(RUNS)]
        await asyncio.sleep(AFTER_S[1])
        claims = [(await served.record(run_id))["claims"] for run_id, _ in runs]
        lost_ns = time.time_ns()
        for of_run in claims:
            os.kill(of_run[-1]["pid"], signal.SIGKILL)
        taken = [
            until_taken_over(served, run_id, stream, of_run, lost_ns)
            for (run_id, stream), of_run in zip(runs, claims, strict=True)
        ]
        found.append(max(await asyncio.gather(*taken)))
    return {"takeover_20_at_once_ms": Figure(quantile(found, 0.5), len(found))}


async def stored(served: Served, quick: bool) -> Figures:
    """Measure with logs of all lengths, in turn, so that the machine is the same for each."""
    found: dict[str, list[float]] = {name: [] for name in STORED}
    for _ in range(1 if quick else STORED_TRIALS):
        for name, chunks in STORED.items():
            run_id = new_run()
            stream = await served.replay(run_id, chunks + LINES, rate=RATE, burst=chunks)
            await stream.until(b"@@%d:" % (chunks + 2 * RATE))  # well past the burst
            found[name].append(await lose_driver(served, run_id, stream))
    medians = {name: quantile(values, 0.5) for name, values in found.items()}
    trials = len(found["1k"])
    figures = {f"takeover_stored_{name}_ms": Figure(median, trials) for name, median in medians.items()}
    return figures | {"takeover_stored_growth": Figure(medians["100k"] / medians["1k"], trials)}


async def cost(served: Served, quick: bool) -> Figures:
    """Measure the CPU time of one takeover."""
    kills = QUICK_TRIALS if quick else KILLS
    run_id, stream = await _streaming(served)
    await asyncio.sleep(AFTER_S[1])
    quiet_s = sum([await _cpu_of_a_turn(served, None) for _ in range(kills)])
    spent_s = sum([await _cpu_of_a_turn(served, await served.driver_pid(run_id)) for _ in range(kills)])
    claims = len((await served.record(run_id))["claims"])
    await served.end(run_id, stream)
    texts_of(stream, whole=False)
    if claims != kills + 1:
        raise BenchError(f"{claims} claims after {kills} kills")
    return {"takeover_cpu_s": Figure((spent_s - quiet_s) / kills, kills)}


async def _streaming(served: Served) -> tuple[str, Stream]:
    run_id = new_run()
    stream = await served.replay(run_id, LINES, rate=RATE)
    await stream.until(TEXT)
    return run_id, stream


async def _cpu_of_a_turn(served: Served, victim: int | None) -> float:
    """Return the CPU seconds that the instance spends in TURN_S, which begin with the end of `victim`."""
    before = _cpu_seconds(served)
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
    await asyncio.sleep(TURN_S)
    after = _cpu_seconds(served)
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def _cpu_seconds(served: Served) -> dict[int, float]:
    """Return the CPU time of each living process of the instance; an agent's environment does not name it."""
    mark = f"OUTLAST_DATA_DIR={served.data_dir}".encode()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or is somebody else's
            if folder.name.isdecimal() and mark in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / ticks_per_s
    return found
