"""Remove what is not kept any more from the SQLite store, a piece at a time: a commit waits behind one piece.

The pages of what is removed become free, and the next logs are written to them: the file does not grow while pages are
free, and it does not shrink. Debian's SQLite overwrites freed pages (`secure_delete`), so the WAL gets about as much as
is removed; another build may note only that they are free.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from runtime.stores import sqlite_schema as sql

DROP_BATCHES = 256
DROP_BYTES = 1 << 20  # measured: 8 ms for 256 chunks and for a MiB, with its fsync, on two busy cores
_NOTED_BYTES = 160 << 10  # of a piece, what the WAL gets beside its bytes


class Dropped(NamedTuple):
    """How many positions of a log are left, and about what its piece added to the WAL."""

    left: int
    wal_bytes: int


def drop_end(connection: sqlite3.Connection, run_id: str) -> Dropped:
    """Remove the newest batches of a log that was given up, within a transaction. Raises sqlite3.Error."""
    row = connection.execute(sql.READ_GIVEN_UP, (run_id,)).fetchone()
    if row is None:
        return Dropped(0, 0)
    (ordinal,) = row
    size, first = 0, 0
    for seq, length in connection.execute(sql.LIST_NEWEST, (ordinal, DROP_BATCHES)).fetchall():
        first = seq
        size += length
        if size >= DROP_BYTES:
            break
    connection.execute(sql.DROP_FROM, (ordinal, first))
    return Dropped(first, size + _NOTED_BYTES)
