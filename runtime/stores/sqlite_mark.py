"""How far the store's file had come, beside the file: so that an older copy which was put back in its place is known
to be one (P10).

The mark names the generation, the shard's epoch, and the last record that a commit wrote. A file that has not got that
far has lost it, and since a file is lost from its end on, one that has it has lost nothing.

It is written after each commit into memory that the kernel keeps: that costs no call, outlives this process, and says
after a loss of power at most less than is so, and never more. It has no fsync. A mark that is not there, or not whole,
says nothing: who puts back a whole data directory has to say so himself (`outlast restore`).
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_FIELDS = struct.Struct("<QQQQ")
_SIZE = _FIELDS.size + 4


class Reached(NamedTuple):
    """How far a store has come: `run` (its ordinal; 0: none) was written as `version`."""

    generation: int
    epoch: int
    run: int = 0
    version: int = 0


def mark_path(path: Path) -> Path:
    """Return the place of the mark of the store at `path`."""
    return path.with_name(path.name + ".mark")


def read_mark(path: Path) -> Reached | None:
    """Return what the mark of the store at `path` says; None if it says nothing."""
    try:
        data = mark_path(path).read_bytes()
    except OSError:
        return None
    if len(data) != _SIZE or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    return Reached(*_FIELDS.unpack_from(data))


class Mark:
    """The mark of the store at `path`, for its writer. Without a place for it, it is not kept."""

    def __init__(self, path: Path) -> None:
        self._map: mmap.mmap | None = None
        with suppress(OSError, ValueError):
            fd = os.open(mark_path(path), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(fd, 0, _SIZE)  # a full disk must not show as a signal later
                os.ftruncate(fd, _SIZE)
                self._map = mmap.mmap(fd, _SIZE)
            finally:
                os.close(fd)

    def write(self, reached: Reached) -> None:
        """Say that the store has come so far."""
        if self._map is not None:
            data = _FIELDS.pack(*reached)
            self._map[:] = data + zlib.crc32(data).to_bytes(4, "little")

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if self._map is not None:
            self._map.close()
            self._map = None
