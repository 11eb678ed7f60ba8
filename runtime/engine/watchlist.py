"""Which unfinished runs need somebody, by their heads, leases and viewers.

The supervisor parks in `due`; the shard's sweep and commits fill it. A run that is told here and then not helped is
told again: nothing depends on one message arriving (I7).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container

from runtime.core.ops import Detach, Done, Op, Outcome
from runtime.core.reap_ops import Expire
from runtime.core.record import Head, Status
from runtime.engine.leases import Leases
from runtime.engine.viewers import Viewers
from runtime.errors import OutlastError
from runtime.ports import Clock, Due

# A recorded cancel that did not end the run within this long is the supervisor's matter, whatever the lease says (P21).
CANCEL_RECEIPT_S = 1.0
CANCEL_AGAIN_S = 2.0


class Watchlist:
    """The unfinished runs of one shard."""

    def __init__(self, clock: Clock, leases: Leases, viewers: Viewers) -> None:
        self._clock = clock
        self._leases = leases
        self._viewers = viewers
        self._heads: dict[str, Head] = {}
        self._announced: deque[tuple[str, str]] = deque()
        self._cancels: dict[str, float] = {}  # run -> when to tell the supervisor
        self._no_disconnect_cancel: set[str] = set()
        self._detaching: dict[str, int] = {}  # run -> version of the head a Detach was sent for
        self._more = asyncio.Event()
        self._failed: OutlastError | None = None

    @property
    def unfinished(self) -> int:
        """Return how many runs are not terminal."""
        return len(self._heads)

    def adopt(self, head: Head) -> None:
        """Take a stored head: start or end watching it."""
        known = self._heads.get(head.run_id)
        if head.status.terminal:
            self._forget(head.run_id)
            return
        if known is not None and known.version >= head.version:
            return
        self._heads[head.run_id] = head
        if not head.needs_driver:
            self._leases.drop(head.run_id)
        elif known is None or not known.needs_driver or known.driver_epoch != head.driver_epoch:
            self._leases.grant(head.run_id, head.driver_epoch)
        if known is not None and known.queued and head.needs_driver:
            self.announce(head.run_id, "unqueued")
        if head.cancel_requested and head.run_id not in self._cancels:
            delay_s = CANCEL_RECEIPT_S if head.needs_driver and head.driver_epoch else 0.0
            self._cancels[head.run_id] = self._clock.monotonic() + delay_s

    def _forget(self, run_id: str) -> None:
        self._heads.pop(run_id, None)
        self._cancels.pop(run_id, None)
        self._detaching.pop(run_id, None)
        self._no_disconnect_cancel.discard(run_id)
        self._leases.drop(run_id)

    def others(self, run_ids: Container[str]) -> list[str]:
        """Return the runs watched that are not among `run_ids`."""
        return [run_id for run_id in self._heads if run_id not in run_ids]

    def fail(self, error: OutlastError) -> None:
        """Let every call of `due`, parked or later, raise `error`."""
        self._failed = error
        self._more.set()

    def announce(self, run_id: str, why: str) -> None:
        """Tell the supervisor of a run at once."""
        self._announced.append((run_id, why))
        self._more.set()

    def sweep(self, late_after_s: float) -> None:
        """Collect expired leases and cancels without a receipt."""
        for run_id, epoch in self._leases.expired(late_after_s):
            self._announced.append((run_id, "lease_expired" if epoch else "never_claimed"))
        now = self._clock.monotonic()
        for run_id, at in self._cancels.items():
            if now >= at:
                self._cancels[run_id] = now + CANCEL_AGAIN_S
                self._announced.append((run_id, "cancel"))
        if self._announced:
            self._more.set()

    async def due(self, wait_s: float) -> list[Due]:
        """Return what was collected since the last call, parking up to `wait_s`."""
        if not self._announced and self._failed is None:
            self._more.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._more.wait()
            except TimeoutError:
                return []
        if self._failed is not None:
            raise self._failed
        found: dict[str, Due] = {}
        while self._announced:
            run_id, why = self._announced.popleft()
            head = self._heads.get(run_id)
            if head is not None:
                found[run_id] = Due(head=head, why=why)
                self._leases.told(run_id)
        return list(found.values())

    # --- viewers ---

    def detach_again(self) -> None:
        """Forget which detaches were sent: one of them may not have been stored."""
        self._detaching.clear()

    def detached(self) -> list[Detach]:
        """Return a Detach for each run whose last viewer has left (P20), once per change of its record."""
        if not self._viewers.settled:
            return []
        now_ms = self._clock.wall_ms()
        found = []
        for run_id, head in self._heads.items():
            if head.detached_since is not None or self._detaching.get(run_id) == head.version:
                continue
            if self._viewers.level(run_id) == 0:
                self._detaching[run_id] = head.version
                found.append(Detach(run_id=run_id, since=now_ms))
        return found

    def unwatched(self, grace_s: float) -> list[Head]:
        """Return the running runs that were detached for `grace_s` and may have asked to be cancelled then.

        Only time in which viewers could be counted counts: a server that was down is nobody's leaving (P20)."""
        if not self._viewers.settled_for(grace_s):
            return []
        cutoff_ms = self._clock.wall_ms() - int(grace_s * 1000)
        return [
            head
            for run_id, head in self._heads.items()
            if head.status is Status.RUNNING
            and not head.cancel_requested
            and head.detached_since is not None
            and head.detached_since <= cutoff_ms
            and run_id not in self._no_disconnect_cancel
            and self._viewers.level(run_id) == 0
        ]

    def spares(self, op: Op) -> Outcome | None:
        """Return the answer to the expiry of a run that somebody watches, or might without our knowledge (P22).

        Who has just come is among the viewers at once, but clears `detachedSince` only with the next transaction."""
        head = self._heads.get(op.run_id) if isinstance(op, Expire) else None
        if head is None or (self._viewers.settled and self._viewers.level(head.run_id) == 0):
            return None
        return Done(head=head, changed=False)

    def never_cancels(self, run_id: str) -> None:
        """Remember that this run's leaving viewers mean nothing."""
        self._no_disconnect_cancel.add(run_id)
