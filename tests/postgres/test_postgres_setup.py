"""The PostgreSQL store: made by set-up only, refused when it is not ours, and every refusal says what to do (P12)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from postgres_server import PostgresServer

from actors.compose import open_store
from runtime.core.ops import Appended
from runtime.errors import InputInvalid, StoreError, StoreRefused, StoreUnavailable
from runtime.settings import Settings
from runtime.stores import postgres_durability
from runtime.stores import postgres_schema as sql
from runtime.stores.postgres import PostgresStore
from runtime.stores.postgres_connection import Address
from runtime.stores.postgres_setup import create_store, find_store
from runtime.testing.sample_ops import RUN, append, create, live
from runtime.testing.store_cases.shard_driver import ShardDriver
from serve_app.commands import checks
from serve_app.store_setup import check_store_settings, prepare_store

Open = Callable[..., PostgresStore]
PASSWORD = "not-to-be-shown"


def _both_refuse(url: str, match: str, shards: int = 1) -> None:
    for open_it in (
        lambda: PostgresStore(url, shards=shards),
        lambda: create_store(Address(url), "deployment", shards),
    ):
        with pytest.raises(StoreRefused, match=match) as refusal:
            open_it()
        assert PASSWORD not in str(refusal.value)


def test_a_database_without_a_store_is_refused_and_stays_empty(server: PostgresServer) -> None:
    with pytest.raises(StoreRefused, match="There is no store"):
        PostgresStore(server.url, shards=1)
    assert find_store(Address(server.url)) is None


def test_set_up_may_be_repeated(server: PostgresServer) -> None:
    first = create_store(Address(server.url), "deployment", 1)
    with closing(PostgresStore(server.url, shards=1)) as store:
        ShardDriver(store).start()
    assert create_store(Address(server.url), "deployment", 1) == first
    with closing(PostgresStore(server.url, shards=1, deployment_id="deployment")) as store:
        assert store.read_run(RUN) is not None
        assert store.meta == first


def test_a_url_of_several_hosts_finds_the_one_that_takes_writes_and_readers_cannot_write(
    server: PostgresServer,
) -> None:
    create_store(Address(server.url), "deployment", 1)
    url = f"{server.url}?target_session_attrs=read-write"
    with closing(PostgresStore(url, shards=1, deployment_id="deployment")) as store:
        shard = ShardDriver(store)
        shard.start()
        assert store.read_run(RUN) is not None
        with pytest.raises(StoreUnavailable, match="read-only"), store.reading() as session:
            session.execute(sql.TAKE_SHARD, ("a reader", 0))
        shard.ask(append(live(1, 1, "a")), Appended)


def test_of_starters_at_once_all_find_one_store(server: PostgresServer) -> None:
    def set_up(name: str) -> str:
        return create_store(Address(server.url), name, 3, adopt=True).deployment_id

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(set_up, [f"deployment-{place}" for place in range(6)]))
    assert len(set(found)) == 1
    with server.admin() as admin:
        assert admin.execute("SELECT deployment_id, shards FROM outlast.meta").fetchall() == [(found[0], 3)]
        assert admin.execute("SELECT shard, epoch FROM outlast.shard ORDER BY 1").fetchall() == [(0, 0), (1, 0), (2, 0)]


def test_a_newer_schema_is_refused(server: PostgresServer) -> None:
    create_store(Address(server.url), "deployment", 1)
    with server.admin() as admin:
        admin.execute("UPDATE outlast.meta SET schema_version = schema_version + 1")
    _both_refuse(server.url, "newer")


def test_another_deployment_is_refused(server: PostgresServer) -> None:
    create_store(Address(server.url), "deployment", 1)
    for open_it in (
        lambda: PostgresStore(server.url, shards=1, deployment_id="other"),
        lambda: create_store(Address(server.url), "other", 1),
    ):
        with pytest.raises(StoreRefused, match="belongs to deployment deployment"):
            open_it()


def test_a_store_that_was_swapped_under_an_open_shard_is_refused_until_it_is_back(
    server: PostgresServer, one_shard: Open
) -> None:
    store = one_shard()
    shard = ShardDriver(store)
    shard.start()
    with server.moved_away():
        create_store(Address(server.url), "other", 1)
        for ask in (lambda: shard.do(append(live(1, 1, "a"))), lambda: store.read_run(RUN)):
            with pytest.raises(StoreRefused, match="belongs to deployment other, not deployment"):
                ask()
        with server.admin() as admin:
            assert admin.execute("SELECT count(*) FROM outlast.batch").fetchone() == (0,)
    shard.do(append(live(1, 1, "a")))
    assert len(shard.log()) == 2


def test_another_shard_count_is_refused(server: PostgresServer) -> None:
    create_store(Address(server.url), "deployment", 2)
    _both_refuse(server.url, "OUTLAST_SHARDS=2, not 3", shards=3)


def test_a_shard_that_the_store_does_not_have_is_refused(two_shards: Open) -> None:
    with pytest.raises(StoreRefused, match="log:2 is not a shard"):
        two_shards().open_shard(2, "test")


def test_an_older_schema_is_migrated_by_set_up_only(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    create_store(Address(server.url), "deployment", 1)
    with closing(PostgresStore(server.url, shards=1)) as store:
        ShardDriver(store).start()
    newest = sql.SCHEMA_VERSION + 2
    later = (
        sql.Migration(newest - 1, "a column", ("ALTER TABLE outlast.run ADD COLUMN note text",)),
        sql.Migration(newest, "its index", ("CREATE INDEX run_note ON outlast.run (note)",)),
    )
    monkeypatch.setattr(sql, "MIGRATIONS", (*sql.MIGRATIONS, *later))
    monkeypatch.setattr(sql, "SCHEMA_VERSION", newest)
    with pytest.raises(StoreRefused, match="Run `outlast serve`"):
        PostgresStore(server.url, shards=1)
    with ThreadPoolExecutor(3) as pool:
        metas = list(pool.map(lambda _: create_store(Address(server.url), "deployment", 1), range(3)))
    assert {meta.schema_version for meta in metas} == {newest}
    with closing(PostgresStore(server.url, shards=1)) as store:
        assert ShardDriver(store).head().driver_epoch == 1
        assert store.check()["schemaVersion"] == newest


def test_a_migration_that_fails_changes_nothing(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    create_store(Address(server.url), "deployment", 1)
    half = ("ALTER TABLE outlast.run ADD COLUMN note text", "CREATE TABLE outlast.run (x text)")
    broken = sql.Migration(sql.SCHEMA_VERSION + 1, "half of it", half)
    with monkeypatch.context() as patch:
        patch.setattr(sql, "MIGRATIONS", (*sql.MIGRATIONS, broken))
        patch.setattr(sql, "SCHEMA_VERSION", broken.version)
        with pytest.raises(StoreError):
            create_store(Address(server.url), "deployment", 1)
    with server.admin() as admin:
        column = "SELECT FROM information_schema.columns WHERE table_name = 'run' AND column_name = 'note'"
        assert admin.execute(column).fetchone() is None
    with closing(PostgresStore(server.url, shards=1)) as store:
        ShardDriver(store).start()


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.version for migration in sql.MIGRATIONS] == list(range(1, sql.SCHEMA_VERSION + 1))


# --- servers and users that cannot be used --------------------------------------------------------------------


def test_a_missing_database_or_user_or_server_says_what_to_make(server: PostgresServer) -> None:
    nobody = PostgresServer.url_at(server, 1)
    for url, words in (
        (server.url_at(server.port, database="absent"), "absent.*CREATE DATABASE"),
        (server.url_at(server.port, user="stranger"), "stranger.*CREATE ROLE"),
        (nobody, "127.0.0.1:1/outlast.*Start it"),
    ):
        with pytest.raises(StoreRefused, match=words) as refusal:
            create_store(Address(url), "deployment", 1)
        assert PASSWORD not in str(refusal.value)
        with pytest.raises(StoreUnavailable) as failure:
            PostgresStore(url, shards=1)
        assert PASSWORD not in str(failure.value)


def test_a_user_without_rights_is_told_which(server: PostgresServer) -> None:
    with server.admin() as admin:
        admin.execute("DROP ROLE IF EXISTS guest")
        admin.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(StoreRefused, match="GRANT CREATE ON DATABASE"):
        create_store(Address(server.url_at(server.port, user="guest")), "deployment", 1)
    create_store(Address(server.url), "deployment", 1)
    with pytest.raises(StoreRefused, match="permission denied"):
        PostgresStore(server.url_at(server.port, user="guest"), shards=1)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret@[::1/db",
        "postgresql://u:secret@host:port/db?x",
        "postgresql://u:secret@host/db?nonsense=1",
    ],
)
def test_a_malformed_url_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(InputInvalid, match="OUTLAST_STORE") as refusal:
        check_store_settings(Settings(store=url))
    assert "secret" not in str(refusal.value)
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize("store", ["postgresql", "mysql://u:secret@host/db", "postgresql:/u:secret@host"])
def test_another_kind_of_store_is_refused_without_being_quoted(store: str) -> None:
    with pytest.raises(InputInvalid, match="sqlite") as refusal:
        check_store_settings(Settings(store=store))
    assert "secret" not in str(refusal.value)
    assert "secret" not in repr(Settings(store=store))


def test_settings_say_where_the_store_is_only_to_the_store(server: PostgresServer) -> None:
    settings = Settings(store=server.url, shards=2)
    assert PASSWORD not in repr(settings)
    assert PASSWORD not in f"{Address(server.url)!r} {Address(server.url)}"
    assert "shards=2" in repr(settings)


# --- a data directory and its database ------------------------------------------------------------------------


def _settings(server: PostgresServer, folder: Path) -> Settings:
    folder.mkdir(exist_ok=True)
    return Settings(store=server.url, shards=2, data_dir=str(folder))


def test_a_new_data_directory_takes_the_deployment_of_its_database(server: PostgresServer, tmp_path: Path) -> None:
    first = prepare_store(_settings(server, tmp_path / "a"))
    assert prepare_store(_settings(server, tmp_path / "a")) == first
    assert prepare_store(_settings(server, tmp_path / "b")) == first
    store = open_store(_settings(server, tmp_path / "b"), first)
    assert store.check()["deploymentId"] == first
    store.close()
    with pytest.raises(StoreRefused, match="not another"):
        open_store(_settings(server, tmp_path / "b"), "another")


def test_a_data_directory_of_another_deployment_is_refused(server: PostgresServer, tmp_path: Path) -> None:
    settings = _settings(server, tmp_path / "a")
    prepare_store(settings)
    (settings.data_path / "deployment").write_text("0123456789abcdef\n")
    with pytest.raises(StoreRefused, match="not 0123456789abcdef"):
        prepare_store(settings)


def test_a_lost_database_is_not_replaced_by_an_empty_one(server: PostgresServer, tmp_path: Path) -> None:
    settings = _settings(server, tmp_path / "a")
    prepare_store(settings)
    server.empty()
    with pytest.raises(StoreRefused, match="backup"):
        prepare_store(settings)
    assert find_store(Address(server.url)) is None


# --- what doctor tells ----------------------------------------------------------------------------------------


def test_a_server_that_forgets_is_told_and_served(
    server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _settings(server, tmp_path / "a")
    check = checks.store(settings)
    assert not check.ok
    assert "no store yet" in check.detail
    prepare_store(settings)
    assert "fsync is off" in caplog.text
    check = checks.store(settings)
    assert (check.ok, PASSWORD in check.detail) == (False, False)
    assert "fsync = on" in check.detail
    assert "full_page_writes = on" in check.detail


SOUND = {"fsync": True, "fullPageWrites": True, "standbys": 0, "synchronousStandbys": "", "inRecovery": False}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"standbys": 1}, "synchronous_standby_names"),
        ({"standbys": 1, "synchronousStandbys": "ANY 1 (*)"}, None),
        ({"fsync": False}, "fsync"),
        ({"fullPageWrites": False}, "full_page_writes"),
        ({"inRecovery": True}, "primary"),
    ],
)
def test_what_breaks_durability(changes: dict[str, object], words: str | None) -> None:
    gaps = postgres_durability.gaps({**SOUND, **changes})
    assert len(gaps) == (words is not None)
    assert (words or "") in "".join(gaps)


def test_every_session_commits_synchronously_whatever_the_server_s_default(
    server: PostgresServer, one_shard: Open
) -> None:
    with server.admin() as admin:
        admin.execute("ALTER ROLE outlast SET synchronous_commit = off")
    try:
        store = one_shard()
        shard = ShardDriver(store)
        shard.start()
        assert store._writing().execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert store.check()["synchronousCommit"] == "on"
    finally:
        with server.admin() as admin:
            admin.execute("ALTER ROLE outlast RESET synchronous_commit")


# --- rows that cannot be read ---------------------------------------------------------------------------------


def test_a_damaged_record_keeps_only_its_own_run_from_going_on(server: PostgresServer, one_shard: Open) -> None:
    before = ShardDriver(one_shard())
    before.start()
    before.start("run-2", "thread-2")
    with server.admin() as admin:
        admin.execute("UPDATE outlast.run SET head = '{' WHERE run_id = 'run-2'")
    shard = ShardDriver(one_shard())
    ops = [append(live(1, 1, "a")), append(live(1, 1, "a", run_id="run-2")), append(live(2, 1, "b"))]
    assert [type(outcome).__name__ for outcome in shard.do(*ops)] == ["Appended", "Unstorable", "Appended"]
    with pytest.raises(StoreRefused, match="damaged"):
        shard.store.read_run("run-2")


@pytest.mark.parametrize(
    "use", [lambda s: s.commit(0, 1, [create()], 1), lambda s: s.read_run(RUN), lambda s: s.open_shard(0, "x")]
)
def test_a_closed_store_answers_nothing(one_shard: Open, use: Callable[[PostgresStore], object]) -> None:
    store = one_shard()
    store.open_shard(0, "test")
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        use(store)


def test_a_head_is_stored_as_the_other_stores_do(server: PostgresServer, one_shard: Open) -> None:
    shard = ShardDriver(one_shard())
    shard.start()
    with server.admin() as admin:
        row = admin.execute("SELECT head FROM outlast.run").fetchone()
    assert row is not None
    assert msgspec.json.decode(bytes(row[0]))["runId"] == RUN


def test_what_owners_logs_hold_is_found_out_of_an_older_store(server: PostgresServer, one_shard: Open) -> None:
    with closing(one_shard()) as store:
        shard = ShardDriver(store)
        for number, owner in enumerate(("ann", "bob", "ann")):
            shard.start(f"run-{number}", f"thread-{number}", owner)
            shard.do(append(live(1, 1, "x" * number, run_id=f"run-{number}")))
        shard.end("run-0")
        shard.end("run-1")
    (migration,) = [each for each in sql.MIGRATIONS if each.what == "what owners' logs hold"]
    with closing(Address(server.url).connect("test")) as session:
        counted = session.execute("SELECT * FROM outlast.owned ORDER BY owner").fetchall()
        session.execute("DROP TABLE outlast.owned")
        for statement in migration.statements:
            session.execute(statement)
        assert session.execute("SELECT * FROM outlast.owned ORDER BY owner").fetchall() == counted
        assert [row[0] for row in counted] == ["ann", "bob"]
