"""Logs go when their time is over, transcripts later, records never; nothing that is the only copy before its time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from runtime.core.ops import (
    Appended,
    Attach,
    Closed,
    Created,
    Done,
    Finished,
    OpenSupervisor,
    SupervisorStale,
    TooManyBytes,
)
from runtime.core.reap_ops import Forget, LogDropped, PruneLog, ReapStage
from runtime.core.record import Kept, Status
from runtime.ports import Store
from runtime.testing.sample_ops import RUN, append, create, finish, live
from runtime.testing.store_cases.reaping import account, due
from runtime.testing.store_cases.shard_driver import ShardDriver

SAID = b'{"messages":[]}'
CHUNKS = 9  # of a log, each a batch of its own, beside `run.accepted` and the end


def prune(ended_before: int, run_id: str = RUN, supervisor: int = 1, retention_ms: int = 0) -> PruneLog:
    """Return what gives up a log."""
    return PruneLog(run_id=run_id, supervisor_epoch=supervisor, ended_before=ended_before, retention_ms=retention_ms)


def dropped(run_id: str = RUN, supervisor: int = 1) -> LogDropped:
    """Return what closes the removal of a log."""
    return LogDropped(run_id=run_id, supervisor_epoch=supervisor)


def forget(ended_before: int, run_id: str = RUN, supervisor: int = 1, retention_ms: int = 0) -> Forget:
    """Return what removes a transcript."""
    return Forget(run_id=run_id, supervisor_epoch=supervisor, ended_before=ended_before, retention_ms=retention_ms)


def ended(shard: ShardDriver, transcript: bytes | None = SAID, run_id: str = RUN, thread_id: str = "thread-1") -> int:
    """Let a watched run have a log and end; return when that was."""
    shard.do(OpenSupervisor(claimant="s"))
    shard.start(run_id, thread_id)
    shard.do(Attach(run_id=run_id))
    for seq in range(1, 1 + CHUNKS):
        key = f"key-{seq}" if seq % 2 else None
        shard.ask(append(live(seq, 1, f"chunk {seq}", run_id=run_id, key=key)), Appended)
    end = finish(1 + CHUNKS, 1, run_id=run_id, stderr=b"why", transcript=transcript)
    at = shard.ask(end, Finished).head.finished_at
    assert at is not None
    return at


def drop_all(shard: ShardDriver, run_id: str = RUN) -> None:
    """Remove a log that was given up, to its end."""
    while shard.store.drop_log(run_id):
        pass


class PruneCases:
    """What is removed, when, and in which order."""

    def test_a_log_is_given_up_when_its_time_is_over_and_not_before(self, shard: ShardDriver) -> None:
        at = ended(shard)
        assert due(shard, ReapStage.PRUNE, at - 1) == []
        assert due(shard, ReapStage.PRUNE, at) == [RUN]
        assert not shard.refused(prune(at - 1), Done).changed
        marked = shard.ask(prune(at), Done)
        assert marked.changed
        assert marked.head == shard.head()
        assert marked.head.kept is Kept.DROPPING
        assert (due(shard, ReapStage.PRUNE), due(shard, ReapStage.DROP)) == ([], [RUN])
        assert not shard.refused(prune(at), Done).changed

    def test_who_asks_with_a_clock_that_is_ahead_removes_nothing_before_its_time(self, shard: ShardDriver) -> None:
        at, month = ended(shard), 30 * 86_400_000
        ended(shard, None, "run-2", "thread-2")
        assert not shard.refused(prune(1 << 50, retention_ms=month), Done).changed
        assert not shard.refused(forget(1 << 50, "run-2", retention_ms=month), Done).changed
        shard.now_ms = at + month - 2
        assert not shard.refused(prune(1 << 50, retention_ms=month), Done).changed
        assert shard.ask(prune(1 << 50, retention_ms=month), Done).changed  # a millisecond later

    def test_a_log_of_which_some_is_left_is_not_gone_whoever_says_so(self, shard: ShardDriver) -> None:
        shard.do(prune(ended(shard)))
        while shard.log():
            assert not shard.refused(dropped(), Done).changed
            assert due(shard, ReapStage.DROP) == [RUN]
            shard.store.drop_log(RUN)
        assert shard.ask(dropped(), Done).changed

    def test_a_run_that_goes_on_or_waits_for_an_answer_loses_nothing(self, shard: ShardDriver) -> None:
        shard.do(OpenSupervisor(claimant="s"))
        shard.start()
        shard.start("run-2", "thread-2")
        shard.ask(finish(1, 1, Status.INTERRUPTED, "run-2", transcript=SAID), Finished)
        for run_id in (RUN, "run-2"):
            for op in (prune(1 << 50, run_id), forget(1 << 50, run_id), dropped(run_id)):
                assert not shard.refused(op, Done).changed
            assert shard.store.drop_log(run_id) == 0
            assert shard.log(run_id)

    def test_a_run_is_told_of_before_it_loses_anything(self, shard: ShardDriver) -> None:
        shard.do(OpenSupervisor(claimant="s"))
        shard.start("run-2", "thread-2")
        shard.ask(finish(1, 1, run_id="run-2", transcript=SAID, destroy_pending=False), Finished)
        assert not shard.refused(prune(1 << 50, "run-2"), Done).changed
        assert shard.ask(account("run-2"), Done).changed
        assert shard.ask(prune(1 << 50, "run-2"), Done).changed

    def test_a_log_is_removed_from_its_end_in_bounded_pieces(self, shard: ShardDriver) -> None:
        shard.do(prune(ended(shard)))
        whole = shard.log()
        lengths = [len(whole)]
        while (left := shard.store.drop_log(RUN)) > 0:
            lengths.append(left)
            assert shard.log() == whole[:left]
            assert lengths[-1] < lengths[-2]
        assert shard.log() == []
        assert shard.store.drop_log(RUN) == 0

    def test_only_a_log_that_was_given_up_is_removed(self, shard: ShardDriver) -> None:
        ended(shard)
        ended(shard, run_id="run-2", thread_id="thread-2")
        shard.do(prune(1 << 50, "run-2"))
        before = shard.log()
        assert [shard.store.drop_log(run_id) for run_id in (RUN, "nobody")] == [0, 0]
        assert shard.log() == before
        drop_all(shard, "run-2")
        assert (shard.log(), shard.log("run-2")) == (before, [])

    def test_the_transcript_and_the_record_stay_when_the_log_is_gone(self, shard: ShardDriver) -> None:
        shard.do(prune(ended(shard)))
        drop_all(shard)
        before = shard.head()
        done = shard.ask(dropped(), Done)
        assert done.changed
        assert done.head == before.with_(kept=Kept.TRANSCRIPT)
        assert (shard.store.read_transcript(RUN), shard.store.read_stderr(RUN)) == (SAID, b"why")
        assert [due(shard, stage) for stage in ReapStage] == [[], [], [], [], [RUN], []]
        assert not shard.refused(dropped(), Done).changed

    def test_a_transcript_goes_in_its_own_time_and_the_record_stays(self, shard: ShardDriver) -> None:
        at = ended(shard)
        shard.do(prune(at))
        assert not shard.refused(forget(1 << 50), Done).changed  # its log is still being removed
        drop_all(shard)
        shard.do(dropped())
        assert not shard.refused(forget(at - 1), Done).changed
        done = shard.ask(forget(at), Done)
        assert (done.changed, done.head.kept) == (True, Kept.RECORD)
        assert (shard.store.read_transcript(RUN), shard.store.read_stderr(RUN)) == (None, None)
        assert shard.head() == done.head
        assert [due(shard, stage) for stage in ReapStage] == [[], [], [], [], [], []]
        assert not shard.refused(forget(1 << 50), Done).changed

    def test_a_log_that_is_the_only_copy_is_kept_as_long_as_transcripts(self, shard: ShardDriver) -> None:
        at = ended(shard, transcript=None)
        assert due(shard, ReapStage.PRUNE) == []
        assert not shard.refused(prune(1 << 50), Done).changed
        assert due(shard, ReapStage.FORGET, at) == [RUN]
        assert shard.ask(forget(at), Done).head.kept is Kept.DROPPING
        assert shard.store.read_stderr(RUN) == b"why"
        drop_all(shard)
        assert shard.ask(dropped(), Done).head.kept is Kept.RECORD
        assert shard.store.read_stderr(RUN) is None

    def test_a_log_that_is_given_up_counts_no_more_against_its_owner(self, shard: ShardDriver) -> None:
        at = ended(shard)
        held = shard.head().log_bytes
        hers = create("run-2", "thread-2", owner_max_bytes=held)
        shard.refused(hers, TooManyBytes)
        shard.ask(prune(at), Done)
        shard.ask(msgspec.structs.replace(hers, owner_max_bytes=1), Created)
        shard.refused(create("run-3", "thread-3", owner_max_bytes=shard.head("run-2").log_bytes), TooManyBytes)

    def test_only_the_newest_supervisor_prunes(self, shard: ShardDriver) -> None:
        at = ended(shard)
        shard.do(OpenSupervisor(claimant="another"))
        for op in (prune(at), dropped(), forget(at)):
            assert shard.refused(op, SupervisorStale).current_epoch == 2
        assert shard.ask(prune(at, supervisor=2), Done).changed

    def test_a_late_repeat_of_a_chunk_writes_nothing_into_a_log_that_is_gone(self, shard: ShardDriver) -> None:
        shard.do(prune(ended(shard)))
        drop_all(shard)
        shard.refused(append(live(1, 1, "chunk 1", key="key-1")), Closed)
        assert shard.ask(finish(1 + CHUNKS, 1, stderr=b"why", transcript=SAID), Finished).repeat
        assert shard.log() == []

    @pytest.mark.parametrize("pieces", [0, 1, 2])
    def test_whoever_comes_in_the_middle_goes_on(
        self, shard: ShardDriver, make_store: Callable[[], Store], pieces: int
    ) -> None:
        shard.do(prune(ended(shard)))
        for _ in range(pieces):
            shard.store.drop_log(RUN)
        again = ShardDriver(make_store(), shard.now_ms)
        assert again.head().kept is Kept.DROPPING
        assert due(again, ReapStage.DROP) == [RUN]
        drop_all(again)
        assert again.ask(dropped(), Done).head.kept is Kept.TRANSCRIPT
        assert again.log() == []

    def test_a_thread_goes_on_behind_a_run_that_is_only_a_record(self, shard: ShardDriver) -> None:
        at = ended(shard)
        shard.do(prune(at))
        drop_all(shard)
        shard.do(dropped(), forget(at))
        shard.ask(create("run-2"), Created)
        assert [head.run_id for head, _ in shard.store.list_thread("owner", "thread-1")] == [RUN, "run-2"]
