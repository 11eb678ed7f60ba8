"""When someone may try a takeover (P13). A lease protects nothing: the fence in `core/writing.py` does.

Leases live here, in one shard's memory, on its monotonic clock. Everything that makes this clock or this memory
doubtful (the shard's start, a store outage, a sweep that came late) gives every driver a fresh whole TTL, so that one
stall never becomes a storm of takeovers.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ports import Clock


@dataclass(slots=True)
class _Lease:
    epoch: int
    ttl_s: float
    renewed: float
    tick: int = -1
    ticked: float = 0.0
    reported: float = float("-inf")


class Leases:
    """The leases of one shard's runs."""

    # An expired lease is told again only after this long: its successor is being made meanwhile.
    REPORT_AGAIN_S = 2.0

    def __init__(self, clock: Clock, ttl_s: float, hang_s: float, start_ttl_s: float) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._hang_s = hang_s
        self._start_ttl_s = start_ttl_s
        self._leases: dict[str, _Lease] = {}
        self._swept = clock.monotonic()

    def grant(self, run_id: str, epoch: int) -> None:
        """Start the lease of a claim; epoch 0 is the creation's, with OUTLAST_START_TTL_S (P2)."""
        now = self._clock.monotonic()
        ttl_s = self._ttl_s if epoch else self._start_ttl_s
        self._leases[run_id] = _Lease(epoch=epoch, ttl_s=ttl_s, renewed=now, ticked=now)

    def renew(self, run_id: str, epoch: int, tick: int | None) -> None:
        """Renew, unless `tick` stood still for OUTLAST_HANG_S. None: the append itself shows life."""
        lease = self._leases.get(run_id)
        if lease is None or lease.epoch != epoch:
            return
        now = self._clock.monotonic()
        if tick is None or tick != lease.tick:
            lease.ticked = now
            lease.tick = lease.tick if tick is None else tick
        if now - lease.ticked < self._hang_s:
            lease.renewed = now

    def drop(self, run_id: str) -> None:
        """Forget a run that has ended or waits in the queue."""
        self._leases.pop(run_id, None)

    def refresh_all(self) -> None:
        """Give every driver a whole TTL from now."""
        now = self._clock.monotonic()
        for lease in self._leases.values():
            lease.renewed = now
            lease.ticked = now

    def told(self, run_id: str) -> None:
        """Count REPORT_AGAIN_S from now: what ran out was heard of only now, by a supervisor that had just come."""
        if run_id in self._leases:
            self._leases[run_id].reported = self._clock.monotonic()

    def expired(self, late_after_s: float) -> list[tuple[str, int]]:
        """Return (run, epoch) of each lease that ran out and was not told lately.

        Called by a sweep; one that comes later than `late_after_s` after the one before finds nothing and refreshes."""
        now = self._clock.monotonic()
        late = now - self._swept > late_after_s
        self._swept = now
        if late:
            self.refresh_all()
            return []
        found = []
        for run_id, lease in self._leases.items():
            if now - lease.renewed > lease.ttl_s and now - lease.reported > self.REPORT_AGAIN_S:
                lease.reported = now
                found.append((run_id, lease.epoch))
        return found
