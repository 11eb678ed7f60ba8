"""A store that lacks what was acknowledged is raised to another generation, and everybody is superseded (P10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.core.ops import Appended, Claimed, Created, OpenSupervisor, Superseded, SupervisorOpened
from runtime.core.record import Head, Launch, Status
from runtime.errors import ShardSuperseded
from runtime.ports import Store
from runtime.testing.sample_ops import RUN, append, claim, create, finish, live, text
from runtime.testing.store_cases.shard_driver import ShardDriver

LATER_MS = 5_000_000


class LossCases:
    """`raise_generation`: what it changes, and what it leaves alone."""

    def test_a_log_begins_in_generation_0(self, shard: ShardDriver) -> None:
        assert shard.start().generation == 0

    def test_a_raise_supersedes_every_shard(self, shard: ShardDriver, make_store: Callable[[], Store]) -> None:
        shard.start()
        raised = shard.store.raise_generation(LATER_MS)
        with pytest.raises(ShardSuperseded) as refusal:
            shard.do(append(live(1, 1, "late")))
        assert refusal.value.current_epoch > shard.epoch
        assert ShardDriver(make_store()).epoch > raised

    def test_a_raise_supersedes_the_driver_of_a_run_that_goes_on(
        self, shard: ShardDriver, make_store: Callable[[], Store]
    ) -> None:
        shard.start()
        shard.do(append(live(1, 1, "a")))
        raised = shard.store.raise_generation(LATER_MS)
        after = ShardDriver(make_store(), LATER_MS)
        head = after.head()
        assert (head.generation, head.next_seq, head.driver_epoch) == (raised, 2, raised)
        after.refused(append(live(2, 1, "late")), Superseded)
        after.refused(claim(1, "a successor that was decided before"), Superseded)
        epoch = after.ask(claim(raised, "successor"), Claimed).head.driver_epoch
        assert epoch == raised + 1
        after.ask(append(live(2, epoch, "b")), Appended)
        assert after.log()[1:] == [text("a"), text("b")]
        assert after.head().generation == raised

    def test_a_raise_leaves_what_has_ended_as_it_is(self, shard: ShardDriver, make_store: Callable[[], Store]) -> None:
        shard.start()
        ended = shard.end()
        shard.store.raise_generation(LATER_MS)
        assert ShardDriver(make_store()).head() == ended

    def test_a_log_that_is_closed_keeps_its_offsets_while_its_run_waits_for_an_answer(
        self, shard: ShardDriver, make_store: Callable[[], Store]
    ) -> None:
        shard.start()
        before = shard.end(status=Status.INTERRUPTED)
        raised = shard.store.raise_generation(LATER_MS)
        head = ShardDriver(make_store()).head()
        assert (head.generation, head.next_seq) == (0, before.next_seq)
        assert head.driver_epoch == raised

    def test_what_is_created_later_is_of_the_generation_of_then(
        self, shard: ShardDriver, make_store: Callable[[], Store]
    ) -> None:
        raised = shard.store.raise_generation(LATER_MS)
        after = ShardDriver(make_store(), LATER_MS)
        assert after.ask(create(), Created).head.generation == raised
        assert after.head().generation == raised

    def test_a_run_that_is_made_again_gives_no_epoch_of_a_life_that_was_lost(
        self, shard: ShardDriver, make_store: Callable[[], Store]
    ) -> None:
        raised = shard.store.raise_generation(LATER_MS)
        after = ShardDriver(make_store(), LATER_MS)
        assert after.ask(create(), Created).head.driver_epoch == 0
        assert after.refused(append(live(1, 1, "late")), Superseded).current_epoch == raised
        claimed = after.ask(claim(0, "driver"), Claimed).head
        assert claimed.driver_epoch == raised + 1
        assert after.refused(claim(0, "driver"), Claimed).head == claimed
        after.refused(claim(0, "another"), Superseded)
        for given_before in (1, raised):
            after.refused(append(live(1, given_before, "late")), Superseded)
        successor = after.ask(claim(claimed.driver_epoch, "successor"), Claimed).head
        assert successor.driver_epoch == raised + 2

    def test_a_run_that_was_claimed_may_have_been_launched_since(
        self, shard: ShardDriver, make_store: Callable[[], Store]
    ) -> None:
        shard.start()
        shard.enqueue("run-2")
        for later in (LATER_MS, 2 * LATER_MS):
            shard.store.raise_generation(later)
            shard = ShardDriver(make_store(), later)
            assert [shard.head(run_id).launch for run_id in (RUN, "run-2")] == [Launch.INTENDED, Launch.NONE]

    def test_a_raise_supersedes_the_supervisor(self, shard: ShardDriver, make_store: Callable[[], Store]) -> None:
        first = shard.ask(OpenSupervisor(claimant="s"), SupervisorOpened).epoch
        raised = shard.store.raise_generation(LATER_MS)
        after = ShardDriver(make_store())
        assert after.ask(OpenSupervisor(claimant="s"), SupervisorOpened).epoch > max(first, raised)

    def test_generations_grow_and_pass_what_they_must(self, shard: ShardDriver) -> None:
        store = shard.store
        first = store.raise_generation(LATER_MS)
        assert first == LATER_MS
        second = store.raise_generation(1)
        assert second == first + 1
        assert store.raise_generation(1, above=LATER_MS * 2) == LATER_MS * 2 + 1

    def test_a_raise_counts_as_a_write_of_each_record(
        self, shard: ShardDriver, make_store: Callable[[], Store]
    ) -> None:
        before = shard.start()
        shard.store.raise_generation(LATER_MS)
        after = ShardDriver(make_store())
        assert after.store.list_changed(0, {RUN: before.version}) == [after.head()]
        assert after.head().version == before.version + 1
        taken = after.ask(claim(after.head().driver_epoch, "successor"), Claimed).head
        after.do(finish(1, taken.driver_epoch))
        ended: Head = after.head()
        assert ended.status is Status.COMPLETED
