"""Small steps on a head that several operations share."""

from __future__ import annotations

import msgspec

from runtime.core.decision import View
from runtime.core.ops import Superseded, SupervisorStale
from runtime.core.record import CancelReason, Claim, ClaimEnd, Head


def superseded(head: Head, held: int) -> Superseded:
    """Return the refusal for an epoch `held` that is not the run's newest (I1): all up to its generation are over."""
    return Superseded(run_id=head.run_id, held_epoch=held, current_epoch=max(head.driver_epoch, head.generation))


def stale(view: View, held: int) -> SupervisorStale | None:
    """Return the refusal of a decision under the supervisor's epoch `held`; None for the newest's (P6)."""
    current = view.supervisor().epoch
    if held == current and current:  # 0: nobody decides yet
        return None
    return SupervisorStale(held_epoch=held, current_epoch=current)


# A run that is taken over more often than this keeps its first claim and the newest ones: the head is rewritten whole.
MAX_CLAIMS = 256


def with_claim(claims: tuple[Claim, ...], claim: Claim) -> tuple[Claim, ...]:
    """Return the history with one claim more, bounded by MAX_CLAIMS."""
    kept = claims if len(claims) < MAX_CLAIMS else (claims[0], *claims[2:])
    return (*kept, claim)


def end_last_claim(claims: tuple[Claim, ...], now_ms: int, end: ClaimEnd) -> tuple[Claim, ...]:
    """Return the history with its last entry ended at `now_ms`, if it was not yet."""
    if not claims or claims[-1].ended_at is not None:
        return claims
    return (*claims[:-1], msgspec.structs.replace(claims[-1], ended_at=now_ms, end=end))


def with_appended(claims: tuple[Claim, ...], chunks: int, now_ms: int) -> tuple[Claim, ...]:
    """Return the history with `chunks` more of its last entry."""
    last = claims[-1]
    if chunks:
        first = now_ms if last.first_append_at is None else last.first_append_at
        last = msgspec.structs.replace(last, first_append_at=first, last_append_at=now_ms, chunks=last.chunks + chunks)
    return (*claims[:-1], last)


def holds(head: Head, epoch: int) -> bool:
    """Epoch 0 belongs to creation alone (P2): nobody else writes under it."""
    return epoch > 0 and epoch == head.driver_epoch


def with_cancel(head: Head, reason: CancelReason) -> Head:
    """Return the head with a cancel recorded; the first reason wins, so call it once (P9)."""
    return head.with_(cancel_requested=True, cancel_reason=reason)
