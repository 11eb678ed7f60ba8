"""A run has one checkpoint, which came with an append and lives and dies with what that append stands for (P3, P25)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runtime.core.checkpoint import MAX_STATE_BYTES
from runtime.core.ops import Appended, Claimed, Closed, LogFull, SeqConflict, Superseded
from runtime.core.record import Status
from runtime.ports import Store
from runtime.testing.sample_ops import RUN, append, checkpoint, claim, finish, journal, live
from runtime.testing.store_cases.shard_driver import ShardDriver


class CheckpointCases:
    """Checkpoints: what is stored, what is refused with its append, and when there is none."""

    def test_a_run_has_no_checkpoint_before_one_comes(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(journal(1, 1, "a")))
        assert shard.store.read_checkpoint(RUN) is None
        assert shard.store.read_checkpoint("nobody") is None

    def test_a_checkpoint_comes_back_as_it_was(self, shard: ShardDriver) -> None:
        shard.start()
        batch = journal(1, 1, "a", "b")
        mark = checkpoint(batch, translator=bytes(range(256)) * (MAX_STATE_BYTES >> 8), position=2**40)
        appended = shard.ask(append(batch, checkpoint=mark), Appended)
        assert appended.head == shard.head()
        assert shard.store.read_checkpoint(RUN) == mark

    def test_the_newest_takes_the_place_of_the_one_before(self, shard: ShardDriver) -> None:
        shard.start()
        batches = [journal(1, 1, "a"), journal(2, 1, "b"), journal(3, 1, "c")]
        marks = [checkpoint(batch, translator=b"%d" % batch.seq) for batch in batches]
        first, *rest = (append(batch, 0, mark) for batch, mark in zip(batches, marks, strict=True))
        shard.do(first)
        assert shard.store.read_checkpoint(RUN) == marks[0]
        shard.do(*rest)
        assert shard.store.read_checkpoint(RUN) == marks[2]
        shard.do(append(journal(4, 1, "d")))
        assert shard.store.read_checkpoint(RUN) == marks[2]

    def test_a_refused_append_brings_none(self, shard: ShardDriver) -> None:
        shard.start()
        kept = journal(1, 1, "a")
        shard.do(append(kept, checkpoint=checkpoint(kept)))
        gap, full = journal(9, 1, "b"), journal(2, 1, "b")
        shard.refused(append(gap, checkpoint=checkpoint(gap)), SeqConflict)
        shard.refused(append(full, max_log_bytes=1, checkpoint=checkpoint(full)), LogFull)
        assert shard.store.read_checkpoint(RUN) == checkpoint(kept)

    def test_a_superseded_driver_leaves_none(self, shard: ShardDriver) -> None:
        shard.start()
        mine, late = journal(1, 1, "a"), journal(2, 1, "late")
        shard.do(append(mine, checkpoint=checkpoint(mine)))
        shard.ask(claim(1, "next"), Claimed)
        shard.refused(append(late, checkpoint=checkpoint(late, translator=b"late")), Superseded)
        shard.refused(append(mine, checkpoint=checkpoint(mine, translator=b"other")), Superseded)
        assert shard.store.read_checkpoint(RUN) == checkpoint(mine)
        theirs = journal(2, 2, "b")
        shard.ask(append(theirs, checkpoint=checkpoint(theirs)), Appended)
        assert shard.store.read_checkpoint(RUN) == checkpoint(theirs)

    def test_a_repeat_of_its_append_changes_nothing(self, shard: ShardDriver) -> None:
        shard.start()
        first, second = journal(1, 1, "a"), journal(2, 1, "b")
        shard.do(append(first, checkpoint=checkpoint(first)), append(second, checkpoint=checkpoint(second)))
        for batch in (first, second):
            assert shard.ask(append(batch, checkpoint=checkpoint(batch)), Appended).repeat
            assert shard.ask(append(batch), Appended).repeat
        assert shard.store.read_checkpoint(RUN) == checkpoint(second)

    @pytest.mark.parametrize("changes", [{"seq": 1}, {"seq": 3}, {"epoch": 0}, {"epoch": 2}, {"run_id": "run-2"}])
    def test_one_of_another_place_is_refused_with_its_append(self, shard: ShardDriver, changes: dict[str, Any]) -> None:
        shard.start()
        batch = journal(1, 1, "a")
        shard.refused(append(batch, checkpoint=checkpoint(batch, **changes)), SeqConflict)
        assert shard.store.read_checkpoint(RUN) is None

    def test_a_live_chunk_completes_no_line(self, shard: ShardDriver) -> None:
        shard.start()
        batch = live(1, 1, "a", key="k")
        shard.refused(append(batch, checkpoint=checkpoint(batch)), SeqConflict)
        assert shard.store.read_checkpoint(RUN) is None

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.INTERRUPTED])
    def test_it_is_gone_with_the_finish(self, shard: ShardDriver, status: Status) -> None:
        shard.start()
        batch = journal(1, 1, "a")
        shard.do(append(batch, checkpoint=checkpoint(batch)), finish(2, 1, status))
        assert shard.store.read_checkpoint(RUN) is None
        late = journal(3, 1, "late")
        shard.refused(append(late, checkpoint=checkpoint(late)), Closed)
        assert shard.store.read_checkpoint(RUN) is None

    def test_a_refused_finish_leaves_it(self, shard: ShardDriver) -> None:
        shard.start()
        batch = journal(1, 1, "a")
        shard.do(append(batch, checkpoint=checkpoint(batch)))
        shard.refused(finish(9, 1), SeqConflict)
        assert shard.store.read_checkpoint(RUN) == checkpoint(batch)

    def test_each_run_has_its_own(self, shard: ShardDriver) -> None:
        shard.start()
        shard.start("run-2", "thread-2")
        one, two = journal(1, 1, "a"), journal(1, 1, "b", run_id="run-2")
        shard.do(append(one, checkpoint=checkpoint(one)), append(two, checkpoint=checkpoint(two, translator=b"2")))
        shard.end("run-2")
        assert shard.store.read_checkpoint(RUN) == checkpoint(one)
        assert shard.store.read_checkpoint("run-2") is None

    def test_a_successor_of_the_shard_finds_it(self, shard: ShardDriver, make_store: Callable[[], Store]) -> None:
        shard.start()
        batch = journal(1, 1, "a")
        shard.do(append(batch, checkpoint=checkpoint(batch)))
        again = ShardDriver(make_store(), shard.now_ms)
        assert again.store.read_checkpoint(RUN) == checkpoint(batch)
