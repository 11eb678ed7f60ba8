"""MemoryStore passes the kit, and fails when it is told to."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from runtime.core.ops import Appended, Created
from runtime.errors import StoreUnavailable
from runtime.stores.memory import FaultPoint, MemoryStore
from runtime.testing.sample_ops import RUN, append, create, live
from runtime.testing.sim_store import StoreTrouble, WatchedStore
from runtime.testing.store_cases.shard_driver import ShardDriver
from runtime.testing.store_kit import StoreKit


class TestMemoryStore(StoreKit):
    @pytest.fixture
    def make_store(self) -> Callable[[], MemoryStore]:
        self.rows = MemoryStore()
        return lambda: self.rows

    def raw_log(self, run_id: str) -> list[bytes]:
        return b"\n".join(batch.data for batch in self.rows._tables.logs[run_id]).split(b"\n")

    def raw_status(self, run_id: str) -> str:
        return self.rows._tables.heads[run_id].status.value


class TestWatchedStore(TestMemoryStore):
    """What the simulator and the engine's tests put before a store is still one, in good weather."""

    @pytest.fixture
    def make_store(self) -> Callable[[], WatchedStore]:
        self.rows = MemoryStore()
        trouble = StoreTrouble(random.Random(1))  # noqa: S311 - a seeded generator is the point
        return lambda: WatchedStore(self.rows, trouble, lambda *_: None, portion_bytes=1 << 40)


class _Faults:
    """Fails once at each point that is in `due`."""

    def __init__(self) -> None:
        self.due: list[FaultPoint] = []

    def __call__(self, point: FaultPoint) -> None:
        if point in self.due:
            self.due.remove(point)
            raise StoreUnavailable(point)


@pytest.fixture
def faults() -> _Faults:
    return _Faults()


@pytest.fixture
def shard(faults: _Faults) -> ShardDriver:
    return ShardDriver(MemoryStore(fault=faults))


def test_a_fault_before_the_commit_writes_nothing(shard: ShardDriver, faults: _Faults) -> None:
    faults.due = ["commit.before"]
    with pytest.raises(StoreUnavailable):
        shard.do(create())
    assert shard.store.read_run(RUN) is None
    shard.ask(create(), Created)


def test_a_fault_after_the_commit_loses_only_the_answer(shard: ShardDriver, faults: _Faults) -> None:
    shard.start()
    faults.due = ["commit.after"]
    with pytest.raises(StoreUnavailable):
        shard.do(append(live(1, 1, "a")))
    assert len(shard.log()) == 2
    assert shard.ask(append(live(1, 1, "a")), Appended).repeat


def test_a_fault_after_an_opening_has_taken_the_epoch(shard: ShardDriver, faults: _Faults) -> None:
    faults.due = ["open.after"]
    with pytest.raises(StoreUnavailable):
        shard.store.open_shard(0, "lost")
    assert shard.store.open_shard(0, "again") == shard.epoch + 2


def test_a_fault_of_a_question_changes_nothing(shard: ShardDriver, faults: _Faults) -> None:
    shard.start()
    faults.due = ["read.before"]
    with pytest.raises(StoreUnavailable):
        shard.store.read_run(RUN)
    assert shard.head().driver_epoch == 1


def test_a_store_with_more_shards_keeps_the_runs_of_each_apart() -> None:
    store = MemoryStore(shards=2)
    epochs = [store.open_shard(shard, "test") for shard in range(2)]
    for shard in range(2):
        store.commit(shard, epochs[shard], [create(f"run-{shard}", f"thread-{shard}")], 1)
    assert [[head.run_id for head in store.list_unfinished(shard)] for shard in range(2)] == [["run-0"], ["run-1"]]
