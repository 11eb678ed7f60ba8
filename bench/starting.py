"""How soon a POST is answered, and how soon the agent's first text is there.

`post_first_byte`: from before the connection is made to the first byte of the body, which is `run.accepted`, committed.
`post_first_text`: from the same moment to the first text chunk of an agent that is `echo`. Both from the same POSTs,
one after another, each over a connection of its own. Warm: the pool of idle workers has PAUSE_S to fill up between two.
The first WARM_UP after the instance's start are left out.
"""

from __future__ import annotations

import asyncio

from rows import Figure, Figures, quantile
from served import TEXT, Served
from sse_client import BenchError

TRIALS, QUICK_TRIALS = 25, 5
WARM_UP = 3
PAUSE_S = 1.0


async def starting(served: Served, quick: bool) -> Figures:
    """Measure both."""
    bytes_ms: list[float] = []
    texts_ms: list[float] = []
    for _ in range(WARM_UP + (QUICK_TRIALS if quick else TRIALS)):
        stream = await served.shell("echo hello")
        await stream.end()
        if b"run.accepted" not in stream.pieces[0][1]:
            raise BenchError(f"the first bytes are not run.accepted: {stream.pieces[0][1][:200]!r}")
        text_ns = next(event.came_ns for event in stream.events() if TEXT in event.data)
        bytes_ms.append((stream.pieces[0][0] - stream.sent_ns) / 1e6)
        texts_ms.append((text_ns - stream.sent_ns) / 1e6)
        await asyncio.sleep(PAUSE_S)
    return {
        name: Figure(quantile(values[WARM_UP:], 0.5), len(values) - WARM_UP, WARM_UP)
        for name, values in (("post_first_byte_p50_ms", bytes_ms), ("post_first_text_p50_ms", texts_ms))
    }
