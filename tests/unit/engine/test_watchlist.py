"""Which unfinished runs need somebody, and since when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from unit.engine.hand_clock import HandClock

from runtime.core.record import Head, Status
from runtime.engine.leases import Leases
from runtime.engine.viewers import Viewers
from runtime.engine.watchlist import Watchlist
from runtime.errors import ShardSuperseded
from runtime.testing.sim_loop import elapse, play


def head(run_id: str = "run", **fields: Any) -> Head:
    return Head(run_id=run_id, thread_id="thread", owner="", digest="d", created_at=0, **fields)


class Acts:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.viewers = Viewers(self.clock)
        self.watchlist = Watchlist(self.clock, Leases(self.clock, 3.0, 10.0, 10.0), self.viewers)
        self.number = 0

    def sweep_for(self, seconds: float, **watching: int) -> None:
        """Let time pass with sweeps, and a gateway that counts."""
        for at in range(round(seconds / 0.25)):
            self.clock.now += 0.25
            self.watchlist.sweep(late_after_s=2.0)
            if at % 4 == 0:
                self.number += 1
                self.viewers.replace("gateway", self.number, watching)

    async def due(self) -> list[tuple[str, str, int]]:
        return [(due.head.run_id, due.why, due.head.driver_epoch) for due in await self.watchlist.due(0.0)]


def test_an_expired_lease_is_due_with_the_newest_head() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head(driver_epoch=1))
        acts.sweep_for(3.0)
        assert await acts.due() == []
        acts.sweep_for(0.25)
        assert await acts.due() == [("run", "lease_expired", 1)]

    play(1, acts())


def test_a_run_that_nobody_claimed_is_due() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head())
        acts.sweep_for(10.5)
        assert await acts.due() == [("run", "never_claimed", 0)]

    play(1, acts())


def test_a_new_epoch_gets_a_lease_of_its_own() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head(driver_epoch=1, version=1))
        acts.sweep_for(2.5)
        acts.watchlist.adopt(head(driver_epoch=2, version=2))
        acts.sweep_for(2.5)
        assert await acts.due() == []
        acts.sweep_for(1.0)
        assert await acts.due() == [("run", "lease_expired", 2)]

    play(1, acts())


def test_an_older_head_changes_nothing() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head(driver_epoch=2, version=2))
        acts.watchlist.adopt(head(driver_epoch=1, version=1))
        acts.sweep_for(3.5)
        assert await acts.due() == [("run", "lease_expired", 2)]

    play(1, acts())


def test_a_cancel_without_a_receipt_is_due_after_a_second_and_again() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head(driver_epoch=1, cancel_requested=True))
        acts.sweep_for(0.75)
        assert await acts.due() == []
        acts.sweep_for(0.25)
        assert await acts.due() == [("run", "cancel", 1)]
        acts.sweep_for(1.75)
        assert await acts.due() == []
        acts.sweep_for(0.25)
        assert await acts.due() == [("run", "cancel", 1)]

    play(1, acts())


def test_a_cancel_of_a_queued_run_is_due_at_once_and_a_queued_run_has_no_lease() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head(queued=True))
        acts.sweep_for(60.0)
        assert await acts.due() == []
        acts.watchlist.adopt(head(queued=True, cancel_requested=True, version=1))
        acts.sweep_for(0.25)
        assert await acts.due() == [("run", "cancel", 0)]

    play(1, acts())


def test_a_run_that_leaves_the_queue_is_due_at_once_and_has_a_lease() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head(queued=True))
        acts.watchlist.adopt(head(version=1))
        assert await acts.due() == [("run", "unqueued", 0)]
        acts.sweep_for(10.5)
        assert await acts.due() == [("run", "never_claimed", 0)]

    play(1, acts())


def test_a_run_that_ended_is_never_due() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head(driver_epoch=1, cancel_requested=True))
        acts.sweep_for(5.0)
        acts.watchlist.adopt(head(driver_epoch=1, status=Status.ABORTED, version=1))
        assert await acts.due() == []
        assert acts.watchlist.unfinished == 0

    play(1, acts())


def test_whoever_parks_is_woken_by_what_becomes_due() -> None:
    async def acts() -> None:
        acts = Acts()
        acts.watchlist.adopt(head(queued=True))
        parked = asyncio.create_task(acts.watchlist.due(25.0))
        await elapse(1.0)
        assert not parked.done()
        acts.watchlist.adopt(head(version=1))
        assert [due.why for due in await parked] == ["unqueued"]

    play(1, acts())


def test_a_superseded_shard_fails_whoever_parks() -> None:
    async def acts() -> None:
        acts = Acts()
        parked = asyncio.create_task(acts.watchlist.due(25.0))
        await elapse(1.0)
        acts.watchlist.fail(ShardSuperseded(0, 1, 2))
        with pytest.raises(ShardSuperseded):
            await parked
        with pytest.raises(ShardSuperseded):
            await acts.watchlist.due(25.0)

    play(1, acts())


def test_the_last_viewers_leaving_is_stamped_once() -> None:
    acts = Acts()
    acts.watchlist.adopt(head(driver_epoch=1))
    acts.sweep_for(10.0, run=1)
    assert acts.watchlist.detached() == []
    acts.sweep_for(2.0)
    assert [op.run_id for op in acts.watchlist.detached()] == ["run"]
    assert acts.watchlist.detached() == []
    acts.watchlist.detach_again()
    assert [op.since for op in acts.watchlist.detached()] == [acts.clock.wall_ms()]


def test_nobody_is_stamped_before_every_gateway_had_its_say() -> None:
    acts = Acts()
    acts.watchlist.adopt(head(driver_epoch=1))
    acts.sweep_for(4.0)
    assert acts.watchlist.detached() == []


def test_a_disconnect_counts_only_while_viewers_could_be_counted() -> None:
    acts = Acts()
    acts.watchlist.adopt(head(driver_epoch=1, detached_since=0))
    acts.sweep_for(15.0)
    assert acts.watchlist.unwatched(15.0) == []
    acts.sweep_for(6.0)
    assert [one.run_id for one in acts.watchlist.unwatched(15.0)] == ["run"]
    acts.clock.now += 60.0  # the gateway is down
    assert acts.watchlist.unwatched(15.0) == []
    acts.sweep_for(2.0, run=1)
    acts.sweep_for(30.0, run=1)
    assert acts.watchlist.unwatched(15.0) == []


def test_a_run_whose_disconnects_mean_nothing_is_asked_about_once() -> None:
    acts = Acts()
    acts.watchlist.adopt(head(driver_epoch=1, detached_since=0))
    acts.sweep_for(30.0)
    acts.watchlist.never_cancels("run")
    assert acts.watchlist.unwatched(15.0) == []
