"""Commits of the PostgreSQL store: one round trip, one operation's own failure, bounds, and no space (P7, P12)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from runtime.core.ops import Appended, Created, Op, Unstorable
from runtime.errors import StoreFull
from runtime.stores import postgres as postgres_store
from runtime.stores.postgres import PostgresStore
from runtime.stores.postgres_connection import Session
from runtime.stores.postgres_reading import READERS
from runtime.testing.sample_ops import OWNER, RUN, append, claim, create, finish, live, spec, text
from runtime.testing.store_cases.pruning import CHUNKS, ended, prune
from runtime.testing.store_cases.shard_driver import ShardDriver

Open = Callable[..., PostgresStore]


@pytest.fixture
def shard(one_shard: Open) -> ShardDriver:
    return ShardDriver(one_shard())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements that are sent, as they are sent: each is one round trip."""
    sent: list[str] = []
    execute = Session.execute

    def note(self: Session, query: str, *args: object, **options: object) -> object:
        sent.append(query)
        return execute(self, query, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Session, "execute", note)
    return sent


def test_each_usual_operation_is_one_round_trip(shard: ShardDriver, asked: list[str]) -> None:
    steps: list[list[Op]] = [
        [create()],
        [claim()],
        [append(live(1, 1, "a"))],
        [append(live(2, 1, "b", key="k"))],
        [create("run-2", "thread-2", max_runs=10), create("run-3", "thread-3", max_runs=10)],
        [claim(0, "x", "run-2"), append(live(3, 1, "c")), claim(0, "x", "run-3")],
        [append(live(1, 1, "a", run_id="run-2")), finish(4, 1), append(live(1, 1, "a", run_id="run-3"))],
    ]
    for ops in steps:
        del asked[:]
        shard.do(*ops)
        assert len(asked) == 1, (ops, asked)


def test_a_shard_that_remembers_nothing_reads_all_runs_of_a_group_at_once(
    shard: ShardDriver, one_shard: Open, asked: list[str]
) -> None:
    names = [f"run-{place}" for place in range(20)]
    for name in names:
        shard.start(name, f"thread-of-{name}")
    again = ShardDriver(one_shard())
    del asked[:]
    outcomes = again.do(*(append(live(1, 1, "a", run_id=name)) for name in names))
    assert {type(outcome) for outcome in outcomes} == {Appended}
    assert len(asked) == 2


def test_a_write_behind_the_shard_s_back_is_seen_and_not_overwritten(
    shard: ShardDriver, server: PostgresServer, one_shard: Open
) -> None:
    """Nobody does this; but what a decision rests on is checked by its version, whoever wrote it."""
    shard.start()
    same = one_shard()
    (outcome,) = same.commit(0, shard.epoch, [append(live(1, 1, "theirs"))], 1)
    assert isinstance(outcome, Appended)
    (mine, other) = shard.do(append(live(1, 1, "mine")), append(live(2, 1, "next")))
    assert type(mine).__name__ == "SeqConflict"
    assert isinstance(other, Appended)
    assert shard.log()[1:] == [text("theirs"), text("next")]


def test_an_operation_without_a_stored_form_loses_no_other(shard: ShardDriver) -> None:
    shard.start()
    outcomes = shard.do(
        append(live(1, 1, "a")),
        create("run-2", "thread-2", spec=spec(input={"x": object()})),
        create("run-3", "thread-\0"),
        create("run-4", "thread-4"),
        append(live(2, 1, "b")),
    )
    assert [type(outcome) for outcome in outcomes] == [Appended, Unstorable, Unstorable, Created, Appended]
    assert shard.store.list_thread(OWNER, "thread-2") == []
    assert shard.store.list_thread(OWNER, "thread-\0") == []
    shard.ask(create("run-2", "thread-2"), Created)


def test_an_operation_that_the_server_refuses_loses_no_other(shard: ShardDriver, server: PostgresServer) -> None:
    shard.start()
    with server.admin() as admin:  # the row that the second of two new runs will need
        row = admin.execute("SELECT last_value FROM outlast.run_ordinal").fetchone()
        assert row is not None
        admin.execute("ALTER SEQUENCE outlast.run_ordinal CACHE 1")
        admin.execute("ALTER TABLE outlast.run ADD CONSTRAINT odd CHECK (run_id <> 'run-3')")
    try:
        ops: list[Op] = [create("run-2", "thread-2"), create("run-3", "thread-3"), append(live(1, 1, "a"))]
        assert [type(outcome) for outcome in shard.do(*ops)] == [Created, Unstorable, Appended]
    finally:
        with server.admin() as admin:
            admin.execute("ALTER TABLE outlast.run DROP CONSTRAINT odd")
    assert shard.store.read_run("run-3") is None
    assert shard.log("run-3") == []
    assert shard.log()[1:] == [text("a")]
    shard.ask(create("run-3", "thread-3"), Created)


def test_text_that_is_no_unicode_is_stored_as_it_came(shard: ShardDriver) -> None:
    odd = {"messages": ["half a pair: \ud83d", "zero \0", 2**80, {"\udc00": None}]}
    shard.ask(create(spec=spec(input=odd)), Created)
    record = shard.store.read_run(RUN)
    assert record is not None
    assert record[1].input == odd


@pytest.mark.parametrize("key", ["zero \0", "half \ud83d", "", str(list(range(4000)))])
def test_any_text_can_be_a_cause_s_key(shard: ShardDriver, one_shard: Open, key: str) -> None:
    shard.start()
    shard.ask(append(live(1, 1, "a", key=key)), Appended)
    assert shard.ask(append(live(2, 1, "a", key=key)), Appended).repeat
    shard.do(finish(2, 1))
    again = ShardDriver(one_shard())
    assert again.ask(append(live(7, 1, "a", key=key)), Appended).seq == 1


def test_readers_are_few_and_take_turns(shard: ShardDriver, server: PostgresServer) -> None:
    shard.start()
    with ThreadPoolExecutor(20) as pool:
        heads = list(pool.map(lambda _: shard.head(), range(200)))
    assert set(heads) == {heads[0]}
    with server.admin() as admin:
        row = admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outlast reader'"
        ).fetchone()
    assert row is not None
    assert 1 <= row[0] <= READERS


def test_the_look_ups_have_indexes(shard: ShardDriver, server: PostgresServer) -> None:
    """Whatever the planner thinks of a small table, each can be answered without reading a whole one."""
    shard.start()
    thread = "SELECT head FROM outlast.run WHERE owner = 'a' AND thread_id = 'b' AND NOT terminal"
    asked = {
        "run_active": f"{thread} AND NOT queued",
        "run_queued": f"{thread} AND queued ORDER BY ordinal",
        "run_unfinished": "SELECT head FROM outlast.run WHERE shard = 1 AND NOT terminal ORDER BY ordinal",
        "run_to_destroy": "SELECT head FROM outlast.run WHERE shard = 1 AND to_destroy ORDER BY ordinal",
        "run_of_status": "SELECT head FROM outlast.run WHERE owner = 'a' AND status = 's' ORDER BY ordinal DESC",
        "run_run_id_key": "SELECT head FROM outlast.run WHERE run_id = 'a'",
        "batch_pkey": "SELECT data FROM outlast.batch WHERE run = 1 AND seq >= 5 ORDER BY seq",
        "batch_key": "SELECT data FROM outlast.batch WHERE run = 1 AND sha256(key) = sha256('x')",
    }
    with server.admin() as admin:
        admin.execute("SET enable_seqscan = off")
        admin.execute("SET enable_bitmapscan = off")
        admin.execute("SET enable_sort = off")
        for index, query in asked.items():
            plan = "\n".join(line for (line,) in admin.execute(f"EXPLAIN {query}").fetchall())
            assert index in plan, plan


@pytest.fixture
def small_disk(server: PostgresServer) -> Iterator[Path]:
    """A file system of 12 MiB that the server may write, which only root may make."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs")
    place = Path(tempfile.mkdtemp(prefix="outlast-small-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m,mode=0777", "tmpfs", str(place)]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        server.give(place)
        yield place
    finally:
        server.empty()
        with server.admin() as admin:
            admin.execute("DROP TABLESPACE IF EXISTS small")
        subprocess.run(["umount", "-l", str(place)], check=True)
        shutil.rmtree(place)


def _fits(shard: ShardDriver, seq: int, word: str) -> bool:
    try:
        shard.do(append(live(seq, 1, word)))
    except StoreFull:
        return False
    return True


def test_a_full_disk_keeps_nothing_and_goes_on_once_there_is_space(
    server: PostgresServer, one_shard: Open, small_disk: Path
) -> None:
    shard = ShardDriver(one_shard())
    shard.start()
    ballast = small_disk / "ballast"
    with server.admin() as admin:
        admin.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
        admin.execute("ALTER TABLE outlast.batch SET TABLESPACE small")
    ballast.write_bytes(b"x" * (6 << 20))
    seq, word = 1, "x" * 400_000
    while _fits(shard, seq, word):
        seq += 1
    assert shard.head().next_seq == seq
    with pytest.raises(StoreFull):
        shard.do(append(live(seq, 1, word)), finish(seq + 1, 1))
    assert not shard.head().closed
    ballast.unlink()
    shard.ask(append(live(seq, 1, word)), Appended)
    assert shard.log()[1:] == [text(word)] * seq


@pytest.mark.parametrize(("batches", "size", "lefts"), [(3, 1 << 30, [8, 5, 2, 0]), (100, 1, list(range(10, -1, -1)))])
def test_a_log_that_is_removed_goes_in_pieces_of_so_many_batches_or_bytes(
    shard: ShardDriver, monkeypatch: pytest.MonkeyPatch, batches: int, size: int, lefts: list[int]
) -> None:
    monkeypatch.setattr(postgres_store, "DROP_BATCHES", batches)
    monkeypatch.setattr(postgres_store, "DROP_BYTES", size)
    shard.do(prune(ended(shard)))
    whole = shard.log()
    assert len(whole) == 2 + CHUNKS == 11
    for left in lefts:
        assert shard.store.drop_log(RUN) == left
        assert shard.log() == whole[:left]
