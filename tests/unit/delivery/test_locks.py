"""Locks pass their kit, in memory and between processes of a host; one that cannot cross hosts says so, once
(contract 4.4)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.delivery.file_locks import FileLocks
from runtime.delivery.locks import Lease, LockStore, MemoryLocks
from runtime.errors import StoreUnavailable
from runtime.testing.lock_store_kit import LockStoreKit


class TestMemoryLocks(LockStoreKit):
    async def make(self) -> Callable[[], LockStore]:
        locks = MemoryLocks()
        return lambda: locks


class TestFileLocks(LockStoreKit):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "locks"

    async def make(self) -> Callable[[], LockStore]:
        return lambda: FileLocks(self.folder)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_locks_that_cannot_cross_hosts_warn_once_unless_told_that_there_is_nothing_to_cross(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, kind: str, quiet: bool
) -> None:
    locks = MemoryLocks(one_process=quiet) if kind == "memory" else FileLocks(tmp_path, one_host=quiet)
    for key in ("a", "b", "a"):
        async with locks.hold(key):
            pass
    assert caplog.text.count("keep only drivers of this") == (0 if quiet else 1)


async def test_a_folder_that_cannot_be_used_is_a_failure_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable):
        async with FileLocks(tmp_path / "file").hold("a"):
            pass


HOLDER = """
import asyncio, os, sys
from pathlib import Path
from runtime.delivery.file_locks import FileLocks

async def hold():
    async with FileLocks(Path(sys.argv[1]), one_host=True).hold("a"):
        if os.fork() == 0:
            sys.stdin.read()  # as long as the test goes on
        os._exit(0)

asyncio.run(hold())
"""


def test_a_child_that_outlives_its_parent_does_not_keep_the_parents_lock(tmp_path: Path) -> None:
    async def take() -> None:
        async with asyncio.timeout(30), FileLocks(tmp_path, one_host=True).hold("a"):
            pass

    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE) as holder:
        assert holder.wait(60) == 0
        asyncio.run(take())
        assert holder.stdin is not None
        holder.stdin.close()


class _Open:
    """Locks that lock nothing."""

    @asynccontextmanager
    async def hold(self, _key: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
        yield Lease()


@pytest.mark.parametrize("case", ["test_one_at_a_time_holds_a_key", "test_a_holder_does_not_enter_twice"])
def test_the_kit_notices(case: str) -> None:
    class Kit(LockStoreKit):
        async def make(self) -> Callable[[], LockStore]:
            return _Open

    with pytest.raises(AssertionError):
        getattr(Kit(), case)()
