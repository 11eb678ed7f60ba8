"""The same of agents in containers: the first chunk, a takeover, and how soon a cancel has left nothing.

The engine and the image are those of OUTLAST_DOCKER_HOST and OUTLAST_DOCKER_IMAGE; where none answers, or the image is
not there, the rows are left out. The agent is a shell of the image's, one run after another.

`docker_first_chunk`: from before the connection of the POST to the agent's first text. `docker_takeover`: as
`takeovers.py` has it, of runs that print 20 lines a second. `docker_cancel`: from before the POST of the cancel until
the log has ended and the engine, asked itself, has no container of the run any more; the agent is `sleep` in a child.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from rows import Figure, Figures, quantile
from served import TEXT, Served, instance, new_run
from sse_client import BenchError, fetch
from takeovers import lose_shell_driver

from runtime.sandboxes.container_engine import Engine
from runtime.sandboxes.docker_survey import examine
from runtime.settings import Settings, load

BUILD = Path("build").resolve() / "bench"
ROWS = ("docker_first_chunk_ms", "docker_takeover_p50_ms", "docker_cancel_ms")
TRIALS, QUICK_TRIALS = 10, 2
TICKING = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i; sleep 0.05; done"
GONE_S = 30.0


def missing() -> str | None:
    """Return why there is no engine to measure on."""
    settings = _settings()
    can, why = examine(settings.docker_host, settings.docker_image)
    return why if not can or "not there yet" in why else None


async def containers(quick: bool) -> Figures:
    """Measure all three on an instance of its own."""
    settings = _settings()
    trials = QUICK_TRIALS if quick else TRIALS
    engine = Engine(settings.docker_host)
    chosen = {"sandbox": "docker", "docker_host": settings.docker_host, "docker_image": settings.docker_image}
    async with instance(BUILD, **chosen) as served:
        await (await served.shell("echo hello")).end()  # the volume of our own Python is filled once
        first = [await _first_chunk(served) for _ in range(trials)]
        lost = [await _takeover(served) for _ in range(trials)]
        cancelled = [await _cancel(served, engine) for _ in range(trials)]
    return {
        name: Figure(quantile(values, 0.5), len(values))
        for name, values in zip(ROWS, (first, lost, cancelled), strict=True)
    }


def _settings() -> Settings:
    names = ("OUTLAST_DOCKER_HOST", "OUTLAST_DOCKER_IMAGE")
    return load({name: os.environ[name] for name in names if name in os.environ})


async def _first_chunk(served: Served) -> float:
    stream = await served.shell("echo hello")
    await stream.end()
    text_ns = next(event.came_ns for event in stream.events() if TEXT in event.data)
    return (text_ns - stream.sent_ns) / 1e6


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
