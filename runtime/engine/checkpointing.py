"""When a driver takes a checkpoint, and of what (P25).

A mark is taken where a piece of the journal ended with complete lines and made new chunks; the append that ends with
those chunks carries it (`engine/appending.py` adds what is then open in the log). So a checkpoint never says more than
its own append has stored, and none is ever written for its own sake.

How far apart: as many chunks or bytes as a successor replays in a few milliseconds, and never so often that the states
would be much of what is written. A slow agent's run is short in what counts here, however long it takes.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from runtime.core.batch import Batch
from runtime.core.checkpoint import LOOKBACK_BYTES, MAX_STATE_BYTES, Checkpoint, lookback_digest
from runtime.ports import Resumable

log = logging.getLogger("outlast.driver")

# What is kept of the journal reaches back from its end over an unfinished line: at most the piece that it is in.
_KEPT_BYTES = LOOKBACK_BYTES + (128 << 10)
_STATE_SHARE = 4  # bytes of the journal for each byte of state that is written


@dataclass(frozen=True, slots=True)
class Pace:
    """How far apart a run's checkpoints are: whichever comes first."""

    chunks: int = 4096  # 10 ms of a replay
    journal_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Mark:
    """A checkpoint but for its place in the log and what is open there."""

    position: int
    journal_chunks: int
    journal_id: str
    lookback: bytes
    harness: str
    translator_version: int
    translator: bytes

    def at(self, batch: Batch, open_items: bytes) -> Checkpoint | None:
        """Return the checkpoint that goes with the append of `batch`; None if it would be too large."""
        made = Checkpoint(
            run_id=batch.run_id,
            epoch=batch.epoch,
            seq=batch.next_seq,
            position=self.position,
            journal_chunks=self.journal_chunks,
            journal_id=self.journal_id,
            lookback=self.lookback,
            harness=self.harness,
            translator_version=self.translator_version,
            translator=self.translator,
            open_items=open_items,
        )
        return made if made.size <= MAX_STATE_BYTES else None


class Marker:
    """Takes the marks of one follow. Tell it of every piece of the journal (`read`); then ask it (`mark`)."""

    def __init__(
        self,
        pace: Pace,
        translator: Resumable,
        journal_id: str,
        harness: str,
        translator_version: int,
        *,
        position: int = 0,
        journal_chunks: int = 0,
        before: bytes = b"",
    ) -> None:
        """`before`: the journal's bytes before `position`, as many as count."""
        self._pace = pace
        self._translator: Resumable | None = translator
        self._journal_id = journal_id
        self._harness = harness
        self._translator_version = translator_version
        self._kept = deque([before])
        self._kept_bytes = len(before)
        self._end = position
        self._chunks = journal_chunks  # at the last mark
        self._position = position
        self._least_bytes = 0

    def read(self, piece: bytes) -> None:
        """Take the next bytes of the journal."""
        self._kept.append(piece)
        self._kept_bytes += len(piece)
        self._end += len(piece)
        while self._kept_bytes - len(self._kept[0]) >= _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft())

    def mark(self, position: int, journal_chunks: int) -> Mark | None:
        """Return a mark at `position`, the end of the last complete line, if one is due. The journal up to there has
        made `journal_chunks` chunks."""
        done = position - self._position
        due = journal_chunks - self._chunks >= self._pace.chunks or done >= self._pace.journal_bytes
        if self._translator is None or not due or done < self._least_bytes:
            return None
        unfinished = self._end - position
        if self._kept_bytes - unfinished < min(position, LOOKBACK_BYTES):
            return None
        try:
            state = self._translator.state()
        except Exception:
            log.exception("a %s translator cannot be put aside: its run has no checkpoints", self._harness)
            self._translator = None
            return None
        self._chunks, self._position = journal_chunks, position
        self._least_bytes = _STATE_SHARE * len(state)
        before = b"".join(self._kept)
        return Mark(
            position=position,
            journal_chunks=journal_chunks,
            journal_id=self._journal_id,
            lookback=lookback_digest(before[: len(before) - unfinished]),
            harness=self._harness,
            translator_version=self._translator_version,
            translator=state,
        )
