"""What must hold of a history in which the store loses its end (P10): nobody is given two chunks under one offset.

What else was believed of the commits that are lost is believed no more: the checker takes the store's word again.
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.core.record import Head
from runtime.ports import Store


class LossCheck:
    """Hears what readers are given, and of losses. Calls `breach(name, text)`."""

    def __init__(self, store: Store, breach: Callable[[str, str], None]) -> None:
        self.runs: set[str] = set()  # that have lost something, or may have
        self._store = store
        self._breach = breach
        self._given: dict[tuple[str, int, int], bytes] = {}
        self._generation = -1  # the newest one of which something is lost

    @property
    def happened(self) -> bool:
        """Return whether the store has lost its end at all."""
        return self._generation >= 0

    def given(self, run_id: str, generation: int, position: int, data: bytes) -> None:
        """See a chunk that a reader is given, with its offset."""
        before = self._given.setdefault((run_id, generation, position), data)
        if before != data:
            self._breach("P10", f"{run_id}: two chunks were given at {position} of generation {generation}")

    def lost(self, run_id: str) -> Head | None:
        """See that the store has lost its end; return the run's record as it is now, None if that is gone."""
        stored = self._store.read_run(run_id)
        head = None if stored is None else stored[0]
        if head is None or not head.closed:
            self.runs.add(run_id)
        return head

    def until(self, generation: int) -> None:
        """Take what is of `generation`, or before, for lost where it is told only now."""
        self._generation = max(self._generation, generation)

    def may_be_lost(self, head: Head) -> bool:
        """Return whether an answer with this record may be of a commit that is lost."""
        return head.generation <= self._generation
