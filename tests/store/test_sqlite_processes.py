"""SQLite under processes that die, freeze, and share one file (I1, I2, P11, P12)."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import store_writer
import waiting

from runtime import process
from runtime.core.ops import Appended
from runtime.errors import StoreRefused, StoreUnavailable
from runtime.stores import opener
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.sample_ops import append, live, text
from runtime.testing.store_cases.shard_driver import ShardDriver

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_store(tmp_path / "store.sqlite", "deployment")
    return tmp_path / "store.sqlite"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Start a writer; all are ended at the end."""
    started: list[subprocess.Popen[str]] = []

    def start_one(mode: str) -> subprocess.Popen[str]:
        started.append(store_writer.start(mode, path))
        return started[-1]

    yield start_one
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[[], ShardDriver]]:
    """Open the store in this process; all are closed at the end."""
    stores: list[SqliteStore] = []

    def open_one() -> ShardDriver:
        stores.append(SqliteStore(path))
        return ShardDriver(stores[-1])

    yield open_one
    for store in stores:
        store.close()


def _acknowledged(child: subprocess.Popen[str], least: int) -> list[int]:
    """Return the log lengths that the child said, until `least` of them came."""
    lines: list[int] = []
    while len(lines) < least:
        line = store_writer.stdout(child).readline()
        assert line, "the writer ended by itself"
        lines.append(int(line))
    return lines


def _assert_holds(shard: ShardDriver, pid: int, acknowledged: int) -> int:
    """Assert that everything acknowledged is stored, as written; return the stored length."""
    name = store_writer.run_id(pid)
    chunks = shard.log(name)
    assert len(chunks) >= acknowledged, "an acknowledged batch is gone"
    assert chunks[1:] == [text(str(place)) for place in range(1, len(chunks))]
    assert shard.head(name).next_seq == len(chunks)
    return len(chunks)


def test_a_writer_killed_at_any_point_loses_nothing_acknowledged(
    path: Path, start: Start, opened: Callable[[], ShardDriver]
) -> None:
    written: dict[int, int] = {}
    for least in (1, 3, 5, 6, 13, 34):
        child = start("append")
        acknowledged = _acknowledged(child, least)
        child.kill()
        rest = store_writer.stdout(child).read().split("\n")
        acknowledged += [int(line) for line in rest if line]  # a line is written whole or not at all: it is short
        assert child.wait(10) == -signal.SIGKILL
        written[child.pid] = acknowledged[-1]
        shard = opened()
        written = {pid: _assert_holds(shard, pid, length) for pid, length in written.items()}
        shard.store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_killed_writer_s_run_goes_on_where_its_log_ends(start: Start, opened: Callable[[], ShardDriver]) -> None:
    child = start("append")
    _acknowledged(child, 6)
    child.kill()
    child.wait(10)
    shard = opened()
    name = store_writer.run_id(child.pid)
    head = shard.head(name)
    assert head.driver_epoch == 1
    shard.ask(append(live(head.next_seq, 1, str(head.next_seq), run_id=name)), Appended)
    _assert_holds(shard, child.pid, head.next_seq + 1)


def test_a_successor_ends_the_process_that_has_the_file(start: Start, opened: Callable[[], ShardDriver]) -> None:
    child = start("append")
    acknowledged = _acknowledged(child, 3)
    shard = opened()
    assert child.wait(10) == -signal.SIGKILL
    _assert_holds(shard, child.pid, acknowledged[-1])


def test_a_process_frozen_in_a_transaction_holds_nobody_up(start: Start, opened: Callable[[], ShardDriver]) -> None:
    child = start("hold")
    assert store_writer.stdout(child).readline() == "holding\n"
    os.kill(child.pid, signal.SIGSTOP)
    shard = opened()
    assert child.wait(10) == -signal.SIGKILL
    shard.start()
    assert shard.head().driver_epoch == 1


def test_a_predecessor_that_lives_on_writes_nothing(
    path: Path, start: Start, opened: Callable[[], ShardDriver]
) -> None:
    child = start("append")
    _acknowledged(child, 3)
    opener.opener_path(path).unlink()  # nobody knows whom to end

    def opened_between_two_commits() -> ShardDriver | None:  # a writer without a pause may hold the lock for longer
        with suppress(StoreUnavailable):
            return opened()
        return None

    shard = waiting.wait_until(opened_between_two_commits, "the shard is open")
    assert shard is not None
    name = store_writer.run_id(child.pid)
    before = shard.head(name)
    lines = iter(store_writer.stdout(child).readline, "")
    assert any(line == "superseded\n" for line in lines)
    assert child.poll() is None, "it lives, and is refused"
    for _ in range(20):
        assert next(lines) == "superseded\n"
    assert shard.head(name) == before
    assert len(shard.log(name)) == before.next_seq


def test_of_three_successors_at_once_one_serves(start: Start, opened: Callable[[], ShardDriver]) -> None:
    children = [start("append") for _ in range(3)]
    said: dict[int, list[str]] = {child.pid: [] for child in children}

    def listen(child: subprocess.Popen[str]) -> None:
        for line in store_writer.stdout(child):
            said[child.pid].append(line.strip())

    listeners = [threading.Thread(target=listen, args=(child,)) for child in children]
    for listener in listeners:
        listener.start()

    def serving() -> list[int]:
        alive = [child.pid for child in children if child.poll() is None]
        return [pid for pid in alive if len(said[pid]) > 5 and "superseded" not in said[pid]]

    def settled() -> bool:
        others = [child for child in children if child.poll() is not None or "superseded" in said[child.pid]]
        return len(others) == 2 and len(serving()) == 1

    waiting.wait_until(settled, "two are dead or refused, and one serves")
    shard = opened()
    for child in children:
        child.kill()
        child.wait(10)
    for listener in listeners:
        listener.join(10)
    for pid, lines in said.items():
        lengths = [int(line) for line in lines if line != "superseded"]
        if lengths:
            _assert_holds(shard, pid, lengths[-1])


def test_the_opener_s_file_names_this_process_and_goes_with_it(path: Path) -> None:
    store = SqliteStore(path)
    assert opener.read_opener(path) is None
    store.open_shard(0, "test")
    assert opener.read_opener(path) == process.current()
    store.close()
    assert opener.read_opener(path) is None


def test_closing_an_older_opening_leaves_the_newer_one_named(path: Path) -> None:
    old, new = SqliteStore(path), SqliteStore(path)
    old.open_shard(0, "old")
    new.open_shard(0, "new")
    old.close()
    assert opener.read_opener(path) == process.current()
    new.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid":1}', b"\xff"])
def test_an_opener_s_file_that_is_not_whole_names_nobody(path: Path, content: bytes) -> None:
    opener.opener_path(path).write_bytes(content)
    store = SqliteStore(path)
    assert store.open_shard(0, "test") == 1
    store.close()


def test_a_process_that_only_has_the_pid_is_left_alone(path: Path) -> None:
    bystander = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        who = process.identify(bystander.pid)
        assert who is not None
        named = process.ProcessIdentity(boot_id=who.boot_id, pid=who.pid, pid_started_at=who.pid_started_at - 1)
        other_boot = process.ProcessIdentity(boot_id="before", pid=who.pid, pid_started_at=who.pid_started_at)
        for stranger in (named, other_boot):
            opener.opener_path(path).write_bytes(msgspec.json.encode(stranger))
            store = SqliteStore(path)
            store.open_shard(0, "test")
            store.close()
        assert bystander.poll() is None
    finally:
        bystander.communicate()


def test_a_store_is_made_private_to_its_user(path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(StoreRefused):
        SqliteStore(path, shards=2)
