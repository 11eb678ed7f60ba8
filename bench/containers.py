"""The same of agents in containers: the first chunk, each line, a takeover, and how soon a cancel has left nothing.

The engine and the image are those of OUTLAST_DOCKER_HOST and OUTLAST_DOCKER_IMAGE; where none answers, or the image is
not there, the rows are left out. The agent is a shell of the image's, one run after another.

`docker_first_chunk`: from before the connection of the POST to the agent's first text. `docker_follow`: at 20 lines a
second, from when the agent's shell looked at the clock to the arrival of the line at the one client, durable on the
way; it prints what it read at once, or has `date` read and print it, where it cannot itself. `docker_takeover`: as
`takeovers.py` has it, of runs that print 20 lines a second. `docker_cancel`: from before the POST of the cancel until
the log has ended and the engine, asked itself, has no container of the run any more; the agent is `sleep` in a child.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

from rows import Figure, Figures, quantile, spread
from served import TEXT, Served, instance, new_run
from sse_client import BenchError, Stream, fetch
from takeovers import lose_shell_driver

from runtime.sandboxes.container_engine import Engine
from runtime.sandboxes.docker_survey import examine
from runtime.settings import Settings, load

BUILD = Path("build").resolve() / "bench"
ROWS = (
    "docker_first_chunk_ms",
    "docker_takeover_p50_ms",
    "docker_cancel_ms",
    "docker_follow_p50_ms",
    "docker_follow_p99_ms",
)
TRIALS, QUICK_TRIALS = 10, 2
TICKING = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i; sleep 0.05; done"
LINES, QUICK_LINES = 360, 60
STAMPING = (
    'stamp() {{ if [ -n "$EPOCHREALTIME" ]; then echo "@@$i:$EPOCHREALTIME@@"; else date "+@@$i:%s.%6N@@"; fi; }}; '
    "i=0; while [ $i -lt {lines} ]; do stamp; i=$((i+1)); sleep 0.05; done"
)
STAMP = re.compile(rb"@@(\d+):(\d+)[.,](\d{6})@@")
GONE_S = 30.0


def missing() -> str | None:
    """Return why there is no engine to measure on."""
    settings = _settings()
    can, why = examine(settings.docker_host, settings.docker_image)
    return why if not can or "not there yet" in why else None


async def containers(quick: bool) -> Figures:
    """Measure them all on an instance of its own."""
    settings = _settings()
    trials = QUICK_TRIALS if quick else TRIALS
    engine = Engine(settings.docker_host)
    chosen = {"sandbox": "docker", "docker_host": settings.docker_host, "docker_image": settings.docker_image}
    async with instance(BUILD, **chosen) as served:
        await (await served.shell("echo hello")).end()  # the volume of our own Python is filled once
        first = [await _first_chunk(served) for _ in range(trials)]
        followed = await _follow(served, QUICK_LINES if quick else LINES)
        lost = [await _takeover(served) for _ in range(trials)]
        cancelled = [await _cancel(served, engine) for _ in range(trials)]
    medians = zip(ROWS[:3], (first, lost, cancelled), strict=True)
    figures = {name: Figure(quantile(values, 0.5), len(values)) for name, values in medians}
    return figures | spread("docker_follow", followed)


def _settings() -> Settings:
    names = ("OUTLAST_DOCKER_HOST", "OUTLAST_DOCKER_IMAGE")
    return load({name: os.environ[name] for name in names if name in os.environ})


async def _first_chunk(served: Served) -> float:
    stream = await served.shell("echo hello")
    await stream.end()
    text_ns = next(event.came_ns for event in stream.events() if TEXT in event.data)
    return (text_ns - stream.sent_ns) / 1e6


async def _follow(served: Served, lines: int) -> list[float]:
    stream = await served.shell(STAMPING.format(lines=lines))
    await stream.end()
    return line_times(stream, lines)


def line_times(stream: Stream, lines: int) -> list[float]:
    """Return the ms from the clock's reading to the arrival of each of so many lines. Raises BenchError if one is
    lost, doubled or out of order, or has no time."""
    stamps = [(event.came_ns, found) for event in stream.events() if (found := STAMP.search(event.data))]
    if [int(found[1]) for _, found in stamps] != list(range(lines)):
        raise BenchError(f"{len(stamps)} of {lines} lines came: {stream.body[-300:]!r}")
    return [(came_ns - int(found[2]) * 10**9 - int(found[3]) * 1000) / 1e6 for came_ns, found in stamps]


async def _takeover(served: Served) -> float:
    run_id = new_run()
    stream = await served.post(run_id, "shell", TICKING)
    await stream.until(TEXT)
    await asyncio.sleep(1.0)
    lost_ms = await lose_shell_driver(served, run_id, stream)
    await served.end(run_id, stream)
    return lost_ms


async def _cancel(served: Served, engine: Engine) -> float:
    run_id = new_run()
    stream = await served.post(run_id, "shell", "sleep 600 & echo on; wait")
    await stream.until(TEXT)
    begun_ns = time.time_ns()
    await fetch(served.url, "POST", "/api/chat/cancel", {"runId": run_id})
    await stream.end()
    deadline = time.monotonic() + GONE_S
    while await asyncio.to_thread(engine.find, f"outlast.run={run_id}"):
        if time.monotonic() > deadline:
            raise BenchError(f"the container of {run_id} is still there")
        await asyncio.sleep(0.005)
    return (time.time_ns() - begun_ns) / 1e6
