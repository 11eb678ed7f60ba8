"""How many run actors a node has room for, and how many runs an instance may have.

A run actor takes RUN_MEMORY of the logical resource `memory`, which every Ray node has and which is its true bound; so
Ray never puts more on a node than it bears, and an autoscaler sees what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ray

# Ray's node functions carry no types.
_ray: Any = ray

RUN_MEMORY = 64 << 20  # about 50 MB of its own, and what it holds while it replays a long journal


def slots(node: Mapping[str, Any]) -> int:
    """Return how many run actors a node, as `ray.nodes()` tells of it, has room for."""
    return int(node.get("Resources", {}).get("memory", 0)) // RUN_MEMORY


def runs_that_fit(nodes: Iterable[Mapping[str, Any]]) -> int:
    """Return how many runs may be active, at least 1: of several nodes the largest may be lost, and every run of it
    still finds room elsewhere at once."""
    each = sorted(slots(node) for node in nodes if node["Alive"])
    return max(1, sum(each) - (each[-1] if len(each) > 1 else 0))


def runs_that_fit_now() -> int:
    """Return the same for the cluster that this process has joined. Blocks."""
    return runs_that_fit(_ray.nodes())
