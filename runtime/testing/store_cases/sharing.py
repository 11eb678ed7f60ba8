"""Only the newest incarnation of a shard writes, and a transaction keeps its runs apart (P7, P11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from runtime.core.ops import (
    Appended,
    Claimed,
    Created,
    Finished,
    Op,
    OpenSupervisor,
    SeqConflict,
    Superseded,
    SupervisorOpened,
    ThreadBusy,
    UnknownRun,
    Unstorable,
)
from runtime.core.record import CancelReason, Status
from runtime.errors import ShardSuperseded, StoreRefused
from runtime.ports import Store
from runtime.testing.sample_ops import RUN, append, cancel, claim, create, finish, journal, live, spec, text
from runtime.testing.store_cases.shard_driver import ShardDriver


class ShardCases:
    """Shard epochs, group commits, and what is there when the storage is opened again."""

    def test_every_opening_gets_a_higher_epoch(self, make_store: Callable[[], Store]) -> None:
        first, second = make_store(), make_store()
        epochs = [first.open_shard(0, "a"), second.open_shard(0, "b"), first.open_shard(0, "c")]
        assert epochs[0] >= 1
        assert epochs == sorted(set(epochs))

    def test_a_superseded_incarnation_writes_nothing(self, make_store: Callable[[], Store]) -> None:
        old = ShardDriver(make_store())
        old.start()
        new = ShardDriver(make_store())
        for ops in ([append(live(1, 1, "late"))], [create("run-2", "thread-2")], []):
            with pytest.raises(ShardSuperseded) as refusal:
                old.do(*ops)
            assert (refusal.value.shard, refusal.value.held_epoch) == (0, old.epoch)
            assert refusal.value.current_epoch == new.epoch
        assert new.log()[1:] == []
        assert new.store.read_run("run-2") is None
        new.ask(append(live(1, 1, "a")), Appended)

    def test_an_epoch_that_was_never_given_writes_nothing(self, shard: ShardDriver) -> None:
        with pytest.raises(ShardSuperseded):
            shard.store.commit(0, shard.epoch + 1, [create()], 1)
        assert shard.store.read_run(RUN) is None

    def test_a_shard_that_is_not_set_up_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreRefused, match="shard"):
            store.open_shard(10_000, "a")
        with pytest.raises(ShardSuperseded):
            store.commit(10_000, 1, [], 1)

    def test_an_empty_commit_is_an_answer(self, shard: ShardDriver) -> None:
        assert shard.do() == []

    def test_a_whole_life_fits_in_one_transaction(self, shard: ShardDriver) -> None:
        outcomes = shard.do(create(), claim(), append(live(1, 1, "a")), finish(2, 1), create("run-2"))
        assert [type(outcome) for outcome in outcomes] == [Created, Claimed, Appended, Finished, Created]
        assert shard.head().status is Status.COMPLETED
        assert not shard.head("run-2").queued
        assert len(shard.log()) == 3

    def test_a_refusal_touches_no_other_run(self, shard: ShardDriver) -> None:
        runs = [f"run-{place}" for place in range(5)]
        for place, run_id in enumerate(runs):
            shard.start(run_id, f"thread-{place}")
        outcomes = shard.do(
            append(live(1, 1, "a", run_id="run-0")),
            append(live(1, 9, "stale", run_id="run-1")),
            append(live(7, 1, "gap", run_id="run-2")),
            append(live(1, 1, "nobody", run_id="nobody")),
            create("run-9", "thread-0"),
            append(live(1, 1, "d", run_id="run-3")),
            finish(1, 1, run_id="run-4"),
        )
        kinds = [Appended, Superseded, SeqConflict, UnknownRun, ThreadBusy, Appended, Finished]
        assert [type(outcome) for outcome in outcomes] == kinds
        assert [len(shard.log(run_id)) for run_id in runs] == [2, 1, 1, 2, 2]

    def test_a_defect_of_one_operation_loses_no_other(self, shard: ShardDriver) -> None:
        shard.start()
        shard.start("run-2", "thread-2")
        no_bytes: Any = None
        defect = append(msgspec.structs.replace(live(1, 1, "x", run_id="run-2"), data=no_bytes))
        outcomes = shard.do(append(live(1, 1, "a")), defect, append(live(2, 1, "b")), defect)
        assert [type(outcome) for outcome in outcomes] == [Appended, Unstorable, Appended, Unstorable]
        assert shard.log()[1:] == [text("a"), text("b")]
        shard.ask(append(live(1, 1, "x", run_id="run-2")), Appended)

    def test_a_group_decides_as_one_by_one_does(self, shard: ShardDriver) -> None:
        grouped = shard.store.commit(0, shard.epoch, _script("a"), shard.now_ms)
        singly = [shard.store.commit(0, shard.epoch, [op], shard.now_ms)[0] for op in _script("b")]
        assert [type(outcome) for outcome in grouped] == [type(outcome) for outcome in singly]
        for place in range(3):
            one, other = shard.head(f"a-{place}"), shard.head(f"b-{place}")
            assert (one.version, one.status, one.queued) == (other.version, other.status, other.queued)
            assert len(shard.log(one.run_id)) == len(shard.log(other.run_id))

    def test_what_was_committed_is_there_when_the_storage_is_opened_again(
        self, make_store: Callable[[], Store]
    ) -> None:
        first = ShardDriver(make_store())
        first.start()
        first.do(append(journal(1, 1, "a", "b")), OpenSupervisor(claimant="s"))
        first.start("run-2", "thread-2")
        first.end("run-2", Status.FAILED)
        heads = [first.head(), first.head("run-2")]
        first.store.close()
        again = ShardDriver(make_store(), first.now_ms)
        assert again.epoch > first.epoch
        assert [again.head(), again.head("run-2")] == heads
        assert again.log()[1:] == [text("a"), text("b")]
        assert again.ask(OpenSupervisor(claimant="s"), SupervisorOpened).epoch == 1
        assert again.ask(append(journal(1, 1, "a", "b")), Appended).repeat
        again.ask(append(live(3, 1, "c")), Appended)
        assert again.store.read_run(RUN) == (again.head(), spec())


def _script(name: str) -> list[Op]:
    """Return operations on three runs of two threads, some of which are refused."""
    ops: list[Op] = []
    for place in range(3):
        run_id, thread_id = f"{name}-{place}", f"{name}-{place % 2}"
        ops += [create(run_id, thread_id, on_busy="enqueue"), claim(0, "a", run_id)]
        ops += [append(journal(1, 1, "x", "y", run_id=run_id)), cancel(run_id, CancelReason.OPERATOR)]
        ops += [claim(1, "b", run_id), append(live(3, 1, "stale", run_id=run_id)), finish(3, 2, run_id=run_id)]
        ops += [finish(3, 2, Status.ABORTED, run_id), finish(3, 2, Status.ABORTED, run_id)]
    return ops
