"""Locks of one host: `flock` of a file for each key, for processes that know one folder.

The kernel lets go of what a process held when it ends, however it ends, so a lease of it is never lost. A child that
was forked closes what it inherits: it would keep a lock whose holder is dead.

It says once, in the log, that other hosts know nothing of it: a folder that several hosts share does not change that
for sure.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from runtime.delivery.locks import Lease
from runtime.errors import StoreUnavailable

log = logging.getLogger("outlast.delivery")

LOOK_S = 0.05
_open_files: set[int] = set()


class FileLocks:
    """A `LockStore` of this host. With `one_host` it does not warn."""

    def __init__(self, folder: Path, *, one_host: bool = False) -> None:
        self._folder = folder
        self._silent = one_host

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[Lease]:
        """Hold the lock `key`. Raises StoreUnavailable if the folder cannot be used."""
        if not self._silent:
            self._silent = True
            log.warning(
                "locks in %s keep only drivers of this host apart, not those of other hosts: use locks of your "
                "database there, or say FileLocks(..., one_host=True)",
                self._folder,
            )
        file = self._open(key)
        try:
            while not _taken(file):  # noqa: ASYNC110 - the kernel tells nobody who wants one
                await asyncio.sleep(LOOK_S)
            yield Lease()
        finally:
            _close(file)

    def _open(self, key: str) -> int:
        # Files stay: one that was unlinked could be held by two, each on a file of its own.
        name = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _open_files.add(file)
            return file
        except OSError as error:
            raise StoreUnavailable(f"The locks in {self._folder} cannot be used: {error.strerror}.") from error


def _close(file: int) -> None:
    if file in _open_files:  # in a child that was forked meanwhile, it has been closed
        _open_files.discard(file)
        os.close(file)


def _close_in_child() -> None:
    for file in _open_files:
        os.close(file)
    _open_files.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
