"""Remove what is not kept any more from the SQLite store, a piece at a time: the writer waits for no more than that.

The pages of what is removed become free, and the next logs are written to them: the file does not grow while pages are
free, and it does not shrink. What the WAL gets is what SQLite notes of each freed page, not the page itself.
"""

from __future__ import annotations

import sqlite3

from runtime.stores import sqlite_schema as sql

DROP_BATCHES = 256
DROP_BYTES = 2 << 20  # takes about 2 ms
DROPPED_WAL_BYTES = 256 << 10  # about what such a piece adds to the WAL


def drop_end(connection: sqlite3.Connection, run_id: str) -> int:
    """Remove the newest batches of a log that was given up, within a transaction; return how many positions are left.

    Raises sqlite3.Error."""
    row = connection.execute(sql.READ_GIVEN_UP, (run_id,)).fetchone()
    if row is None:
        return 0
    (ordinal,) = row
    size, first = 0, 0
    for seq, length in connection.execute(sql.LIST_NEWEST, (ordinal, DROP_BATCHES)).fetchall():
        first = seq
        size += length
        if size >= DROP_BYTES:
            break
    connection.execute(sql.DROP_FROM, (ordinal, first))
    return first
