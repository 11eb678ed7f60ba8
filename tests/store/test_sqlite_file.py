"""The SQLite file: made by set-up only, refused when it is not ours, and what happens to it when something fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from runtime.errors import StoreRefused, StoreUnavailable
from runtime.stores import sqlite_schema as sql
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.sample_ops import RUN, append, checkpoint, create, journal, live
from runtime.testing.store_cases.shard_driver import ShardDriver


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def _execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def _both_refuse(path: Path, match: str) -> None:
    before = path.read_bytes()
    for open_it in (lambda: SqliteStore(path), lambda: create_store(path, "deployment")):
        with pytest.raises(StoreRefused, match=match):
            open_it()
    assert path.read_bytes() == before, "a file that is not ours is left as it is"


def test_a_missing_file_is_refused_and_not_made(path: Path) -> None:
    with pytest.raises(StoreRefused, match="There is no store"):
        SqliteStore(path)
    assert list(path.parent.iterdir()) == []


def test_set_up_may_be_repeated(path: Path) -> None:
    first = create_store(path, "deployment")
    with closing(SqliteStore(path)) as store:
        ShardDriver(store).start()
    assert create_store(path, "deployment") == first
    with closing(SqliteStore(path, deployment_id="deployment")) as store:
        assert store.read_run(RUN) is not None
        assert store.meta == first


def test_set_up_goes_on_after_a_crash_in_its_middle(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreRefused, match="not set up to its end"):
        SqliteStore(path)
    _execute(path, "PRAGMA journal_mode = WAL")
    with pytest.raises(StoreRefused, match="not set up to its end"):
        SqliteStore(path)
    create_store(path, "deployment")
    SqliteStore(path).close()


def test_a_newer_schema_is_refused(path: Path) -> None:
    create_store(path, "deployment")
    _execute(path, "UPDATE meta SET schema_version = schema_version + 1")
    _both_refuse(path, "newer")


def test_another_deployment_is_refused(path: Path) -> None:
    create_store(path, "deployment")
    for open_it in (lambda: SqliteStore(path, deployment_id="other"), lambda: create_store(path, "other")):
        with pytest.raises(StoreRefused, match="belongs to deployment deployment"):
            open_it()


def test_another_shard_count_is_refused(path: Path) -> None:
    with pytest.raises(StoreRefused, match="exactly one shard"):
        create_store(path, "deployment", shards=2)
    assert not path.exists()
    create_store(path, "deployment")
    with pytest.raises(StoreRefused, match="OUTLAST_SHARDS=1"):
        SqliteStore(path, shards=3)


def test_another_application_s_database_is_refused(path: Path) -> None:
    _execute(path, "CREATE TABLE bookmarks (url TEXT)")
    _both_refuse(path, "something else")


@pytest.mark.parametrize("content", [b"hello, this is no database\n" * 200, b"\0" * 5000, b"SQLite format 3\0" * 300])
def test_a_file_that_is_no_database_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _both_refuse(path, "damaged or is no SQLite file")


def test_a_folder_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreUnavailable):
        SqliteStore(path)
    with pytest.raises((StoreUnavailable, StoreRefused)):
        create_store(path, "deployment")


def test_an_older_schema_is_migrated_by_set_up_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_store(path, "deployment")
    with closing(SqliteStore(path)) as store:
        ShardDriver(store).start()
    later = (
        sql.Migration(sql.SCHEMA_VERSION + 1, "a column", ("ALTER TABLE run ADD COLUMN note TEXT",)),
        sql.Migration(sql.SCHEMA_VERSION + 2, "its index", ("CREATE INDEX run_note ON run (note)",)),
    )
    monkeypatch.setattr(sql, "MIGRATIONS", (*sql.MIGRATIONS, *later))
    newest = sql.SCHEMA_VERSION + 2
    monkeypatch.setattr(sql, "SCHEMA_VERSION", newest)
    with pytest.raises(StoreRefused, match="Run `outlast serve`"):
        SqliteStore(path)
    assert create_store(path, "deployment").schema_version == newest
    with closing(SqliteStore(path)) as store:
        assert ShardDriver(store).head().driver_epoch == 1
        assert store.check()["schemaVersion"] == newest


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_store(path, "deployment")
    broken = sql.Migration(
        sql.SCHEMA_VERSION + 1, "half of it", ("ALTER TABLE run ADD COLUMN note TEXT", "CREATE TABLE run (x)")
    )
    with monkeypatch.context() as patch:
        patch.setattr(sql, "MIGRATIONS", (*sql.MIGRATIONS, broken))
        patch.setattr(sql, "SCHEMA_VERSION", broken.version)
        with pytest.raises(StoreUnavailable):
            create_store(path, "deployment")
    with closing(SqliteStore(path)) as store:
        ShardDriver(store).start()


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.version for migration in sql.MIGRATIONS] == list(range(1, sql.SCHEMA_VERSION + 1))


def test_damage_in_the_middle_of_the_file_is_refused(path: Path) -> None:
    create_store(path, "deployment")
    with closing(SqliteStore(path)) as store:
        ShardDriver(store).start()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(sql.PAGE_BYTES)
        file.write(b"\xa5" * (size - sql.PAGE_BYTES))
    with pytest.raises(StoreRefused, match="Restore it from a backup"):
        SqliteStore(path)


def test_a_damaged_record_keeps_only_its_own_run_from_going_on(path: Path) -> None:
    create_store(path, "deployment")
    with closing(SqliteStore(path)) as store:
        shard = ShardDriver(store)
        shard.start()
        shard.start("run-2", "thread-2")
        _execute(path, "UPDATE run SET head = x'7b22' WHERE run_id = 'run-2'")
        kinds = [
            type(outcome).__name__
            for outcome in shard.do(
                append(live(1, 1, "a")), append(live(1, 1, "a", run_id="run-2")), append(live(2, 1, "b"))
            )
        ]
        assert kinds == ["Appended", "Unstorable", "Appended"]
        with pytest.raises(StoreRefused, match="damaged"):
            store.read_run("run-2")


def test_a_file_that_is_taken_away_is_noticed(path: Path) -> None:
    create_store(path, "deployment")
    with closing(SqliteStore(path)) as store:
        store.check()
        path.rename(path.with_name("moved"))
        with pytest.raises(StoreUnavailable, match="gone"):
            store.check()
        create_store(path, "deployment")
        with pytest.raises(StoreUnavailable, match="replaced"):
            store.check()


def _commit(store: SqliteStore) -> object:
    return store.commit(0, 1, [create()], 1)


@pytest.mark.parametrize("use", [_commit, lambda store: store.read_run(RUN), lambda store: store.open_shard(0, "x")])
def test_a_closed_store_answers_nothing(path: Path, use: Callable[[SqliteStore], object]) -> None:
    create_store(path, "deployment")
    store = SqliteStore(path)
    store.open_shard(0, "test")
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        use(store)


def test_a_store_whose_file_was_removed_takes_nothing_and_goes_on_when_it_is_back(path: Path) -> None:
    """What is written to a file without a name is lost with the process (I2)."""
    create_store(path, "deployment")
    with closing(SqliteStore(path)) as store:
        shard = ShardDriver(store)
        shard.start()
        away = path.rename(path.with_name("away"))
        with pytest.raises(StoreUnavailable, match="moved, removed or replaced"):
            shard.start("run-2", "thread-2")
        away.rename(path)
        shard.start("run-2", "thread-2")
        assert store.read_run("run-2") is not None


def test_a_damaged_checkpoint_is_none(path: Path) -> None:
    create_store(path, "d")
    with closing(SqliteStore(path)) as store:
        shard = ShardDriver(store)
        shard.start()
        batch = journal(1, 1, "a")
        shard.do(append(batch, checkpoint=checkpoint(batch)))
        assert store.read_checkpoint(RUN) == checkpoint(batch)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE checkpoint SET data = CAST(substr(data, 1, length(data) - 1) || x'07' AS BLOB)")
        assert store.read_checkpoint(RUN) is None


def test_what_owners_logs_hold_is_found_out_of_an_older_store(path: Path) -> None:
    create_store(path, "deployment")
    with closing(SqliteStore(path)) as store:
        shard = ShardDriver(store)
        for number, owner in enumerate(("ann", "bob", "ann")):
            shard.start(f"run-{number}", f"thread-{number}", owner)
            shard.do(append(live(1, 1, "x" * number, run_id=f"run-{number}")))
        shard.end("run-0")
        shard.end("run-1")
    (migration,) = [each for each in sql.MIGRATIONS if each.what == "what owners' logs hold"]
    with closing(sqlite3.connect(path)) as connection:
        counted = connection.execute("SELECT * FROM owned ORDER BY owner").fetchall()
        connection.execute("DROP TABLE owned")
        for statement in migration.statements:
            connection.execute(statement)
        assert connection.execute("SELECT * FROM owned ORDER BY owner").fetchall() == counted
        assert [owner for owner, _ in counted] == ["ann", "bob"]
