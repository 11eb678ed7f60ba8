"""What an owner's logs take, for the bound on it (`OUTLAST_OWNER_MAX_BYTES`): bytes of stored chunks.

A store keeps one number for each owner: the sum of `settled_bytes` over her runs. It changes where a head does, in the
same transaction, and so with an ending and when a log is given up; appends cost nothing. What her runs that go on hold
is in their heads, of which there are few.
"""

from __future__ import annotations

from collections.abc import Iterable

from runtime.core.record import Head


def kept_bytes(head: Head) -> int:
    """Return what the run's log holds; nothing, from when it is given up."""
    return 0 if head.log_gone else head.log_bytes


def settled_bytes(head: Head) -> int:
    """Return what of that is in its owner's sum: all of it, once the run has ended."""
    return kept_bytes(head) if head.status.terminal else 0


def settled_change(before: Head | None, after: Head) -> int:
    """Return by how much an owner's sum changes with a head of hers; `before` is None for a new run's."""
    return settled_bytes(after) - (0 if before is None else settled_bytes(before))


def total_bytes(heads: Iterable[Head], owner: str) -> int:
    """Return what an owner's logs hold, from the heads of all runs: for stores that have them at hand."""
    return sum(kept_bytes(head) for head in heads if head.owner == owner)
