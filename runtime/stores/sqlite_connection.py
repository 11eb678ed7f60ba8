"""Connections to the store's file, and what SQLite's errors mean to a caller of the store."""

from __future__ import annotations

import ctypes
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from runtime.errors import StoreError, StoreFull, StoreRefused, StoreUnavailable
from runtime.stores import sqlite_schema as sql

# The operation's own fault: a constraint, a value too big or of a wrong kind. The transaction's other rows are sound.
_OF_THE_OPERATION: Final = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_ERROR,
    }
)
_BROKEN: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_M_TRIM_THRESHOLD: Final = -1  # of glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 << 20  # some times the largest group of batches in one transaction
_LEAST_FREE_BYTES: Final = 1 << 16  # under this, a failed write is taken for a full disk


def connect(path: Path, busy_ms: int, *, create: bool = False) -> sqlite3.Connection:
    """Return a connection in autocommit mode that any OS thread may use, one at a time.

    Raises sqlite3.Error; without `create` also for a file that is not there."""
    mode = "rwc" if create else "rw"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=busy_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )
    for pragma in sql.EVERY_CONNECTION:
        connection.execute(pragma)
    return connection


def connect_reader(path: Path, busy_ms: int) -> sqlite3.Connection:
    """Return a connection that cannot write. Raises sqlite3.Error."""
    connection = connect(path, busy_ms)
    connection.execute(sql.READ_ONLY)
    return connection


def keep_freed_memory() -> None:
    """Tell the C library to keep freed memory of the size of a batch, for this process.

    SQLite copies a row twice on its way into the file. By default glibc gives such blocks back to the kernel each time
    and takes the page faults again: measured, 0.4 ms of the 0.9 ms that a batch of 4,096 chunks cost."""
    with suppress(OSError, AttributeError):  # another C library has no mallopt, and maybe not the problem
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)


def of_the_operation(error: sqlite3.Error) -> bool:
    """Return whether one statement failed on its own account, not the store."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in _OF_THE_OPERATION


def to_store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Return what the error means: full, refused (a person must act), or unavailable (it may come back)."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code & 0xFF == sqlite3.SQLITE_FULL or (code & 0xFF == sqlite3.SQLITE_IOERR and _is_full(path)):
        return StoreFull(f"No space is left for {path}. Free some; nothing of the last transaction was kept.")
    if code & 0xFF in _BROKEN:
        return StoreRefused(
            f"{path} is damaged or is no SQLite file ({name}: {error}). Restore it from a backup, or move it and its "
            "-wal and -shm files away and let `outlast serve` make a new store."
        )
    return StoreUnavailable(f"{path} does not answer ({name}: {error}).")


def _is_full(path: Path) -> bool:
    try:
        stat = os.statvfs(path.parent)
    except OSError:
        return False
    return stat.f_bavail * stat.f_frsize < _LEAST_FREE_BYTES
