"""Commits of the SQLite store: isolation from readers, no space, a bounded WAL, and one operation's own failure."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

import pytest

from runtime.core.ops import Appended, Created, Op, Unstorable
from runtime.errors import StoreFull, StoreUnavailable
from runtime.stores import sqlite as sqlite_store
from runtime.stores import sqlite_dropping
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.sample_ops import OWNER, RUN, append, create, finish, live, spec, text
from runtime.testing.store_cases.pruning import CHUNKS, ended, prune
from runtime.testing.store_cases.shard_driver import ShardDriver


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_store(tmp_path / "store.sqlite", "deployment")
    return tmp_path / "store.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, busy_ms=50)) as opened:
        yield opened


@pytest.fixture
def shard(store: SqliteStore) -> ShardDriver:
    return ShardDriver(store)


def _wal_bytes(path: Path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


def test_a_commit_is_durable_when_it_returns(store: SqliteStore, shard: ShardDriver) -> None:
    facts = store.check()
    assert facts["durable"] is True
    for connection in (store._writing(), *store._idle):
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_readers_do_not_wait_for_a_long_transaction(path: Path, store: SqliteStore, shard: ShardDriver) -> None:
    shard.start()
    before = shard.head()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE run SET head = 'half-way'")
        assert store.read_run(RUN) == (before, spec())
        assert len(store.read_batches(RUN, 0, 1 << 20)) == 1
        assert store.list_unfinished(0) == [before]
        with pytest.raises(StoreUnavailable, match="does not answer"):
            shard.do(append(live(1, 1, "a")))
        assert shard.head() == before
    shard.ask(append(live(1, 1, "a")), Appended)


def test_a_commit_does_not_wait_for_a_reader(path: Path, shard: ShardDriver) -> None:
    shard.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM batch").fetchall()
        shard.ask(append(live(1, 1, "a")), Appended)
        assert reader.execute("SELECT count(*) FROM batch").fetchone() == (1,)


def test_many_readers_see_only_whole_commits(store: SqliteStore, shard: ShardDriver) -> None:
    shard.start()
    stop = Event()

    def read() -> int:
        seen = 0
        while not stop.is_set():
            record = store.read_run(RUN)
            batches = store.read_batches(RUN, 0, 1 << 30)
            assert record is not None
            assert batches[-1].next_seq >= record[0].next_seq, "a record was seen before its batch"
            assert [batch.seq for batch in batches[1:]] == list(range(1, 2 * len(batches) - 1, 2))
            seen = max(seen, record[0].next_seq)
        return seen

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read) for _ in range(4)]
        try:
            for seq in range(1, 301, 2):
                shard.do(append(live(seq, 1, "a", "b")))
        finally:
            stop.set()
        assert all(1 <= reader.result() <= 301 for reader in readers)
    assert len(store._idle) <= 5


def test_the_wal_is_copied_back_between_commits(path: Path, shard: ShardDriver) -> None:
    shard.start()
    word = "x" * 400_000
    largest = 0
    for seq in range(1, 61):
        shard.do(append(live(seq, 1, word)))
        largest = max(largest, _wal_bytes(path))
    assert largest < 2 * sqlite_store.CHECKPOINT_BYTES
    assert path.stat().st_size > 60 * len(word) - 2 * sqlite_store.CHECKPOINT_BYTES


def test_small_commits_are_copied_back_too(path: Path, shard: ShardDriver) -> None:
    shard.start()
    for seq in range(1, 700):
        shard.do(append(live(seq, 1, "a")))
    assert _wal_bytes(path) < 2 * sqlite_store.CHECKPOINT_BYTES


def test_a_reader_that_held_the_wal_back_does_so_no_longer_than_it_reads(path: Path, shard: ShardDriver) -> None:
    shard.start()
    word = "x" * 1_000_000
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM run").fetchall()
        for seq in range(1, 21):
            shard.do(append(live(seq, 1, word)))
        held = _wal_bytes(path)
        assert held > 20 * len(word)
    for seq in range(21, 61):
        shard.do(append(live(seq, 1, word)))
    assert _wal_bytes(path) < held + sqlite_store.CHECKPOINT_BYTES


def _fill(shard: ShardDriver, word: str) -> int:
    """Append until the store is full; return the length of the log then."""
    seq = shard.head().next_seq
    while True:
        before = shard.head()
        try:
            shard.do(append(live(seq, 1, word)))
        except StoreFull:
            assert shard.head() == before
            assert len(shard.log()) == seq
            return seq
        seq += 1


def test_a_full_store_keeps_nothing_and_goes_on_once_there_is_space(store: SqliteStore, shard: ShardDriver) -> None:
    shard.start()
    (pages,) = store._writing().execute("PRAGMA page_count").fetchone()
    store._writing().execute(f"PRAGMA max_page_count = {pages + 20}")
    seq = _fill(shard, "x" * 50_000)
    with pytest.raises(StoreFull):
        shard.do(append(live(seq, 1, "y" * 50_000)), finish(seq, 1))
    assert not shard.head().closed
    store._writing().execute("PRAGMA max_page_count = 1000000")
    shard.ask(append(live(seq, 1, "y" * 50_000)), Appended)
    assert len(shard.log()) == seq + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, which only root may make."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_keeps_nothing_and_goes_on_once_there_is_space(small_disk: Path) -> None:
    path = small_disk / "store.sqlite"
    create_store(path, "deployment")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (3 << 20))
    with closing(SqliteStore(path)) as store:
        shard = ShardDriver(store)
        shard.start()
        seq = _fill(shard, "x" * 30_000)
        assert store.list_unfinished(0) == [shard.head()]
        assert len(shard.log()) == seq
        with pytest.raises(StoreFull):
            shard.do(append(live(seq, 1, "x" * 30_000)))
        ballast.unlink()
        shard.ask(append(live(seq, 1, "y")), Appended)
    with closing(SqliteStore(path)) as store:
        assert ShardDriver(store).log()[1:] == [text("x" * 30_000)] * (seq - 1) + [text("y")]


def _take_all_space(ballast: Path) -> None:
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while True:
            os.write(fd, b"x" * 4096)
    os.close(fd)


def test_a_disk_that_is_full_when_the_shard_opens_says_so(small_disk: Path) -> None:
    path = small_disk / "store.sqlite"
    create_store(path, "deployment")
    ballast = small_disk / "ballast"
    with closing(SqliteStore(path)) as store:
        _take_all_space(ballast)
        with pytest.raises(StoreFull):
            store.open_shard(0, "test")
        ballast.unlink()
        assert store.open_shard(0, "test") >= 1
    _take_all_space(ballast)
    with pytest.raises(StoreFull):
        SqliteStore(path)
    ballast.unlink()
    SqliteStore(path).close()


def test_an_operation_without_a_stored_form_loses_no_other(shard: ShardDriver) -> None:
    shard.start()
    outcomes = shard.do(
        append(live(1, 1, "a")),
        create("run-2", "thread-2", spec=spec(input={"x": object()})),
        create("run-3", "thread-3"),
        append(live(2, 1, "b")),
    )
    assert [type(outcome) for outcome in outcomes] == [Appended, Unstorable, Created, Appended]
    assert shard.store.read_run("run-2") is None
    assert shard.store.list_thread(OWNER, "thread-2") == []
    assert shard.log("run-2") == []
    shard.ask(create("run-2", "thread-2"), Created)


def test_an_operation_that_fails_half_way_leaves_nothing(path: Path, shard: ShardDriver) -> None:
    shard.start()
    with closing(sqlite3.connect(path)) as other:  # the row that the second of two new runs will need
        other.execute("INSERT INTO spec (run, spec) VALUES (3, x'00')")
        other.commit()
    ops: list[Op] = [create("run-2", "thread-2"), create("run-3", "thread-3"), append(live(1, 1, "a"))]
    outcomes = shard.do(*ops)
    assert [type(outcome) for outcome in outcomes] == [Created, Unstorable, Appended]
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT run_id FROM run ORDER BY ordinal").fetchall() == [(RUN,), ("run-2",)]
        assert other.execute("SELECT count(*) FROM batch WHERE run = 3").fetchone() == (0,)


def test_text_that_is_no_unicode_is_stored_as_it_came(shard: ShardDriver) -> None:
    odd = {"messages": ["half a pair: \ud83d", 2**80, {"\udc00": None}]}
    shard.ask(create(spec=spec(input=odd)), Created)
    record = shard.store.read_run(RUN)
    assert record is not None
    assert record[1].input == odd


@pytest.mark.parametrize(("batches", "size", "lefts"), [(3, 1 << 30, [8, 5, 2, 0]), (100, 1, list(range(10, -1, -1)))])
def test_a_log_that_is_removed_goes_in_pieces_of_so_many_batches_or_bytes(
    shard: ShardDriver, monkeypatch: pytest.MonkeyPatch, batches: int, size: int, lefts: list[int]
) -> None:
    monkeypatch.setattr(sqlite_dropping, "DROP_BATCHES", batches)
    monkeypatch.setattr(sqlite_dropping, "DROP_BYTES", size)
    shard.do(prune(ended(shard)))
    whole = shard.log()
    assert len(whole) == 2 + CHUNKS == 11
    for left in lefts:
        assert shard.store.drop_log(RUN) == left
        assert shard.log() == whole[:left]
