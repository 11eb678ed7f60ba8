"""Each epoch is given to one process, once (P1, P2, I1)."""

from __future__ import annotations

from runtime.core.ops import AlreadyEnded, Claimed, NotClaimable, Note, Superseded, UnknownRun
from runtime.core.record import CancelReason, ClaimEnd, ClaimReason, Status
from runtime.testing.sample_ops import RUN, append, cancel, claim, create, finish, journal, live, spec
from runtime.testing.store_cases.shard_driver import ShardDriver


class ClaimCases:
    """The compare-and-set on the epoch, and what its answer holds."""

    def test_the_first_claim_takes_epoch_1(self, shard: ShardDriver) -> None:
        shard.do(create())
        claimed = shard.ask(claim(0, "a"), Claimed)
        assert claimed.head == shard.head()
        assert claimed.spec == spec()
        assert (claimed.head.driver_epoch, claimed.head.started_at) == (1, shard.now_ms)
        (entry,) = claimed.head.claims
        assert (entry.epoch, entry.claimant, entry.reason) == (1, claim(0, "a").claimant, ClaimReason.START)
        assert (entry.claimed_at, entry.first_append_at, entry.ended_at, entry.chunks) == (shard.now_ms, None, None, 0)

    def test_the_log_of_a_claim_is_what_is_stored_below_its_next_seq(self, shard: ShardDriver) -> None:
        shard.start()
        batches = [journal(1, 1, "a", "b"), live(3, 1, "c", key="k"), journal(4, 1, "d", start=200)]
        shard.do(*map(append, batches))
        claimed = shard.ask(claim(1, "b", reason=ClaimReason.DRIVER_LOST), Claimed)
        assert shard.store.read_batches(RUN, 0, 1 << 30)[1:] == batches
        assert claimed.batches == []  # a shard adds the first page
        assert claimed.head.next_seq == 5

    def test_the_answer_is_of_its_own_operation_within_the_transaction(self, shard: ShardDriver) -> None:
        shard.do(create())
        claimed, *_ = shard.do(claim(0), append(live(1, 1, "a")), append(live(2, 1, "b")))
        assert isinstance(claimed, Claimed)
        assert claimed.head.next_seq == 1

    def test_the_next_claim_ends_the_one_before(self, shard: ShardDriver) -> None:
        first = shard.start()
        shard.do(append(live(1, 1, "a", "b")))
        appended_at = shard.now_ms
        head = shard.ask(claim(1, "b", reason=ClaimReason.LEASE_EXPIRED), Claimed).head
        assert (head.driver_epoch, head.started_at) == (2, first.started_at)
        old, new = head.claims
        assert (old.chunks, old.first_append_at, old.ended_at) == (2, appended_at, shard.now_ms)
        assert (old.last_append_at, old.end) == (appended_at, ClaimEnd.SUPERSEDED)
        assert (new.epoch, new.reason, new.ended_at, new.end) == (2, ClaimReason.LEASE_EXPIRED, None, None)

    def test_a_claim_remembers_its_first_and_its_last_append(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")))
        first = shard.now_ms
        shard.do(append(live(2, 1, "b")))
        (entry,) = shard.head().claims
        assert (entry.first_append_at, entry.last_append_at, entry.chunks) == (first, shard.now_ms, 2)
        assert shard.now_ms > first

    def test_only_what_comes_of_its_journal_is_a_sign_of_the_agent_and_takeovers_do_not_forget_it(
        self, shard: ShardDriver
    ) -> None:
        shard.start()
        assert shard.head().heard_at is None
        shard.do(append(journal(1, 1, "a", start=7)))
        heard = shard.now_ms
        shard.do(append(live(2, 1, "b")), claim(1, "b"), append(live(3, 2, "c")))
        assert (shard.head().heard_at, shard.now_ms > heard) == (heard, True)
        shard.do(append(journal(4, 2, "d", start=9)))
        assert shard.head().heard_at == shard.now_ms

    def test_a_driver_that_hands_over_ends_its_claim_once_and_keeps_its_epoch(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(Note(run_id=RUN, epoch=1, handed_over=True))
        ended_at = shard.now_ms
        shard.do(Note(run_id=RUN, epoch=1, handed_over=True))
        (entry,) = shard.head().claims
        assert (entry.end, entry.ended_at) == (ClaimEnd.HANDED_OVER, ended_at)
        assert (shard.head().driver_epoch, shard.head().status) == (1, Status.RUNNING)
        old, new = shard.ask(claim(1, "b", reason=ClaimReason.DRAIN), Claimed).head.claims
        assert (old.end, old.ended_at, new.end) == (ClaimEnd.HANDED_OVER, ended_at, None)

    def test_a_superseded_driver_hands_nothing_over(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(claim(1, "b"))
        shard.refused(Note(run_id=RUN, epoch=1, handed_over=True), Superseded)
        assert shard.head().claims[-1].end is None

    def test_a_claim_that_expects_another_epoch_is_refused(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(claim(1, "b"))
        refusal = shard.refused(claim(0, "c"), Superseded)
        assert (refusal.run_id, refusal.held_epoch, refusal.current_epoch) == (RUN, 1, 2)
        assert shard.refused(claim(1, "c"), Superseded).current_epoch == 2
        assert shard.refused(claim(5, "c"), Superseded).current_epoch == 2

    def test_the_same_claim_again_gets_the_first_answer(self, shard: ShardDriver) -> None:
        shard.do(create())
        first = shard.ask(claim(0, "a"), Claimed)
        again = shard.refused(claim(0, "a"), Claimed)
        assert again.head == first.head
        shard.do(append(live(1, 1, "x")))
        late = shard.refused(claim(0, "a"), Claimed)
        assert late.head.driver_epoch == 1
        assert late.head.next_seq == 2

    def test_a_repeated_claim_is_refused_once_it_is_superseded(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(claim(1, "b"))
        assert shard.refused(claim(0, "driver"), Superseded).current_epoch == 2

    def test_of_two_claims_in_one_transaction_one_wins(self, shard: ShardDriver) -> None:
        shard.do(create())
        won, lost, repeat = shard.do(claim(0, "a"), claim(0, "b"), claim(0, "a"))
        assert isinstance(won, Claimed)
        assert isinstance(lost, Superseded)
        assert isinstance(repeat, Claimed)
        assert [entry.claimant.claimant for entry in shard.head().claims] == ["a"]

    def test_an_unknown_run_cannot_be_claimed(self, shard: ShardDriver) -> None:
        assert shard.refused(claim(0, run_id="nobody"), UnknownRun).run_id == "nobody"

    def test_an_ended_run_cannot_be_claimed(self, shard: ShardDriver) -> None:
        shard.start()
        shard.end(status=Status.FAILED)
        for reason in ClaimReason:
            assert shard.refused(claim(1, "b", reason=reason), AlreadyEnded).status is Status.FAILED

    def test_a_queued_run_is_claimed_only_to_be_ended(self, shard: ShardDriver) -> None:
        shard.start()
        shard.enqueue("run-2")
        shard.refused(claim(0, "b", "run-2"), NotClaimable)
        shard.do(cancel("run-2"))
        shard.refused(claim(0, "b", "run-2", ClaimReason.LEASE_EXPIRED), NotClaimable)
        assert shard.ask(claim(0, "b", "run-2", ClaimReason.CANCEL), Claimed).head.queued

    def test_an_interrupted_run_is_claimed_only_to_be_ended(self, shard: ShardDriver) -> None:
        shard.start()
        shard.end(status=Status.INTERRUPTED)
        shard.refused(claim(1, "b", reason=ClaimReason.ATTACH), NotClaimable)
        shard.do(cancel(reason=CancelReason.DETACHED_EXPIRED))
        shard.ask(claim(1, "b", reason=ClaimReason.REAP), Claimed)

    def test_after_a_claim_nothing_of_the_old_epoch_is_written(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")))
        shard.do(claim(1, "b"))
        for op in (append(live(2, 1, "late")), append(live(1, 1, "a")), finish(2, 1)):
            refusal = shard.refused(op, Superseded)
            assert (refusal.held_epoch, refusal.current_epoch) == (1, 2)
