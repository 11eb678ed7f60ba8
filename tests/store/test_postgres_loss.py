"""A PostgreSQL server that lacks its end is found out at the next session, on the model of the server (P10).

`tests/postgres/test_lost_end.py` has a real one."""

from __future__ import annotations

from contextlib import closing

import pytest
from postgres_side import Side

from runtime.core.ops import Appended, Claimed, Created, Superseded
from runtime.errors import ShardSuperseded, StoreUnavailable
from runtime.stores.postgres_function import CALL
from runtime.stores.postgres_loss import RAISE
from runtime.testing.postgres_model import Fate, ModelServer
from runtime.testing.sample_ops import RUN, append, claim, create, live
from runtime.testing.store_cases.shard_driver import ShardDriver

NOW_MS = 9_000_000
both_ways = pytest.mark.parametrize("failover", [True, False])


@pytest.fixture
def server() -> ModelServer:
    server = ModelServer(shards=2)
    server.clock_ms = lambda: NOW_MS
    return server


@both_ways
def test_a_shard_that_lives_on_is_superseded_and_its_readers_are_told_nothing(
    server: ModelServer, failover: bool
) -> None:
    shard = ShardDriver(server.store())
    shard.start()
    earlier = server.tables.copy()
    shard.do(append(live(1, 1, "lost")))
    server.go_back(earlier, failover=failover)
    with pytest.raises(StoreUnavailable):
        shard.store.read_batches(RUN, 0, 1000)
    with pytest.raises(ShardSuperseded) as refusal:
        shard.do(append(live(2, 1, "late")))
    assert refusal.value.current_epoch == NOW_MS
    with pytest.raises(StoreUnavailable):
        shard.store.read_run(RUN)
    after = ShardDriver(server.store())
    assert (after.head().generation, after.head().next_seq, after.epoch) == (NOW_MS, 1, NOW_MS + 1)
    after.refused(append(live(1, 1, "late")), Superseded)
    epoch = after.ask(claim(NOW_MS, "successor"), Claimed).head.driver_epoch
    after.ask(append(live(1, epoch, "again")), Appended)


@both_ways
def test_a_run_that_is_gone_is_made_again_in_another_generation(server: ModelServer, failover: bool) -> None:
    shard = ShardDriver(server.store())
    earlier = server.tables.copy()
    shard.start()
    server.go_back(earlier, failover=failover)
    with pytest.raises(ShardSuperseded):
        shard.do(create())
    assert ShardDriver(server.store()).ask(create(), Created).head.generation == NOW_MS


@both_ways
def test_a_shard_that_was_opened_and_wrote_nothing_is_superseded(server: ModelServer, failover: bool) -> None:
    first = ShardDriver(server.store())
    first.start()
    earlier = server.tables.copy()
    second = ShardDriver(server.store())
    server.go_back(earlier, failover=failover)
    with pytest.raises(ShardSuperseded):
        second.do()
    assert ShardDriver(server.store()).head().generation == NOW_MS


@both_ways
def test_of_two_shards_one_raises_and_both_are_superseded(server: ModelServer, failover: bool) -> None:
    sides = [Side(server, shard) for shard in range(2)]
    earlier = server.tables.copy()
    for side in sides:
        side.do(create(f"run-{side.shard}", f"thread-{side.shard}"))
    server.go_back(earlier, failover=failover)
    for side in sides:
        with pytest.raises(ShardSuperseded):
            side.do()
    assert server.tables.generation == NOW_MS
    again = [Side(server, shard) for shard in range(2)]
    for side in again:
        (made,) = side.do(create(f"run-{side.shard}", f"thread-{side.shard}"))
        assert isinstance(made, Created)
        assert made.head.generation == NOW_MS


def test_a_standby_is_not_read_and_what_it_lacks_is_told_once_it_is_promoted(server: ModelServer) -> None:
    """A session that begins on it would live on, and ask nothing any more."""
    shard = ShardDriver(server.store())
    shard.start()
    earlier = server.tables.copy()
    shard.do(append(live(1, 1, "lost")))
    server.go_back(earlier, failover=False)
    primary, server.tables.server = server.tables.server, lambda: (None, NOW_MS)
    for ask in (lambda: shard.store.read_run(RUN), lambda: shard.do(append(live(1, 1, "late"))), server.store):
        with pytest.raises(StoreUnavailable, match="standby"):
            ask()
    server.tables.server = primary
    with pytest.raises(ShardSuperseded):
        shard.do(append(live(1, 1, "late")))


def test_a_new_process_finds_another_timeline(server: ModelServer) -> None:
    shard = ShardDriver(server.store())
    shard.start()
    shard.store.close()
    server.go_back(server.tables.copy(), failover=True)
    assert ShardDriver(server.store()).head().generation == NOW_MS


def test_a_restart_that_lost_nothing_is_none(server: ModelServer) -> None:
    shard = ShardDriver(server.store())
    shard.start()
    shard.do(append(live(1, 1, "a")))
    server.restart()
    shard.ask(append(live(2, 1, "b")), Appended)
    server.go_back(server.tables.copy(), failover=False)
    shard.ask(append(live(3, 1, "c")), Appended)
    assert shard.head().generation == 0


def test_a_run_that_has_ended_is_missed_too(server: ModelServer) -> None:
    shard = ShardDriver(server.store())
    shard.start("long", "thread-2")
    earlier = server.tables.copy()
    shard.do(append(live(1, 1, "lost", run_id="long")))
    shard.start()
    shard.end()
    server.go_back(earlier, failover=False)
    with pytest.raises(ShardSuperseded):
        shard.do(append(live(1, 1, "other", run_id="long")))
    assert ShardDriver(server.store()).head("long").generation == NOW_MS


def test_one_copy_that_is_put_back_twice_gives_no_generation_twice(server: ModelServer) -> None:
    shard = ShardDriver(server.store())
    shard.start()
    copy = server.tables.copy()
    for times in (1, 2):
        shard.do(append(live(1, shard.head().driver_epoch, "lost")))
        server.go_back(copy.copy(), failover=False)
        with pytest.raises(ShardSuperseded):
            shard.do()
        shard = ShardDriver(server.store())
        assert shard.head().generation == NOW_MS + times - 1
        shard.do(claim(shard.head().driver_epoch, "successor"))


def test_a_write_that_comes_between_is_raised_too(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = ShardDriver(server.store())
    shard.start()
    raising = server.tables._raise
    writes = iter([append(live(1, 1, "a")), append(live(2, 1, "b"))])

    def others_write_first(values: object) -> bool:
        if (op := next(writes, None)) is not None:
            shard.ask(op, Appended)
        return raising(values)

    monkeypatch.setitem(server.tables._statements, RAISE, lambda values: [(others_write_first(values),)])
    with closing(server.store()) as other:
        assert other.raise_generation(NOW_MS) == NOW_MS
        assert other.read_run(RUN)[0].next_seq == 3  # type: ignore[index]
        assert other.read_run(RUN)[0].generation == NOW_MS  # type: ignore[index]


def test_what_was_only_found_to_be_stored_is_known_to_be(server: ModelServer) -> None:
    shard = ShardDriver(server.store())
    shard.start()
    earlier = server.tables.copy()
    server.fate = lambda statement: Fate.UNHEARD if statement == CALL else Fate.ANSWERED
    with pytest.raises(StoreUnavailable):
        shard.do(append(live(1, 1, "a")))
    server.fate = lambda _statement: Fate.ANSWERED
    assert shard.ask(append(live(1, 1, "a")), Appended).repeat
    shard.start("run-2", "thread-2")
    server.go_back(earlier, failover=False)
    with pytest.raises(ShardSuperseded):
        shard.do()


def test_what_another_shard_changed_is_known_once_it_was_read(server: ModelServer) -> None:
    shard, other = Side(server, 0), Side(server, 1)
    shard.do(create(on_busy="enqueue"))
    earlier = server.tables.copy()
    other.do(create("run-2", on_busy="cancel-previous"))
    (changed,) = shard.store.list_changed(0, {RUN: 0})
    assert changed.cancel_requested
    server.go_back(earlier, failover=False)
    with pytest.raises(ShardSuperseded):
        shard.do()
