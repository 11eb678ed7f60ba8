"""Two incarnations of one shard never both write, and one that is frozen holds nobody up (P11, P12)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import postgres_writer
import pytest
import waiting
from postgres_server import PostgresServer

from runtime.core.ops import Appended, Outcome
from runtime.errors import ShardSuperseded, StoreUnavailable
from runtime.stores.postgres import PostgresStore
from runtime.testing.sample_ops import append, claim, create, live, text
from runtime.testing.store_cases.shard_driver import ShardDriver

Open = Callable[..., PostgresStore]
Start = Callable[..., subprocess.Popen[str]]
TURNS = 12


@pytest.fixture
def start(server: PostgresServer) -> Iterator[Start]:
    """Start a writer in a process of its own; all are ended at the end."""
    started: list[subprocess.Popen[str]] = []

    def start_one(mode: str, shards: int = 1, shard: int = 0) -> subprocess.Popen[str]:
        started.append(postgres_writer.start(mode, server.url, shards, shard))
        return started[-1]

    yield start_one
    for child in started:
        child.kill()
        child.communicate()


def _said(child: subprocess.Popen[str], least: int) -> int:
    """Return the length of the child's log once it has said `least` of them."""
    lines = [postgres_writer.stdout(child).readline() for _ in range(least)]
    assert all(lines), "the writer ended by itself"
    return int(lines[-1])


def test_a_writer_that_was_paused_wakes_up_to_a_refusal(one_shard: Open, start: Start) -> None:
    child = start("append")
    _said(child, 5)
    os.kill(child.pid, signal.SIGSTOP)
    shard = ShardDriver(one_shard())
    name = postgres_writer.run_id(child.pid)
    before, log = shard.head(name), shard.log(name)
    shard.start()
    os.kill(child.pid, signal.SIGCONT)
    rest = postgres_writer.stdout(child).read().split()
    assert rest[-1:] == ["superseded"] or child.wait(10) != 0  # its session was ended under a commit, or before it
    assert (shard.head(name), shard.log(name)) == (before, log)
    lengths = [int(line) for line in rest if line.isdecimal()]
    assert not lengths or lengths[-1] <= before.next_seq, "what it was told is stored was stored"


def test_a_writer_killed_at_any_point_loses_nothing_acknowledged(one_shard: Open, start: Start) -> None:
    for least in (1, 3, 9):
        child = start("append")
        acknowledged = _said(child, least)
        child.kill()
        rest = [int(line) for line in postgres_writer.stdout(child).read().split() if line.isdecimal()]
        acknowledged = max([acknowledged, *rest])
        shard = ShardDriver(one_shard())
        chunks = shard.log(postgres_writer.run_id(child.pid))
        assert len(chunks) >= acknowledged
        assert chunks[1:] == [text(str(seq)) for seq in range(1, len(chunks))]


def test_a_client_frozen_in_a_transaction_holds_its_successor_up_for_no_longer_than_its_session_lives(
    one_shard: Open, start: Start
) -> None:
    store = one_shard()
    ShardDriver(store).start()
    child = start("hold")
    assert postgres_writer.stdout(child).readline() == "holding\n"
    os.kill(child.pid, signal.SIGSTOP)
    begun = time.monotonic()
    shard = ShardDriver(store)
    shard.ask(append(live(1, 1, "a")), Appended)
    assert time.monotonic() - begun < 3
    assert child.poll() is None, "the process lives; only its session is gone"


def test_a_client_frozen_in_a_transaction_holds_another_shard_up_for_a_second(two_shards: Open, start: Start) -> None:
    store = two_shards()
    epoch = store.open_shard(1, "test")
    store.commit(1, epoch, [create(), claim()], 1)
    child = start("hold", 2, 0)
    assert postgres_writer.stdout(child).readline() == "holding\n"
    os.kill(child.pid, signal.SIGSTOP)
    begun = time.monotonic()

    def stored() -> list[Outcome]:
        try:
            return store.commit(1, epoch, [append(live(1, 1, "a"))], 1)
        except StoreUnavailable:
            return []

    assert isinstance(waiting.wait_until(stored, "the other shard writes")[0], Appended)
    assert time.monotonic() - begun < 4  # the server gives the holder 1 s


class Incarnation(threading.Thread):
    """Opens the shard and appends to one run for as long as it is the newest, as careless as can be."""

    def __init__(self, store: PostgresStore, name: str) -> None:
        super().__init__(name=name)
        self.shard = ShardDriver(store)
        self.words: list[str] = []  # acknowledged
        self.error: BaseException | None = None
        self.superseded = False

    def run(self) -> None:
        try:
            while True:
                self._append()
        except ShardSuperseded:
            self.superseded = True
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.error = error

    def _append(self) -> None:
        seq, word = self.shard.head().next_seq, f"{self.name}.{len(self.words)}"
        try:
            (outcome,) = self.shard.do(append(live(seq, 1, word, key=word)))
        except StoreUnavailable:
            return  # its session was ended; the same key again, if it may
        if isinstance(outcome, Appended):
            self.words.append(word)


def test_of_many_incarnations_only_the_newest_writes(one_shard: Open) -> None:
    ShardDriver(one_shard()).start()
    incarnations: list[Incarnation] = []
    for turn in range(TURNS):
        incarnations.append(Incarnation(one_shard(), f"i{turn}"))
        newest = incarnations[-1]
        newest.start()
        waiting.wait_until(lambda newest=newest: len(newest.words) > 3 or newest.error, "it writes")  # type: ignore[misc]
    last = ShardDriver(one_shard())
    for incarnation in incarnations:
        incarnation.join(20)
        assert incarnation.error is None
        assert incarnation.superseded
    chunks = last.log()[1:]
    words = [text(word) for incarnation in incarnations for word in incarnation.words]
    assert [chunk for chunk in chunks if chunk in words] == words, "in the order of epochs, each once"
    assert len(chunks) - len(words) <= TURNS, "what was stored and not acknowledged: at most one of each"
