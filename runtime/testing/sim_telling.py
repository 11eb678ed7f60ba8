"""What must be true of every transcript of a simulated history: it is there with the ending, and tells its log (P9)."""

from __future__ import annotations

from collections.abc import Callable

from runtime.core.ops import Finish, Finished, Op, Outcome
from runtime.core.transcript import encode, of_log
from runtime.ports import Store

EVERYTHING = 1 << 40


class TranscriptCheck:
    """Sees what is stored, and calls `breach(name, text)`."""

    def __init__(self, store: Store, breach: Callable[[str, str], None]) -> None:
        self._store = store
        self._breach = breach
        self._ended: list[str] = []

    def decided(self, op: Op, outcome: Outcome) -> None:
        """See one operation and its answer."""
        if isinstance(op, Finish) and isinstance(outcome, Finished) and not outcome.repeat:
            self._ended.append(op.run_id)

    def committed(self) -> None:
        """See that every run that has just ended has the transcript of its whole log."""
        while self._ended:
            run_id = self._ended.pop()
            batches = self._store.read_batches(run_id, 0, EVERYTHING)
            expected = encode(of_log(data for batch in batches for data in batch.chunks()))
            if self._store.read_transcript(run_id) != expected:
                self._breach("P9", f"{run_id}: it has ended, and its transcript is not that of its log")
