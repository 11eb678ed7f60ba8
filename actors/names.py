"""Names of the actors of one instance; all of them lie in the instance's namespace, which is always given."""

from __future__ import annotations

import zlib

SUPERVISOR = "supervisor"


def shard_name(shard: int) -> str:
    """Return the name of a log shard's actor."""
    return f"log:{shard}"


def run_name(run_id: str) -> str:
    """Return the name of a run's actor."""
    return f"run:{run_id}"


def shard_of(run_id: str, shards: int) -> int:
    """Return which shard serves a run: the same on every node and in every version."""
    return zlib.crc32(run_id.encode()) % shards
