"""How chunks are stored: in batches, one band each, one row each.

A batch is what one append brought: `data` is the chunks' canonical JSON joined by 0x0A (canonical JSON holds no raw
newline, so a split gives them back). All chunks of a batch are of one band, since a replay can reproduce the journal
band only (P24):

    journal     `ends[i]` is the byte position after the journal line that chunk i came from, `first_index` is the
                index of the batch's first chunk among the chunks of its line. A batch of the journal band always
                ends where a line is complete.
    live        everything else; `key` names its cause, so that a repeat of the cause finds it (P8)
"""

from __future__ import annotations

from array import array
from enum import StrEnum

from runtime.core.record import Struct


class Band(StrEnum):
    """Where a chunk came from."""

    JOURNAL = "journal"
    LIVE = "live"


class Batch(Struct, frozen=True, kw_only=True):
    """`count` chunks that start at position `seq` (the first chunk of a log is at 0)."""

    run_id: str
    seq: int
    count: int
    epoch: int
    band: Band
    data: bytes
    first_index: int = 0
    ends: bytes = b""  # unsigned 64-bit little-endian, one per chunk; empty for the live band
    key: str | None = None

    @property
    def next_seq(self) -> int:
        """Return the position after the batch."""
        return self.seq + self.count

    def chunks(self) -> list[bytes]:
        """Return the chunks in order."""
        return self.data.split(b"\n") if self.count else []


def pack_ends(positions: list[int]) -> bytes:
    """Encode journal positions for `Batch.ends`."""
    return array("Q", positions).tobytes()


def unpack_ends(ends: bytes) -> list[int]:
    """Decode `Batch.ends`."""
    return array("Q", ends).tolist()
