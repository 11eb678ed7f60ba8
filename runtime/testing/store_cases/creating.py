"""Runs are created once, and a thread has one active run (P2, P12, I9)."""

from __future__ import annotations

from runtime.core import chunk
from runtime.core.ops import (
    Appended,
    Create,
    Created,
    DigestDiffers,
    Finished,
    Joined,
    ThreadBusy,
    TooManyBytes,
    TooManyRuns,
)
from runtime.core.record import CancelReason, Status
from runtime.testing.sample_ops import OWNER, RUN, THREAD, append, cancel, create, finish, live, spec
from runtime.testing.store_cases.shard_driver import ShardDriver


class CreateCases:
    """Creation, repetition, threads and queues."""

    def test_a_new_run_is_stored_with_its_first_chunk(self, shard: ShardDriver) -> None:
        created = shard.ask(create(), Created)
        assert shard.store.read_run(RUN) == (created.head, spec())
        assert shard.log() == [chunk.run_accepted()]
        head = created.head
        assert (head.status, head.driver_epoch, head.next_seq, head.queued) == (Status.RUNNING, 0, 1, False)
        assert (head.created_at, head.detached_since, head.claims) == (shard.now_ms, shard.now_ms, ())
        assert created.cancelled_previous is None

    def test_the_same_request_again_joins_and_changes_nothing(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")))
        before = shard.head()
        assert shard.refused(create(), Joined).head == before
        assert shard.refused(create(spec=spec("other"), on_busy="cancel-previous"), Joined).head == before
        assert shard.store.read_run(RUN) == (before, spec())

    def test_the_same_request_joins_a_run_that_has_ended(self, shard: ShardDriver) -> None:
        shard.start()
        ended = shard.end()
        assert shard.refused(create(), Joined).head == ended

    def test_a_run_id_is_not_reused_by_another_request(self, shard: ShardDriver) -> None:
        shard.start()
        assert shard.refused(create(digest="other"), DigestDiffers).run_id == RUN
        assert shard.refused(create(owner="stranger", digest=shard.head().digest), DigestDiffers).run_id == RUN

    def test_a_thread_has_one_active_run(self, shard: ShardDriver) -> None:
        shard.ask(create(), Created)
        refusal = shard.refused(create("run-2"), ThreadBusy)
        assert (refusal.thread_id, refusal.active_run_id) == (THREAD, RUN)
        assert shard.store.read_run("run-2") is None
        assert shard.store.list_thread(OWNER, THREAD) == [(shard.head(), spec())]

    def test_two_creations_in_one_transaction_see_each_other(self, shard: ShardDriver) -> None:
        outcomes = shard.do(create(), create("run-2"), create(), create("run-3", "thread-3"))
        assert [type(outcome) for outcome in outcomes] == [Created, ThreadBusy, Joined, Created]

    def test_a_thread_of_another_owner_is_another_thread(self, shard: ShardDriver) -> None:
        shard.ask(create(), Created)
        shard.ask(create("run-2", owner="stranger"), Created)
        shard.ask(create("run-3", "thread-3"), Created)

    def test_a_thread_is_free_when_its_run_has_ended(self, shard: ShardDriver) -> None:
        for status in (Status.COMPLETED, Status.FAILED):
            shard.start(status.value)
            shard.end(status.value, status)
        assert not shard.ask(create(), Created).head.queued

    def test_an_interrupted_run_keeps_its_thread(self, shard: ShardDriver) -> None:
        shard.start()
        shard.end(status=Status.INTERRUPTED)
        assert shard.refused(create("run-2"), ThreadBusy).active_run_id == RUN

    def test_enqueue_waits_behind_the_active_run(self, shard: ShardDriver) -> None:
        shard.start()
        queued = shard.enqueue("run-2")
        assert (queued.status, queued.queued_at, queued.active) == (Status.RUNNING, shard.now_ms, False)
        assert shard.log("run-2") == [chunk.run_accepted()]
        active = shard.store.find_active(OWNER, THREAD)
        assert active == shard.head()

    def test_enqueue_on_a_free_thread_does_not_wait(self, shard: ShardDriver) -> None:
        assert not shard.ask(create(on_busy="enqueue"), Created).head.queued

    def test_cancel_previous_cancels_once_and_queues(self, shard: ShardDriver) -> None:
        shard.start()
        created = shard.ask(create("run-2", on_busy="cancel-previous"), Created)
        assert (created.head.queued, created.cancelled_previous) == (True, RUN)
        assert (shard.head().cancel_requested, shard.head().cancel_reason) == (True, CancelReason.USER)
        assert shard.head().status is Status.RUNNING
        after = shard.head()
        again = shard.ask(create("run-3", on_busy="cancel-previous"), Created)
        assert (again.head.queued, again.cancelled_previous) == (True, None)
        assert shard.head() == after

    def test_a_run_behind_a_cancelled_one_is_queued_and_never_refused(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(cancel())
        assert shard.ask(create("run-2", on_busy="reject"), Created).head.queued

    def test_the_bound_on_an_owners_runs_counts_hers_alone(self, shard: ShardDriver) -> None:
        shard.start(owner="ann")
        shard.start("run-2", "thread-2", owner="bob")
        hers = {"owner": "ann", "owner_max_runs": 2}
        outcomes = shard.do(create("run-3", "thread-3", **hers), create("run-4", "thread-4", **hers))
        assert [type(outcome) for outcome in outcomes] == [Created, TooManyRuns]
        refusal = shard.refused(create("run-5", "thread-5", **hers, max_runs=4), TooManyRuns)
        assert (refusal.limit, refusal.of_owner) == (2, True)
        assert not shard.refused(create("run-5", "thread-5", **hers, max_runs=3), TooManyRuns).of_owner
        shard.ask(create("run-3", "thread-3", owner="ann", owner_max_runs=1), Joined)
        shard.ask(create("run-6", "thread-6", owner="bob", owner_max_runs=2), Created)
        shard.end()
        shard.ask(create("run-5", "thread-5", **hers), Created)

    def test_the_bound_on_an_owners_bytes_counts_what_her_logs_hold_ended_or_not(self, shard: ShardDriver) -> None:
        shard.start(owner="ann")
        shard.start("run-2", "thread-2", owner="ann")
        shard.start("bobs", "bobs", owner="bob")
        runs = [RUN, "run-2"]

        def check() -> None:
            batches = (batch for run_id in runs for batch in shard.store.read_batches(run_id, 0, 1 << 40))
            held = sum(len(batch.data) for batch in batches)
            new = f"run-{len(runs) + 1}"
            assert shard.refused(_hers(new, held), TooManyBytes).limit == held
            shard.ask(_hers(new, held + 1), Created)
            runs.append(new)

        check()
        shard.do(append(live(1, 1, "x" * 100)))
        check()
        shard.end()
        check()
        shard.do(append(live(1, 1, "y", run_id="run-2")))
        shard.do(cancel("run-2"), finish(2, 1, Status.ABORTED, "run-2"))
        check()
        shard.end("bobs")
        check()
        shard.ask(create(owner="ann", owner_max_bytes=1), Joined)
        shard.ask(create("cids", "cids", owner="cid", owner_max_bytes=1), Created)

    def test_what_the_same_group_has_stored_counts_too(self, shard: ShardDriver) -> None:
        shard.start(owner="ann")
        held = shard.head().log_bytes
        group = append(live(1, 1, "x")), _hers("run-2", held + 1), _hers("run-3", 1 << 20), _hers("run-4", 1 << 20)
        assert [type(outcome) for outcome in shard.do(*group)] == [Appended, TooManyBytes, Created, Created]
        assert [type(outcome) for outcome in shard.do(finish(2, 1), _hers("run-5", held + 1))] == [
            Finished,
            TooManyBytes,
        ]

    def test_the_bound_on_runs_counts_all_that_are_not_terminal(self, shard: ShardDriver) -> None:
        shard.start()
        shard.enqueue("run-2")
        assert shard.refused(create("run-3", "thread-3", max_runs=2), TooManyRuns).limit == 2
        shard.ask(create("run-2", on_busy="enqueue", max_runs=1), Joined)
        shard.end()
        outcomes = shard.do(create("run-3", "thread-3", max_runs=2), create("run-4", "thread-4", max_runs=2))
        assert [type(outcome) for outcome in outcomes] == [Created, TooManyRuns]
        shard.ask(create("run-5", "thread-5"), Created)


def _hers(run_id: str, limit: int) -> Create:
    return create(run_id, f"thread of {run_id}", owner="ann", owner_max_bytes=limit)
