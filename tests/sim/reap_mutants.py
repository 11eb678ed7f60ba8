"""Deliberate faults of the reaper, made like those in `mutants.py`."""

from __future__ import annotations

import msgspec
from sim.mutants import Patch

from runtime.core import reaping
from runtime.core.decision import Decision, View
from runtime.core.reap_ops import Account, Expire, ReapStage
from runtime.core.record import Head
from runtime.engine import reaping as sweeping
from runtime.engine.reaping import Reaper


def expire_before_the_time(patch: Patch) -> None:
    """A run's TTL is half of what was chosen for it (P22)."""
    stage_of = reaping.due

    def hasty(head: Head) -> tuple[ReapStage, int] | None:
        ttl_s = head.detached_ttl_s
        return stage_of(head if ttl_s is None else msgspec.structs.replace(head, detached_ttl_s=ttl_s // 2))

    patch.setattr(reaping, "due", hasty)
    patch.setattr(sweeping, "due", hasty)


def expire_what_is_excluded(patch: Patch) -> None:
    """A run without a TTL expires like every other (P22)."""
    stage_of = reaping.due

    def strict(head: Head) -> tuple[ReapStage, int] | None:
        return stage_of(msgspec.structs.replace(head, detached_ttl_s=head.detached_ttl_s or 10))

    patch.setattr(reaping, "due", strict)
    patch.setattr(sweeping, "due", strict)


def clear_who_is_detached(patch: Patch) -> None:
    """The reaper takes itself for a viewer (P22)."""
    expired = reaping.expired

    def clearing(head: Head, now_ms: int) -> Head | None:
        found = expired(head, now_ms)
        return None if found is None else msgspec.structs.replace(found, detached_since=None)

    patch.setattr(reaping, "expired", clearing)


def never_expire(patch: Patch) -> None:
    """Nobody looks for what nobody comes back for (I7)."""

    async def listed(_self: Reaper, _number: int, _at: int, _failures: list[str]) -> tuple[list[Head], list[Head]]:
        return [], []

    patch.setattr(Reaper, "_listed", listed)


def account_for_nothing(patch: Patch) -> None:
    """What ended unwatched is not told of (P22)."""
    patch.setattr(reaping, "accounted", lambda _head: None)


def reap_without_the_supervisor_epoch(patch: Patch) -> None:
    """A superseded supervisor's reaper decides (P6)."""
    reap = reaping.reap

    def lenient(view: View, op: Expire | Account, now_ms: int) -> Decision:
        return reap(view, msgspec.structs.replace(op, supervisor_epoch=view.supervisor().epoch), now_ms)

    patch.setattr(reaping, "reap", lenient)
