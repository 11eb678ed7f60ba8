"""At the end of `serve` drivers hand over, none is made any more, and one that does not go is ended."""

from __future__ import annotations

import asyncio

from unit.engine.fleet_by_hand import Acts
from unit.engine.stage import RUN, create

from runtime.engine.concluding import DriveEnd
from runtime.engine.leaving import leave
from runtime.testing.sim_loop import elapse, play


def _leaving(acts: Acts) -> asyncio.Task[int]:
    return asyncio.create_task(leave(acts.supervisor, lambda _run_id: acts.shard, 5.0))


def test_a_driver_is_told_to_hand_over_and_gets_no_successor() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        driver = await acts.begun()
        leaving = _leaving(acts)
        await elapse(0.1)
        assert acts.stage.head().handover_epoch == 1
        assert driver.cancelled == 1  # so that it asks its shard at once
        driver.end.set_result(DriveEnd("handed_over"))
        assert await leaving == 0
        await elapse(20.0)  # neither by the end of the drive nor by its lease
        assert acts.made == [(0, "start")]
        assert not driver.killed

    play(1, acts())


def test_a_driver_that_does_not_go_is_ended_after_the_time() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        driver = await acts.begun()
        driver.receipt = False
        begun = acts.stage.loop.time()
        assert await _leaving(acts) == 1
        assert acts.stage.loop.time() - begun < 5.5
        assert driver.killed

    play(1, acts())


def test_a_driver_that_dies_meanwhile_holds_nobody_up() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        driver = await acts.begun()
        leaving = _leaving(acts)
        await elapse(0.1)
        driver.die()
        assert await leaving == 0
        assert acts.made == [(0, "start")]

    play(1, acts())


def test_a_run_that_begins_after_it_is_for_the_next_supervisor() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        assert await _leaving(acts) == 0
        await acts.shard.submit(create())
        await acts.supervisor.start(RUN)
        await elapse(0.5)
        assert acts.made == []
        await acts.another("next")
        await elapse(0.5)
        assert acts.made == [(0, "start")]

    play(1, acts())
