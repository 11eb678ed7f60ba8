"""Runs of the shell harness as tests start them: their bodies, ids and scripts."""

from __future__ import annotations

import time
from typing import Any


def body(run_id: str, script: str, thread_id: str | None = None, **forwarded: Any) -> dict[str, Any]:
    """Return the body of a POST that runs `script` in a thread of its own."""
    return {
        "threadId": thread_id or f"thread-{run_id}",
        "messages": [{"id": "u1", "role": "user", "content": script}],
        **({"forwardedProps": forwarded} if forwarded else {}),
    }


def numbered(count: int, per_second: float = 100.0) -> str:
    """Return a script that prints 1 to `count` at about that rate, and then ends."""
    return f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo $i; sleep {1 / per_second:.4f}; done"


def unique(name: str) -> str:
    """Return a run id that no other test uses."""
    return f"{name}-{time.monotonic_ns() % 10**10}"
