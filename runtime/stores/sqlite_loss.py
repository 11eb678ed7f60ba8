"""Find out that a store's file lacks what was acknowledged, and say so in it (P10). Inside a transaction of its own."""

from __future__ import annotations

import sqlite3

from runtime.core.generations import next_generation, raised
from runtime.stores import sqlite_schema as sql
from runtime.stores.codec import decode_head, encode
from runtime.stores.sqlite_mark import Reached


def falls_short(connection: sqlite3.Connection, epoch: int, reached: Reached | None) -> bool:
    """Return whether the store, at its shard's `epoch`, has not come as far as its mark says that it had."""
    if reached is None:
        return False
    (generation,) = connection.execute(sql.READ_GENERATION).fetchone()
    if generation != reached.generation:
        return bool(generation < reached.generation)  # a later one: the loss is known
    if epoch < reached.epoch:
        return True
    if not reached.run:
        return False
    row = connection.execute(sql.READ_VERSION, (reached.run,)).fetchone()
    return row is None or bool(row[0] < reached.version)  # no record is ever removed


def raise_generation(connection: sqlite3.Connection, now_ms: int, above: int) -> int:
    """Supersede everybody, and return the new generation."""
    (stored,) = connection.execute(sql.READ_GENERATION).fetchone()
    generation = next_generation(stored, now_ms, above)
    connection.execute(sql.RAISE_META, (generation,))
    connection.execute(sql.RAISE_SHARDS, (generation,))
    connection.execute(sql.RAISE_SUPERVISOR, (generation,))
    for ordinal, data in connection.execute(sql.LIST_OPEN).fetchall():
        head = raised(decode_head(data), generation)
        connection.execute(sql.WRITE_HEAD, (head.version, encode(head), ordinal))
    return generation
