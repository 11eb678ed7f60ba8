"""How soon the real Claude Code says something, on a stub of its model: the one that tests/agents/ has.

`claude_first_chunk`: from before the connection of the POST to the agent's first text. Nearly all of it is the start of
the agent's own program and the few requests that it makes; what the system adds is `post_first_text`. The program is
that of `tools/setup_agents.py`; where it is not there, the row is left out. The first run is left out.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import beside  # noqa: F401 - for the next
from model_scripts import tag  # of tests/: the same stub, and what an operator gives an agent
from model_server import ModelServer
from real_agents import allowed, environment
from rows import Figure, Figures, quantile
from served import TEXT, instance_with, new_run
from sse_client import BenchError

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path("build").resolve() / "bench"
PROGRAMS = ROOT / "build" / "agents" / "bin"
ROWS = ("claude_first_chunk_ms",)
TRIALS, QUICK_TRIALS = 10, 2
WARM_UP = 1
PAUSE_S = 1.0  # an idle worker for the next driver


def missing() -> str | None:
    """Return why there is no agent to measure."""
    there = (PROGRAMS / "claude").exists()
    return None if there else "no Claude Code in build/agents: tools/setup_agents.py fetches it"


async def claude(quick: bool) -> Figures:
    """Measure it on an instance of its own."""
    models = ModelServer()
    found: list[float] = []
    try:
        env = environment(models, PROGRAMS, BUILD)
        async with instance_with(env, BUILD, {"agent_env": allowed(env)}) as served:
            for _ in range(WARM_UP + (QUICK_TRIALS if quick else TRIALS)):
                run_id = new_run()
                stream = await served.post(run_id, "claude-code", tag("text", run_id))
                await stream.end()
                said = [event.came_ns for event in stream.events() if TEXT in event.data]
                if not said:
                    raise BenchError(f"the agent said nothing: {stream.body[-300:]!r}")
                found.append((said[0] - stream.sent_ns) / 1e6)
                await asyncio.sleep(PAUSE_S)
    finally:
        await asyncio.to_thread(models.close)
    return {ROWS[0]: Figure(quantile(found[WARM_UP:], 0.5), len(found) - WARM_UP, WARM_UP)}
