"""Names of the actors of one instance; all of them lie in the instance's namespace, which is always given."""

from __future__ import annotations

from runtime.core.ids import shard_of

SUPERVISOR = "supervisor"
HOOKS = "hooks"


def shard_name(shard: int) -> str:
    """Return the name of a log shard's actor."""
    return f"log:{shard}"


def run_name(run_id: str) -> str:
    """Return the name of a run's actor."""
    return f"run:{run_id}"


__all__ = ["HOOKS", "SUPERVISOR", "run_name", "shard_name", "shard_of"]
