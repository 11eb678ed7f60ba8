"""An older copy of the file that was put back is found out when it is opened; nothing else is taken for one (P10)."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runtime.core.ops import Appended, Claimed, Created, Superseded
from runtime.stores import sqlite_mark
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.sample_ops import append, claim, create, live, text
from runtime.testing.store_cases.shard_driver import ShardDriver

Open = Callable[[], ShardDriver]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_store(tmp_path / "store.sqlite", "deployment")
    return tmp_path / "store.sqlite"


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    stores: list[SqliteStore] = []

    def open_one() -> ShardDriver:
        for store in stores:
            store.close()
        stores.append(SqliteStore(path))
        return ShardDriver(stores[-1])

    yield open_one
    for store in stores:
        store.close()


def _copy(path: Path) -> Path:
    """Copy the store as a backup does, while it is served."""
    copy = path.with_name("copy")
    copy.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def _put_back(shard: ShardDriver, path: Path, copy: Path) -> None:
    shard.store.close()
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    shutil.copy(copy, path)


def test_a_copy_of_before_the_last_append_is_found_out(path: Path, opened: Open) -> None:
    shard = opened()
    shard.start()
    shard.do(append(live(1, 1, "a")))
    copy = _copy(path)
    shard.do(append(live(2, 1, "lost")))
    _put_back(shard, path, copy)
    after = opened()
    head = after.head()
    assert (head.generation > 0, head.next_seq) == (True, 2)
    after.refused(append(live(2, 1, "late")), Superseded)
    epoch = after.ask(claim(head.driver_epoch, "successor"), Claimed).head.driver_epoch
    after.ask(append(live(2, epoch, "b")), Appended)
    assert after.log()[1:] == [text("a"), text("b")]
    assert after.ask(create("run-2", "thread-2"), Created).head.generation == head.generation


def test_a_copy_of_before_a_run_was_made_is_found_out(path: Path, opened: Open) -> None:
    shard = opened()
    copy = _copy(path)
    shard.start()
    _put_back(shard, path, copy)
    assert opened().ask(create(), Created).head.generation > 0


def test_a_copy_of_before_the_last_opening_is_found_out(path: Path, opened: Open) -> None:
    shard = opened()
    shard.start()
    shard.store.close()
    copy = _copy(path)
    _put_back(opened(), path, copy)
    assert opened().head().generation > 0


@pytest.mark.parametrize("closed", [False, True])
def test_what_was_only_opened_again_is_not_taken_for_a_copy(path: Path, opened: Open, closed: bool) -> None:
    shard = ShardDriver(SqliteStore(path))
    shard.start()
    shard.do(append(live(1, 1, "a")))
    shard.end()
    shard.start("run-2", "thread-2")
    if closed:
        shard.store.close()
    assert [opened().head("run-2").generation for _ in range(3)] == [0] * 3
    shard.store.close()


def test_a_loss_is_told_once(path: Path, opened: Open) -> None:
    shard = opened()
    shard.start()
    copy = _copy(path)
    shard.do(append(live(1, 1, "lost")))
    _put_back(shard, path, copy)
    generation = opened().head().generation
    assert opened().head().generation == generation > 0


def test_one_copy_that_is_put_back_twice_gives_no_offset_twice(path: Path, opened: Open) -> None:
    shard = opened()
    shard.start()
    copy = _copy(path)
    generations = []
    for _ in range(2):
        shard.do(append(live(1, shard.head().driver_epoch, "lost")))
        _put_back(shard, path, copy)
        shard = opened()
        generations.append(shard.head().generation)
        shard.do(claim(shard.head().driver_epoch, "successor"))
    assert 0 < generations[0] < generations[1]


def test_whoever_restores_says_so_and_it_is_not_told_again(path: Path, opened: Open) -> None:
    shard = opened()
    shard.start()
    copy = _copy(path)
    shard.do(append(live(1, 1, "lost")))
    _put_back(shard, path, copy)
    with closing(SqliteStore(path)) as store:
        said = store.raise_generation(7)
    assert opened().head().generation == said


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_mark_that_is_not_whole_says_nothing(path: Path, opened: Open, damage: bytes | None) -> None:
    shard = opened()
    copy = _copy(path)
    shard.start()
    _put_back(shard, path, copy)
    mark = sqlite_mark.mark_path(path)
    stored = mark.read_bytes()
    mark.write_bytes(bytes([stored[0] ^ 1, *stored[1:]]) if damage is None else damage)
    assert opened().ask(create(), Created).head.generation == 0


def test_a_copy_of_before_a_run_that_has_ended_since_is_found_out(path: Path, opened: Open) -> None:
    """What was lost last is a whole run; before that, of a run that goes on, a chunk that clients have seen."""
    shard = opened()
    shard.start("long", "thread-2")
    copy = _copy(path)
    shard.do(append(live(1, 1, "lost", run_id="long")))
    shard.start()
    shard.end()
    _put_back(shard, path, copy)
    after = opened()
    assert after.head("long").generation > 0
    after.refused(append(live(1, 1, "other", run_id="long")), Superseded)
