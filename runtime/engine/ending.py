"""End a run that has no driver: claim it, close its log, give its sandbox back.

The supervisor's way out for runs that cannot be driven (attempts used up) or need not be (cancelled in the queue).
It claims like everybody (P2), so its finish is a claim in the history and is refused like any other if it is late.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.core.ops import Claimed, ClaimRun, Finished, MustAbort, Note, Outcome
from runtime.core.record import Claimant, ClaimReason, Head, Launch
from runtime.engine.authority import Authority, repeat
from runtime.engine.claimed_log import ClaimedLog
from runtime.engine.finishing import aborted, build_finish
from runtime.engine.plugins import pick
from runtime.errors import AgentError
from runtime.ports import Clock, Ending, LogPort, SandboxProvider


async def end_run(
    log: LogPort,
    providers: Mapping[str, SandboxProvider],
    claimant: Claimant,
    head: Head,
    reason: ClaimReason,
    ending: Ending,
    *,
    clock: Clock,
    lease_ttl_s: float,
) -> Finished | None:
    """Claim `head`'s run at its epoch and finish it as `ending`, or as aborted if a cancel is recorded.

    Return the answer, or None if somebody else has the run. Raises RunClaimLostError."""
    asked = clock.monotonic()
    claim = ClaimRun(run_id=head.run_id, expected_epoch=head.driver_epoch, claimant=claimant, reason=reason)
    claimed = await repeat(lambda: log.submit(claim))
    if not isinstance(claimed, Claimed):
        return None
    authority = Authority(log, claimed.head, clock, lease_ttl_s, asked)
    provider = pick(providers, claimed.spec.provider)
    key = claimed.head.sandbox_key
    outcome = await _finish(authority, claimed, ending)
    if isinstance(outcome, MustAbort):
        outcome = await _finish(authority, claimed, aborted(outcome.reason))
    if not isinstance(outcome, Finished):
        return None
    if provider is not None and key is not None:
        await _destroy(authority, provider, claimed.head)
    return outcome


async def _finish(authority: Authority, claimed: Claimed, ending: Ending) -> Outcome:
    log = ClaimedLog(authority.log, claimed)
    await log.read()
    head = claimed.head
    pending = head.sandbox_key is not None
    finish = build_finish(head, authority.epoch, head.next_seq, ending, log.open_items, destroy_pending=pending)
    return await authority.submit(finish)


async def _destroy(authority: Authority, provider: SandboxProvider, claimed: Head) -> None:
    """Destroy by key. `destroyPending` stays on the record if that fails (P19), or if a `create` of a lost driver may
    still be under way (P21): then `engine/returning.py` looks again."""
    assert claimed.sandbox_key is not None
    await authority.permit()
    try:
        await provider.destroy(claimed.sandbox_key)
    except AgentError:
        return
    if claimed.launch is Launch.KEYED:
        return
    await authority.submit(Note(run_id=authority.run_id, epoch=authority.epoch, destroy_pending=False))
