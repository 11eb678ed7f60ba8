"""Who watches: a level, not edges (P20).

Each gateway replica (or Python process) sends its whole set every second, with a number that grows; the highest
number wins, and a set that was not renewed for VIEWER_TTL_S is void. So a lost or late message corrects itself, and
nothing has to be sent when a viewer leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.ports import Clock

VIEWER_TTL_S = 5.0
# A set is bounded by the replica's own bound on streams; this one protects the shard from a broken sender.
MAX_SENDERS = 4096


@dataclass(slots=True)
class _Set:
    number: int
    at: float
    counts: dict[str, int] = field(default_factory=dict)


class Viewers:
    """The viewer sets of all senders, as one shard knows them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sets: dict[str, _Set] = {}
        self._up_since = clock.monotonic()

    @property
    def settled(self) -> bool:
        """Return whether every sender had the time to say its set: before, nobody is taken for absent."""
        return self.settled_for(0.0)

    def settled_for(self, seconds: float) -> bool:
        """Return whether the level could be believed for so long, without a break: this shard and somebody who
        counts viewers were up (P20)."""
        return self._somebody() and self._clock.monotonic() - self._up_since > VIEWER_TTL_S + seconds

    def replace(self, viewer: str, number: int, counts: Mapping[str, int]) -> bool:
        """Take a sender's whole set; return False if a newer one is known."""
        known = self._sets.get(viewer)
        if known is not None and known.number >= number:
            return False
        self._begin()
        if known is None and len(self._sets) >= MAX_SENDERS:
            return False
        self._sets[viewer] = _Set(number, self._clock.monotonic(), {run: n for run, n in counts.items() if n > 0})
        return True

    def add(self, viewer: str, number: int, run_id: str) -> None:
        """Count one viewer more, until the sender's next set."""
        self._begin()
        known = self._sets.setdefault(viewer, _Set(number - 1, self._clock.monotonic()))
        known.number = max(known.number, number)
        known.at = self._clock.monotonic()
        known.counts[run_id] = known.counts.get(run_id, 0) + 1

    def level(self, run_id: str) -> int:
        """Return how many viewers the run has, by the sets that are not void."""
        valid_from = self._clock.monotonic() - VIEWER_TTL_S
        return sum(known.counts.get(run_id, 0) for known in self._sets.values() if known.at >= valid_from)

    def total(self) -> int:
        """Return how many viewers there are."""
        self._prune()
        return sum(sum(known.counts.values()) for known in self._sets.values())

    def _begin(self) -> None:
        """Drop what is void; if nothing is left, whoever speaks now is the first after a silence."""
        self._prune()
        if not self._sets:
            self._up_since = self._clock.monotonic()

    def _somebody(self) -> bool:
        valid_from = self._clock.monotonic() - VIEWER_TTL_S
        return any(known.at >= valid_from for known in self._sets.values())

    def _prune(self) -> None:
        valid_from = self._clock.monotonic() - VIEWER_TTL_S
        for viewer in [viewer for viewer, known in self._sets.items() if known.at < valid_from]:
            del self._sets[viewer]
