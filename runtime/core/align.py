"""Compare what a driver reads again with what the log holds, and keep only what is new (I4, P24).

A journal is always read from a known place, so its replay begins with chunks that are stored already. `BandAligner` is
for our own logs: every stored chunk knows its band, so the replay is compared with exactly the journal's chunks, and
any number of live ones between them does no harm. `OutOfBandAligner` is for logs of others, which know no bands and
where what a replay cannot produce is guessed by type (contract 6.3).

Both treat a chunk that differs as the end: nothing from it on is ever handed out, since the journal would then continue
another story than the one that clients have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from runtime.core.batch import Band, Batch
from runtime.core.chunk import Event, decode_chunk
from runtime.core.fingerprint import fingerprint, fingerprint_without_thread_id, same_chunk, thread_id
from runtime.errors import JournalReplayDivergedError, JournalReplayThreadIdMismatchError

# contract 6.3: so many chunks in a row may be passed over for one replayed chunk.
MAX_SKIP = 64

# A fingerprint in an error is for people. Chunks have no bound, messages of errors travel and are stored.
_SHOWN = 2_000


class BandAligner:
    """Drops from a replay what the log's journal band holds already. `feed` it in order, then `finish` it.

    Positions in its errors are positions in the log. After an error every call raises that error again."""

    __slots__ = ("_batch", "_batches", "_chunks", "_failure", "_next", "matched", "total")

    def __init__(self, stored: Sequence[Batch]) -> None:
        journal = [batch for batch in stored if batch.band == Band.JOURNAL and batch.count]
        self.total = sum(batch.count for batch in journal)
        self.matched = 0
        self._batches = iter(journal)
        self._batch: Batch | None = None
        self._chunks: list[bytes] = []  # of `_batch`; one batch is split at a time
        self._next = 0  # index in `_chunks`
        self._failure: JournalReplayDivergedError | None = None

    @property
    def remaining(self) -> int:
        """Return how many stored journal chunks the replay has not produced yet."""
        return self.total - self.matched

    @property
    def done(self) -> bool:
        """Return whether the replay has produced every stored journal chunk: all that follows is new."""
        return self.matched == self.total

    def feed(self, chunks: list[bytes]) -> list[bytes]:
        """Return those of the next replayed `chunks` that are not stored: always the end of the list, often all of it.

        Raises JournalReplayDivergedError or JournalReplayThreadIdMismatchError on the replay's account."""
        if self._failure is not None:
            raise self._failure
        start = 0
        while start < len(chunks):
            if self._next == len(self._chunks) and not self._load():
                return chunks[start:] if start else chunks
            count = min(len(chunks) - start, len(self._chunks) - self._next)
            replayed = chunks[start : start + count]
            stored = self._chunks[self._next : self._next + count]
            if replayed != stored:
                self._match_each(stored, replayed)
            self._next += count
            self.matched += count
            start += count
        return []

    def finish(self) -> None:
        """State that the replay has ended. Raises JournalReplayDivergedError if stored journal chunks remain."""
        if self._failure is None and not self.done:
            if self._next == len(self._chunks):
                self._load()
            rest = f"nothing: the replay ended with {self.remaining} stored chunks left"
            stored = fingerprint(decode_chunk(self._chunks[self._next]))
            self._failure = JournalReplayDivergedError(self._position(self._next), stored[:_SHOWN], rest)
        if self._failure is not None:
            raise self._failure

    def _load(self) -> bool:
        self._batch = next(self._batches, None)
        self._chunks = [] if self._batch is None else self._batch.chunks()
        self._next = 0
        return self._batch is not None

    def _match_each(self, stored: list[bytes], replayed: list[bytes]) -> None:
        for at, (old, new) in enumerate(zip(stored, replayed, strict=True)):
            if not same_chunk(old, new):
                self.matched += at
                self._next += at
                self._failure = divergence(self._position(self._next), decode_chunk(old), decode_chunk(new))
                raise self._failure

    def _position(self, index: int) -> int:
        assert self._batch is not None
        return self._batch.seq + index


def is_custom(event: Event) -> bool:
    """Return whether `event` is CUSTOM: the kind that bridges add between an agent's own chunks (contract 6.3)."""
    return event.get("type") == "CUSTOM"


class OutOfBandAligner:
    """Drops from a replay what `stored`, as it is now, holds, for logs that know no bands (contract 6.3).

    Without `is_out_of_band` every stored event has to be produced again. With it, at most `max_skip` in a row are
    passed over before each replayed event, and any number after the last. After an error, use it no more."""

    __slots__ = ("_cursor", "_max_skip", "_skippable", "_stored")

    def __init__(
        self,
        stored: Iterable[Event],
        is_out_of_band: Callable[[Event], bool] | None = None,
        max_skip: int = MAX_SKIP,
    ) -> None:
        self._stored = tuple(stored)
        self._skippable = is_out_of_band or _nothing
        self._max_skip = max_skip
        self._cursor = 0

    def feed(self, event: Event) -> bool:
        """Return whether the next replayed `event` is new. Raises JournalReplayDivergedError or
        JournalReplayThreadIdMismatchError on the replay's account: nothing from here on may be handed out."""
        stored, last = self._stored, self._cursor + self._max_skip
        actual = fingerprint(event) if self._cursor < len(stored) else ""
        while self._cursor < len(stored) and fingerprint(stored[self._cursor]) != actual:
            if self._cursor >= last or not self._skippable(stored[self._cursor]):
                raise divergence(self._cursor, stored[self._cursor], event)
            self._cursor += 1
        if self._cursor == len(stored):
            return True
        self._cursor += 1
        return False

    def finish(self) -> None:
        """State that the replay has ended. Raises JournalReplayDivergedError if it is shorter than the log."""
        stored = self._stored
        while self._cursor < len(stored) and self._skippable(stored[self._cursor]):
            self._cursor += 1
        if self._cursor < len(stored):
            rest = f"nothing: the replay ended with {len(stored) - self._cursor} stored chunks left"
            raise JournalReplayDivergedError(self._cursor, fingerprint(stored[self._cursor])[:_SHOWN], rest)


def align_out_of_band(
    stored: Sequence[Event],
    replay: Iterable[Event],
    is_out_of_band: Callable[[Event], bool] | None = None,
    max_skip: int = MAX_SKIP,
) -> Iterator[Event]:
    """Yield those events of `replay` that `stored`, as it is now, does not hold; raises as `OutOfBandAligner` does."""
    return _align(OutOfBandAligner(stored, is_out_of_band, max_skip), replay)


def _align(aligner: OutOfBandAligner, replay: Iterable[Event]) -> Iterator[Event]:
    for event in replay:
        if aligner.feed(event):
            yield event
    aligner.finish()


def _nothing(_event: Event) -> bool:
    return False


def divergence(index: int, stored: Event, replayed: Event) -> JournalReplayDivergedError:
    """Return the error for two events that differ: its subclass if their threads are all that differs."""
    old, new = _shown(fingerprint(stored), fingerprint(replayed))
    old_thread, new_thread = thread_id(stored), thread_id(replayed)
    if old_thread != new_thread and fingerprint_without_thread_id(stored) == fingerprint_without_thread_id(replayed):
        return JournalReplayThreadIdMismatchError(index, old, new, old_thread or "", new_thread or "")
    return JournalReplayDivergedError(index, old, new)


def _shown(stored: str, replayed: str) -> tuple[str, str]:
    """Return both texts if they are short, else the part of each around the place where they first differ."""
    if max(len(stored), len(replayed)) <= _SHOWN:
        return stored, replayed
    pairs = enumerate(zip(stored, replayed, strict=False))
    differs = next((at for at, (old, new) in pairs if old != new), min(len(stored), len(replayed)))
    start = max(0, differs - _SHOWN // 2)
    mark = "..." if start else ""
    return mark + stored[start : start + _SHOWN], mark + replayed[start : start + _SHOWN]
