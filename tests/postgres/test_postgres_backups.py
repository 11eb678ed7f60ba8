"""A backup of a store that is a server; between both kinds of stores, backups are the way to move (P10)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from backed_up import DEPLOYMENT, ENDED, GOES_ON, NEW, RUNS, fill, held, told
from postgres_server import PostgresServer
from waiting import wait_until

from actors.compose import open_store, store_path
from runtime.core.ids import shard_of
from runtime.core.ops import Appended, Created, Superseded, TooManyBytes
from runtime.errors import ShardSuperseded, StoreRefused
from runtime.settings import Settings
from runtime.stores.backup_file import StoredRun
from runtime.stores.codec import decode_head
from runtime.stores.postgres import PostgresStore
from runtime.stores.postgres_backup import read_store
from runtime.stores.postgres_connection import Address
from runtime.stores.postgres_setup import create_store
from runtime.testing.sample_ops import append, create, live
from runtime.testing.store_cases.shard_driver import ShardDriver
from serve_app import backups

Open = Callable[..., PostgresStore]


@pytest.fixture
def settings(server: PostgresServer, tmp_path: Path) -> Settings:
    """Return the settings of a data directory whose store is the server's."""
    return Settings(data_dir=str(tmp_path / "data"), store=server.url)


def test_a_served_store_is_backed_up_and_not_replaced_while_it_is_served(
    settings: Settings, one_shard: Open, tmp_path: Path
) -> None:
    store = one_shard()
    shard = fill(store)
    backups.back_up(settings, tmp_path / "file", force=False)
    before = told(store)
    shard.ask(append(live(3, 1, "lost", run_id=GOES_ON)), Appended)
    with pytest.raises(StoreRefused, match="being served"):
        backups.restore(settings, tmp_path / "file", force=True)
    assert shard.head(GOES_ON).next_seq == 4
    store.close()
    with pytest.raises(StoreRefused, match="--force"):
        backups.restore(settings, tmp_path / "file", force=False)
    generation = backups.restore(settings, tmp_path / "file", force=True)["newGeneration"]
    restored = one_shard()
    assert told(restored) == before
    with pytest.raises(ShardSuperseded):
        restored.commit(0, shard.epoch, [create("late", "thread-9")], 1)
    after = ShardDriver(restored)
    assert after.epoch > generation
    after.refused(append(live(3, 1, "late", run_id=GOES_ON)), Superseded)
    assert {run: after.head(run).generation for run in (ENDED, GOES_ON, NEW)} == {
        ENDED: 0,
        GOES_ON: generation,
        NEW: generation,
    }
    after.refused(create("more", "thread-9", owner_max_bytes=held(restored)), TooManyBytes)
    after.ask(create("more", "thread-9", owner_max_bytes=held(restored) + 1), Created)
    assert told(restored)["order"] == ["more", *before["order"]]


def test_a_backup_that_was_begun_before_a_restore_is_whole(
    server: PostgresServer, settings: Settings, one_shard: Open, tmp_path: Path
) -> None:
    with closing(one_shard()) as store:
        fill(store)
    file = tmp_path / "file"
    backups.back_up(settings, file, force=False)
    restore = threading.Thread(target=backups.restore, args=(settings, file), kwargs={"force": True})
    _header, rows = read_store(Address(server.url), 1, DEPLOYMENT, 0, "0")
    with closing(rows):  # type: ignore[type-var]  # a generator
        restore.start()
        wait_until(
            lambda: server.waiting_for_locks() or not restore.is_alive(), "the restore has come to the tables", 60
        )
        found = [decode_head(row.head).run_id for row in rows if isinstance(row, StoredRun)]
    restore.join(60)
    assert found == list(RUNS)
    with closing(one_shard()) as restored:
        assert restored.read_run(ENDED) is not None


def test_a_damaged_backup_leaves_the_server_as_it_is(settings: Settings, one_shard: Open, tmp_path: Path) -> None:
    with closing(one_shard()) as store:
        shard = fill(store)
        backups.back_up(settings, tmp_path / "file", force=False)
        shard.ask(create("more", "thread-9"), Created)
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:-1])
    with pytest.raises(StoreRefused, match="damaged"):
        backups.restore(settings, tmp_path / "file", force=True)
    with closing(one_shard()) as same:
        assert same.read_run("more") is not None
        assert ShardDriver(same).head(GOES_ON).generation == 0


@pytest.mark.parametrize("shards", [1, 3])
def test_a_sqlite_store_moves_to_a_server_of_any_number_of_shards_and_back(
    server: PostgresServer, tmp_path: Path, shards: int
) -> None:
    sqlite, postgres = _both(tmp_path / "data", server, shards)
    first = Settings(data_dir=str(tmp_path / "first"), store=server.url)
    with closing(_made(first)) as store:
        fill(store)
        before = told(store)
    backups.back_up(first, tmp_path / "1", force=False)
    backups.restore(sqlite, tmp_path / "1", force=False)
    backups.back_up(sqlite, tmp_path / "2", force=False)
    assert store_path(sqlite).exists()
    server.empty()
    backups.restore(postgres, tmp_path / "2", force=False)
    with closing(open_store(postgres, DEPLOYMENT)) as moved:
        assert told(moved) == before
        unfinished = {shard: {head.run_id for head in moved.list_unfinished(shard)} for shard in range(shards)}
        assert unfinished == {
            shard: {run for run in RUNS if run != ENDED and shard_of(run, shards) == shard} for shard in range(shards)
        }


def _made(settings: Settings) -> PostgresStore:
    create_store(Address(settings.store), DEPLOYMENT, 1)
    return PostgresStore(settings.store, shards=1)


def _both(folder: Path, server: PostgresServer, shards: int) -> tuple[Settings, Settings]:
    data_dir = str(folder)
    return Settings(data_dir=data_dir), Settings(data_dir=data_dir, store=server.url, shards=shards)
