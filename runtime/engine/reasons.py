"""Why a driver is made: what its claim then says."""

from __future__ import annotations

from runtime.core.record import CancelReason, ClaimEnd, ClaimReason, Head
from runtime.engine.fleet import Watched

# A driver that is made only to end its run: it needs neither a turn nor room (P21).
TO_END = frozenset({ClaimReason.CANCEL, ClaimReason.REAP})


def end_reason(head: Head) -> ClaimReason:
    """Return why a driver is made for a run whose cancel is recorded: a viewer's or operator's wish, or P22."""
    return ClaimReason.REAP if head.cancel_reason is CancelReason.DETACHED_EXPIRED else ClaimReason.CANCEL


def true_reason(head: Head, reason: ClaimReason) -> ClaimReason:
    """Return why a driver is made: one that handed over was not lost, however we learnt that it has gone."""
    handed_over = bool(head.claims) and head.claims[-1].end is ClaimEnd.HANDED_OVER
    lost = reason in (ClaimReason.DRIVER_LOST, ClaimReason.LEASE_EXPIRED)
    return ClaimReason.DRAIN if handed_over and lost else reason


def why_again(head: Head, watched: Watched) -> ClaimReason:
    """Return the reason of the next driver: what the lost one was made for, if that never came to claim."""
    lost = watched.handle or watched.made
    if lost is not None and any(claim.claimant.actor_id == lost.actor_id for claim in head.claims):
        return ClaimReason.DRIVER_LOST
    return watched.reason if head.driver_epoch else ClaimReason.START


def why_late(head: Head, watched: Watched | None, reason: ClaimReason) -> ClaimReason:
    """Return the reason of the next driver where a lease ran out: `reason`, but what the last one was made for, if that
    is too slow to have claimed."""
    again = ClaimReason.DRIVER_LOST if watched is None else why_again(head, watched)
    return reason if again is ClaimReason.DRIVER_LOST else again
