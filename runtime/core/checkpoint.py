"""Where a successor may go on instead of at byte 0 (P25): what a driver knew when an append completed a line.

Everything in it follows from the journal up to `position` and the log up to `seq`. So it is only ever a short cut:
whoever does not trust it reads from the start and comes to the same. What may be wrong with it is for the reader to
find out; a row that does not decode is none (`decode`), never an error.

    trusted     the journal is the same (`journal_id`), reaches to `position`, and `lookback` is the digest of the
                LOOKBACK_BYTES before it; the harness and its translator's version are the same; the state is taken

One row a run, written in the transaction of its append and under its epoch (P3), gone with the finish.

Deliberately not: the keys of live chunks, which the store itself looks up (P8); and no transcript fold, since the
finish reads the log once (`engine/transcribing.py`).
"""

from __future__ import annotations

import hashlib

import msgspec

from runtime.core.batch import Band, Batch
from runtime.core.record import Struct

MAX_STATE_BYTES = 256 << 10  # of translator and open items; a larger one is not stored, and costs nobody anything
LOOKBACK_BYTES = 64 << 10
_SEAL_BYTES = 16
_FORMAT = b"1"  # of the encoded form; another one is not understood


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What a driver at `epoch` knew when the log reached `seq` and the journal's line at `position` was complete."""

    run_id: str
    epoch: int
    seq: int
    position: int
    journal_chunks: int  # that the journal up to `position` has made
    journal_id: str
    lookback: bytes
    harness: str
    translator_version: int
    translator: bytes
    open_items: bytes

    @property
    def size(self) -> int:
        """Return the bytes of both states."""
        return len(self.translator) + len(self.open_items)

    def fits(self, batch: Batch) -> bool:
        """Return whether it speaks of the place that `batch`, of the journal band, brings the log to."""
        here = (batch.run_id, batch.epoch, batch.next_seq)
        return batch.band is Band.JOURNAL and (self.run_id, self.epoch, self.seq) == here


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Checkpoint).decode


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the stored form: the format's letter, a seal over the rest, the rest."""
    data = _encode(checkpoint)
    return _FORMAT + _seal(data) + data


def decode(stored: bytes) -> Checkpoint | None:
    """Return the checkpoint, or None for bytes that are none, are damaged, or of another version's form."""
    data = stored[1 + _SEAL_BYTES :]
    if stored[:1] != _FORMAT or stored[1 : 1 + _SEAL_BYTES] != _seal(data):
        return None
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return None


def lookback_digest(before: bytes) -> bytes:
    """Return the digest of the bytes before a position: all of them, or the last LOOKBACK_BYTES."""
    return hashlib.sha256(before[-LOOKBACK_BYTES:]).digest()


def _seal(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_SEAL_BYTES]
