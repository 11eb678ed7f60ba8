"""A log keeps its order of checks, its bytes and its bounds (P3, P7, P8)."""

from __future__ import annotations

import pytest

from runtime.core.ops import Append, Appended, Closed, LogFull, SeqConflict, Superseded, UnknownRun
from runtime.testing.sample_ops import RUN, append, claim, create, finish, journal, live, nothing, text
from runtime.testing.store_cases.shard_driver import ShardDriver


class AppendCases:
    """Appends: what is stored, what is a repeat, what is refused."""

    def test_an_append_stores_its_chunks_at_their_places(self, shard: ShardDriver) -> None:
        accepted = shard.start().log_bytes
        batch = live(1, 1, "a", "b")
        appended = shard.ask(append(batch), Appended)
        assert (appended.seq, appended.next_seq, appended.repeat) == (1, 3, False)
        assert appended.head == shard.head()
        assert shard.log()[1:] == [text("a"), text("b")]
        assert (appended.head.next_seq, appended.head.log_bytes) == (3, accepted + len(batch.data))
        entry = appended.head.claims[-1]
        assert (entry.chunks, entry.first_append_at) == (2, shard.now_ms)
        shard.do(append(live(3, 1, "c")))
        assert shard.head().claims[-1].first_append_at == entry.first_append_at
        assert shard.head().claims[-1].chunks == 3

    def test_a_batch_comes_back_as_it_was(self, shard: ShardDriver) -> None:
        shard.start()
        odd = "\u2028 \x00 \U0001f600"
        batches = [
            journal(1, 1, odd, "b", start=7),
            live(3, 1, odd * 30_000, key="emit-1"),
            journal(4, 1, *map(str, range(4096)), start=2**40),
        ]
        shard.do(*map(append, batches))
        assert shard.store.read_batches(RUN, 1, 1 << 30) == batches

    def test_nobody_writes_under_epoch_0(self, shard: ShardDriver) -> None:
        shard.do(create())
        assert shard.refused(append(live(1, 0, "a")), Superseded).current_epoch == 0

    def test_an_epoch_that_was_never_given_is_refused(self, shard: ShardDriver) -> None:
        shard.start()
        assert shard.refused(append(live(1, 2, "a")), Superseded).current_epoch == 1

    def test_an_unknown_run_takes_no_append(self, shard: ShardDriver) -> None:
        assert shard.refused(append(live(1, 1, "a", run_id="nobody")), UnknownRun).run_id == "nobody"
        assert shard.log("nobody") == []

    def test_a_repeat_gets_the_first_answer(self, shard: ShardDriver) -> None:
        shard.start()
        batches = [live(1, 1, "a", "b"), journal(3, 1, "c"), live(4, 1, "d")]
        shard.do(*map(append, batches))
        for batch in batches:
            again = shard.refused(append(batch), Appended)
            assert (again.seq, again.next_seq, again.repeat) == (batch.seq, batch.next_seq, True)

    def test_a_repeat_in_the_same_transaction_is_one(self, shard: ShardDriver) -> None:
        shard.start()
        first, again = shard.do(append(live(1, 1, "a")), append(live(1, 1, "a")))
        assert isinstance(first, Appended)
        assert isinstance(again, Appended)
        assert (first.repeat, again.repeat) == (False, True)
        assert shard.log()[1:] == [text("a")]

    def test_a_repeat_after_the_close_is_a_success(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")))
        shard.end()
        assert shard.refused(append(live(1, 1, "a")), Appended).repeat

    @pytest.mark.parametrize(
        "other",
        [
            live(1, 1, "b", "b"),
            live(1, 1, "a"),
            live(1, 1, "a", "b", "c"),
            journal(1, 1, "a", "b"),
        ],
        ids=["other bytes", "shorter", "longer", "other band"],
    )
    def test_another_batch_at_a_taken_place_is_a_conflict(self, shard: ShardDriver, other: object) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a", "b")))
        refusal = shard.refused(Append(batch=other), SeqConflict)  # type: ignore[arg-type]
        assert (refusal.seq, refusal.next_seq) == (1, 3)

    def test_the_same_bytes_under_another_epoch_are_no_repeat(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")), claim(1, "b"))
        assert shard.refused(append(live(1, 2, "a")), SeqConflict).next_seq == 2

    @pytest.mark.parametrize("seq", [0, 1, 3, 4, 10**15])
    def test_a_batch_must_continue_the_log(self, shard: ShardDriver, seq: int) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")))
        assert shard.refused(append(live(seq, 1, "x")), SeqConflict).next_seq == 2

    def test_an_empty_batch_is_a_conflict(self, shard: ShardDriver) -> None:
        shard.start()
        shard.refused(append(nothing(1, 1)), SeqConflict)

    def test_nothing_follows_the_end(self, shard: ShardDriver) -> None:
        shard.start()
        ended = shard.end()
        assert shard.refused(append(live(ended.next_seq, 1, "late")), Closed).run_id == RUN
        assert shard.refused(append(live(99, 1, "late")), Closed).run_id == RUN

    def test_the_epoch_is_checked_before_everything(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")), claim(1, "b"), finish(2, 2))
        for batch in (live(1, 1, "a"), live(3, 1, "late"), live(99, 1, "gap")):
            assert shard.refused(append(batch), Superseded).current_epoch == 2

    def test_a_key_finds_its_first_effect(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")), append(live(2, 1, "emitted", key="k")), append(live(3, 1, "b")))
        again = shard.refused(append(live(4, 1, "emitted again", key="k")), Appended)
        assert (again.seq, again.next_seq, again.repeat) == (2, 3, True)
        shard.do(claim(1, "b"))
        late = shard.refused(append(live(4, 2, "emitted", key="k")), Appended)
        assert (late.seq, late.repeat) == (2, True)
        assert not shard.ask(append(live(4, 2, "other", key="k2")), Appended).repeat
        shard.end()
        assert shard.refused(append(live(4, 2, "emitted", key="k")), Appended).seq == 2

    def test_a_key_belongs_to_its_run(self, shard: ShardDriver) -> None:
        shard.start()
        shard.start("run-2", "thread-2")
        one, two = shard.do(append(live(1, 1, "a", key="k")), append(live(1, 1, "a", run_id="run-2", key="k")))
        assert isinstance(one, Appended)
        assert isinstance(two, Appended)
        assert (one.repeat, two.repeat) == (False, False)

    def test_a_log_has_a_bound_in_bytes(self, shard: ShardDriver) -> None:
        shard.start()
        batch = live(1, 1, "a")
        bound = shard.head().log_bytes + len(batch.data)
        refusal = shard.refused(append(batch, max_log_bytes=bound - 1), LogFull)
        assert (refusal.run_id, refusal.limit) == (RUN, bound - 1)
        shard.ask(append(batch, max_log_bytes=bound), Appended)
        assert shard.refused(append(batch, max_log_bytes=1), Appended).repeat
