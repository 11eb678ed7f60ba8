"""A run that answers an interrupted one takes its place in one transaction (P23)."""

from __future__ import annotations

from runtime.core.ops import Create, Created, DigestDiffers, Joined, NothingToResume, ThreadBusy
from runtime.core.record import Status
from runtime.testing.sample_ops import OWNER, RUN, THREAD, cancel, create, finish
from runtime.testing.store_cases.shard_driver import ShardDriver


def answer(run_id: str = "run-2", thread_id: str = THREAD, max_runs: int = 0, digest: str = "an answer") -> Create:
    """Return the creation of a run that resumes."""
    return create(run_id, thread_id, resumes=True, max_runs=max_runs, digest=digest)


class ResumeCases:
    """Resuming: what becomes of the interrupted run, and when there is none."""

    def interrupted(self, shard: ShardDriver) -> None:
        """Bring RUN to where it asks."""
        shard.start()
        shard.do(finish(1, 1, Status.INTERRUPTED, transcript=b"asks"))

    def test_the_interrupted_run_is_completed_and_the_new_one_has_its_thread(self, shard: ShardDriver) -> None:
        self.interrupted(shard)
        before = shard.head()
        created = shard.ask(answer(), Created)
        assert not created.head.queued
        assert created.resumed == shard.head()
        assert created.resumed.status is Status.COMPLETED
        assert created.resumed.finished_at == shard.now_ms
        assert before.with_(status=Status.COMPLETED, finished_at=shard.now_ms) == created.resumed
        assert len(shard.log()) == before.next_seq
        assert shard.store.read_transcript(RUN) == b"asks"
        active = shard.store.find_active(OWNER, THREAD)
        assert active is not None
        assert active.run_id == "run-2"
        assert [head.run_id for head in shard.store.list_unfinished(0)] == ["run-2"]

    def test_a_repeat_joins_and_another_body_does_not(self, shard: ShardDriver) -> None:
        self.interrupted(shard)
        shard.ask(answer(), Created)
        shard.ask(answer(), Joined)
        shard.refused(answer(digest="another"), DigestDiffers)
        assert shard.head().status is Status.COMPLETED

    def test_only_one_of_two_answers_is_taken(self, shard: ShardDriver) -> None:
        self.interrupted(shard)
        outcomes = shard.do(answer(), answer("run-3"))
        assert [type(outcome) for outcome in outcomes] == [Created, NothingToResume]

    def test_without_an_interrupted_run_there_is_nothing_to_resume(self, shard: ShardDriver) -> None:
        shard.refused(answer(thread_id="empty"), NothingToResume)
        shard.start()
        shard.refused(answer(), NothingToResume)
        shard.end()
        shard.refused(answer(), NothingToResume)

    def test_an_interrupted_run_that_is_being_ended_is_not_resumed(self, shard: ShardDriver) -> None:
        self.interrupted(shard)
        shard.do(cancel())
        shard.refused(answer(), NothingToResume)
        assert shard.head().status is Status.INTERRUPTED

    def test_a_message_without_an_answer_meets_a_busy_thread(self, shard: ShardDriver) -> None:
        self.interrupted(shard)
        assert shard.refused(create("run-2"), ThreadBusy).active_run_id == RUN

    def test_who_waits_for_the_thread_waits_on(self, shard: ShardDriver) -> None:
        self.interrupted(shard)
        shard.enqueue("run-3")
        assert not shard.ask(answer(), Created).head.queued
        assert shard.head("run-3").queued

    def test_an_answer_is_taken_where_there_is_room_for_no_other_run(self, shard: ShardDriver) -> None:
        self.interrupted(shard)
        shard.ask(answer(max_runs=1), Created)
