"""A backup holds all of a store as it was at one moment; a restore puts back all of it, or changes nothing (P10)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from backed_up import ASKS, CHUNKS, DEPLOYMENT, ENDED, GOES_ON, NEW, QUEUED, RUNS, fill, held, told

from actors.compose import open_store, store_path
from runtime import process
from runtime.core.ops import Appended, Created, Superseded, TooManyBytes
from runtime.core.reap_ops import ReapStage
from runtime.core.record import RECORD_FORMAT, Head
from runtime.errors import DataDirRefused, InputInvalid, StoreRefused
from runtime.ports import Store
from runtime.settings import Settings
from runtime.stores.backup_file import MAGIC, Backup, BackupHeader, StoredBatch, StoredRun, write_backup
from runtime.stores.codec import encode
from runtime.stores.opener import opener_path
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.stores.sqlite_backup import put_in_place
from runtime.testing.sample_ops import append, claim, create, live
from runtime.testing.store_cases.shard_driver import ShardDriver
from serve_app import backups
from serve_app.instance import data_directory
from serve_app.store_setup import prepare_store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a data directory with a store."""
    return _data_dir(tmp_path / "data")


@pytest.fixture
def store(settings: Settings) -> Iterator[SqliteStore]:
    """Yield its store, open and filled."""
    with closing(SqliteStore(store_path(settings))) as store:
        fill(store)
        yield store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "the.backup"


def _data_dir(folder: Path, deployment: str = DEPLOYMENT) -> Settings:
    folder.mkdir()
    (folder / "deployment").write_text(f"{deployment}\n")
    settings = Settings(data_dir=str(folder))
    create_store(store_path(settings), deployment)
    return settings


def _due(store: Store) -> dict[str, set[str]]:
    """Return which runs are due for what: derived from the heads, and never stored as they were."""
    due = {stage.value: store.list_reapable(0, stage, 1 << 60, 10) for stage in ReapStage}
    due["destroy"] = store.list_destroy_pending(0)
    assert due["destroy"]
    return {what: {head.run_id for head in heads} for what, heads in due.items()}


def test_what_is_restored_in_a_new_directory_is_what_was_backed_up(
    settings: Settings, store: SqliteStore, file: Path, tmp_path: Path
) -> None:
    before = told(store)
    said = backups.back_up(settings, file, force=False)
    assert (said["runs"], said["unfinishedRuns"], said["chunks"]) == (len(RUNS), 4, CHUNKS)
    other = Settings(data_dir=str(tmp_path / "other"))
    backups.restore(other, file, force=False)
    assert prepare_store(other) == DEPLOYMENT
    with closing(open_store(other, DEPLOYMENT)) as restored:
        assert told(restored) == before
        assert _due(restored) == _due(store)
        shard = ShardDriver(restored)
        shard.refused(create("later", "thread-9", owner_max_bytes=held(restored)), TooManyBytes)
        later = create("later", "thread-9", owner_max_bytes=held(restored) + 1)
        assert shard.ask(later, Created).head.generation > 0
        assert told(restored)["order"] == ["later", *before["order"]]


def test_offsets_and_epochs_of_a_restored_store_were_never_given(
    settings: Settings, store: SqliteStore, file: Path
) -> None:
    backups.back_up(settings, file, force=False)
    shard = ShardDriver(store)
    shard.ask(append(live(3, 1, "lost", run_id=GOES_ON)), Appended)
    store.close()
    generation = backups.restore(settings, file, force=True)["newGeneration"]
    with closing(SqliteStore(store_path(settings))) as restored:
        after = ShardDriver(restored)
        assert after.epoch > generation > 0
        generations = {run: after.head(run).generation for run in RUNS}
        assert generations == {ENDED: 0, GOES_ON: generation, QUEUED: generation, ASKS: 0, NEW: generation}
        after.refused(append(live(3, 1, "late", run_id=GOES_ON)), Superseded)
        assert after.head(GOES_ON).driver_epoch >= generation
        after.do(claim(after.head(GOES_ON).driver_epoch, "successor", GOES_ON))
        after.ask(append(live(3, after.head(GOES_ON).driver_epoch, "other", run_id=GOES_ON)), Appended)
    again = backups.restore(settings, file, force=True)["newGeneration"]
    assert again > generation, "one copy that is put back twice gives no offset twice"


def test_a_backup_is_of_one_moment_while_the_store_is_written(
    settings: Settings, store: SqliteStore, file: Path
) -> None:
    shard = ShardDriver(store)
    made = [store.read_run(GOES_ON)]
    begun, enough = threading.Event(), threading.Event()

    def write() -> None:
        while not enough.is_set():
            head = shard.head(GOES_ON)
            # Two runs in one transaction: a copy of no one moment would have one chunk more of one of them.
            shard.do(
                append(live(head.next_seq, 1, "x" * 2000, run_id=GOES_ON)),
                create(f"with-{head.next_seq}", f"thread of {head.next_seq}"),
            )
            if head.next_seq > 50:
                begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert begun.wait(60)
        backups.back_up(settings, file, force=False)
    finally:
        enough.set()
        writer.join()
    assert made[0] is not None
    store.close()
    backups.restore(settings, file, force=True)
    with closing(SqliteStore(store_path(settings))) as restored:
        after = ShardDriver(restored)
        count = after.head(GOES_ON).next_seq
        assert count > 50
        assert len(after.log(GOES_ON)) == count
        assert restored.read_run(f"with-{count - 1}") is not None
        assert restored.read_run(f"with-{count}") is None


def test_a_backup_is_its_owners_alone_and_replaces_nothing_unasked(
    settings: Settings, store: SqliteStore, file: Path
) -> None:
    backups.back_up(settings, file, force=False)
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    with pytest.raises(InputInvalid, match="--force"):
        backups.back_up(settings, file, force=False)
    assert file.read_bytes() == before
    ShardDriver(store).do(create("more", "thread-8"))
    assert backups.back_up(settings, file, force=True)["runs"] == len(RUNS) + 1
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == [file.name]


def test_a_restore_does_not_replace_runs_unasked_and_keeps_what_it_replaces(
    settings: Settings, store: SqliteStore, file: Path
) -> None:
    backups.back_up(settings, file, force=False)
    ShardDriver(store).do(create("more", "thread-8"))
    store.close()
    with pytest.raises(StoreRefused, match="--force"):
        backups.restore(settings, file, force=False)
    replaced = backups.restore(settings, file, force=True)["replaced"]
    with closing(SqliteStore(store_path(settings))) as restored:
        assert restored.read_run("more") is None
    with closing(SqliteStore(Path(replaced))) as kept:
        assert kept.read_run("more") is not None


def test_a_store_that_cannot_be_read_is_replaced_when_asked(settings: Settings, store: SqliteStore, file: Path) -> None:
    before = told(store)
    backups.back_up(settings, file, force=False)
    store.close()
    store_path(settings).write_bytes(b"no database " * 1000)
    with pytest.raises(StoreRefused, match="--force"):
        backups.restore(settings, file, force=False)
    backups.restore(settings, file, force=True)
    with closing(SqliteStore(store_path(settings))) as restored:
        assert told(restored) == before


@pytest.mark.parametrize("damage", ["cut", "flipped", "appended", "swapped", "empty", "newer", "foreign"])
def test_a_backup_that_is_not_whole_changes_nothing(
    settings: Settings, store: SqliteStore, file: Path, damage: str
) -> None:
    backups.back_up(settings, file, force=False)
    data = file.read_bytes()
    damaged = {
        "cut": data[:-40],
        "flipped": data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
        "appended": data + b"x",
        "swapped": _without_one_frame(data),
        "empty": b"",
        "newer": data.replace(b"BACKUP 1\n", b"BACKUP 2\n", 1),
        "foreign": b"SQLite format 3\0" + data,
    }[damage]
    file.write_bytes(damaged)
    before = told(store)
    store.close()
    with pytest.raises(StoreRefused, match=r"the\.backup is "):
        backups.restore(settings, file, force=True)
    with closing(SqliteStore(store_path(settings))) as same:
        assert told(same) == before
        assert same.read_run(GOES_ON) is not None


def _without_one_frame(data: bytes) -> bytes:
    """Leave out a whole frame in the middle: every frame that is left has its right sum."""
    at = data.index(b"\n") + 1
    for _ in range(3):
        at += 8 + int.from_bytes(data[at : at + 4], "big")
    return data[:at] + data[at + 8 + int.from_bytes(data[at : at + 4], "big") :]


def test_a_backup_of_another_deployment_is_refused_also_when_forced(
    settings: Settings, store: SqliteStore, file: Path, tmp_path: Path
) -> None:
    assert told(store)
    backups.back_up(settings, file, force=False)
    other = _data_dir(tmp_path / "other", "another")
    with pytest.raises(StoreRefused, match="another"):
        backups.restore(other, file, force=True)
    with closing(SqliteStore(store_path(other), deployment_id="another")) as same:
        assert told(same) == {"order": []}


def test_a_store_that_is_served_is_not_replaced(settings: Settings, store: SqliteStore, file: Path) -> None:
    backups.back_up(settings, file, force=False)
    store.close()
    with data_directory(settings), pytest.raises(DataDirRefused, match="in use"):
        backups.restore(settings, file, force=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        identity = process.identify(server.pid)
        assert identity is not None
        opener_path(store_path(settings)).write_bytes(msgspec.json.encode(identity))
        with pytest.raises(StoreRefused, match=f"process {server.pid}"):
            backups.restore(settings, file, force=True)
        assert server.stdin is not None
        server.stdin.close()
    assert backups.restore(settings, file, force=True)["runs"] == len(RUNS)


def test_each_store_that_a_restore_replaces_is_kept(settings: Settings, store: SqliteStore, file: Path) -> None:
    backups.back_up(settings, file, force=False)
    ShardDriver(store).do(create("only-copy", "thread-8"))
    store.close()
    first, second = (Path(backups.restore(settings, file, force=True)["replaced"]) for _ in range(2))
    assert first != second
    with closing(SqliteStore(first)) as kept:
        assert kept.read_run("only-copy") is not None
    with closing(SqliteStore(second)) as kept:
        assert kept.read_run("only-copy") is None
        assert kept.read_run(GOES_ON) is not None


def test_what_is_kept_has_its_wal_and_replaces_nothing(settings: Settings, store: SqliteStore) -> None:
    ShardDriver(store).do(create("in-the-wal", "thread-8"))
    place = store_path(settings)
    wal, made = place.with_name(f"{place.name}-wal"), place.with_name("made")
    written = wal.read_bytes()
    assert written, "what is stored last is in the WAL as long as somebody has the file open"
    for name, data in (("replaced-7", b"kept"), ("replaced-8-wal", b"kept too")):
        place.with_name(f"{place.name}.{name}").write_bytes(data)
    made.write_bytes(b"new")
    kept = put_in_place(made, place, 7)
    assert kept == place.with_name(f"{place.name}.replaced-9")
    assert place.read_bytes() == b"new"
    assert not wal.exists()
    assert kept.with_name(f"{kept.name}-wal").read_bytes() == written
    assert place.with_name(f"{place.name}.replaced-7").read_bytes() == b"kept"
    assert place.with_name(f"{place.name}.replaced-8-wal").read_bytes() == b"kept too"


def test_a_wal_that_lies_alone_is_put_beside_no_other_store(settings: Settings, store: SqliteStore) -> None:
    store.close()
    place = store_path(settings)
    made = place.with_name("made")
    made.write_bytes(b"second")
    first = put_in_place(made, place, 7)
    place.unlink()  # by somebody who left the WAL there
    place.with_name(f"{place.name}-wal").write_bytes(b"of the one before")
    made.write_bytes(b"third")
    assert first is not None
    assert put_in_place(made, place, 8) is None
    assert not first.with_name(f"{first.name}-wal").exists()
    assert not place.with_name(f"{place.name}-wal").exists()
    assert place.with_name(f"{place.name}.replaced-8-wal").read_bytes() == b"of the one before"


def test_a_store_that_is_opened_while_its_successor_is_made_is_not_replaced(
    settings: Settings, store: SqliteStore
) -> None:
    store.close()
    place = store_path(settings)
    made, before = place.with_name("made"), place.read_bytes()
    made.write_bytes(b"new")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        identity = process.identify(server.pid)
        assert identity is not None
        opener_path(place).write_bytes(msgspec.json.encode(identity))
        with pytest.raises(StoreRefused, match=f"process {server.pid}"):
            put_in_place(made, place, 7)
        assert server.stdin is not None
        server.stdin.close()
    assert place.read_bytes() == before


def test_two_backups_into_one_file_do_not_remove_what_the_other_writes(
    settings: Settings, store: SqliteStore, file: Path
) -> None:
    assert told(store)
    another = file.with_name(f".{file.name}.{os.getpid()}")  # of a process of the same pid, in another container
    another.write_bytes(b"half of a backup")
    assert backups.back_up(settings, file, force=False)["runs"] == len(RUNS)
    assert another.read_bytes() == b"half of a backup"
    assert {path.name for path in file.parent.iterdir() if path.is_file()} == {file.name, another.name}


def test_a_backup_of_a_version_with_newer_records_is_refused(
    settings: Settings, store: SqliteStore, file: Path, tmp_path: Path
) -> None:
    before = told(store)
    assert backups.back_up(settings, file, force=False)["recordFormat"] == RECORD_FORMAT
    newer = tmp_path / "newer.backup"
    with closing(Backup(file)) as backup, newer.open("wb") as out:
        header = msgspec.structs.replace(backup.header, record_format=RECORD_FORMAT + 1, made_by="9.9.9")
        write_backup(out, header, backup.rows())
    store.close()
    for refuse in (backups.check, lambda path: backups.restore(settings, path, force=True)):
        with pytest.raises(StoreRefused, match=r"9\.9\.9.*Install that version"):
            refuse(newer)
    with closing(SqliteStore(store_path(settings))) as same:
        assert told(same) == before


def test_a_length_that_was_flipped_is_not_believed(settings: Settings, store: SqliteStore, file: Path) -> None:
    assert told(store)
    backups.back_up(settings, file, force=False)
    with file.open("r+b") as out:
        out.seek(len(MAGIC) + 2)  # the header's length
        out.write((64 << 20).to_bytes(4, "big"))
        out.truncate(80 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(StoreRefused, match="damaged"):
            backups.check(file)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_large_frame_is_read_back(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    header = BackupHeader(
        deployment_id=DEPLOYMENT, generation=0, store="sqlite", schema_version=1, shards=1, made_at=0, made_by="1"
    )
    head = Head(run_id="r", thread_id="t", owner="", digest="", created_at=0, next_seq=1)
    batch = StoredBatch(seq=0, count=1, epoch=1, band="live", first_index=0, ends=b"", data=data)
    with (tmp_path / "large").open("wb") as out:
        write_backup(out, header, [StoredRun(ordinal=1, head=encode(head), spec=b"{}"), batch])
    with closing(Backup(tmp_path / "large")) as backup:
        assert list(backup.rows())[1] == batch


def test_a_restore_that_was_interrupted_at_its_last_step_is_repeated(
    settings: Settings, store: SqliteStore, file: Path
) -> None:
    before = told(store)
    backups.back_up(settings, file, force=False)
    store.close()
    place = store_path(settings)
    wal, kept = place.with_name(f"{place.name}-wal"), place.with_name(f"{place.name}.replaced-7")
    wal.write_bytes(b"of the one before")
    os.link(wal, kept.with_name(f"{kept.name}-wal"))
    place.replace(kept)  # and then the power was lost
    with pytest.raises(StoreRefused, match="backup"):
        prepare_store(settings)
    assert backups.restore(settings, file, force=False)["replaced"] == str(kept)
    assert kept.with_name(f"{kept.name}-wal").read_bytes() == b"of the one before"
    with closing(SqliteStore(place)) as restored:
        assert told(restored) == before
