"""Keeps run actors small and quick to start.

A Ray worker's first (de)serialisation imports pydantic and starlette if it can, for Ray's own serialisers: 96 modules,
70 ms, 6.5 MB, in every run actor, for types that never reach one. An entry of None in `sys.modules` makes that
import fail, which Ray takes for "not installed". Only in Ray's worker processes, and only where a module of ours asks
for it; the gateway's replicas, which need both, are known by `ray.serve`.
"""

from __future__ import annotations

import sys

BLOCKED = ("pydantic", "starlette", "fastapi")


def keep_light() -> None:
    """Block the imports of BLOCKED in this process if it is a Ray worker that has none of them yet."""
    if "default_worker.py" not in sys.argv[0] or "ray.serve" in sys.modules:
        return
    for name in BLOCKED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def allow_heavy() -> None:
    """Let what was blocked be imported again: a user's own functions may need it."""
    for name in BLOCKED:
        if name in sys.modules and sys.modules[name] is None:
            del sys.modules[name]
