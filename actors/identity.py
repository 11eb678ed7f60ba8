"""Who this process is, as a claim's history will name it (P1, P5)."""

from __future__ import annotations

import uuid

import ray

from runtime.core.record import Claimant
from runtime.process import current


def this_claimant() -> Claimant:
    """Return a claimant for this actor: its random id, and its process for ever."""
    who = current()
    context = ray.get_runtime_context()
    return Claimant(
        claimant=uuid.uuid4().hex,
        actor_id=context.get_actor_id(),
        node_id=context.get_node_id(),
        boot_id=who.boot_id,
        pid=who.pid,
        pid_started_at=who.pid_started_at,
    )
