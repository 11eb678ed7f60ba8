"""Which nodes are needed: known once every shard has told its runs, and also while a run is between two drivers."""

from __future__ import annotations

import asyncio

from unit.engine.fleet_by_hand import Acts

from runtime.core.record import Head, RunSpec
from runtime.engine.concluding import DriveEnd
from runtime.testing.sim_loop import elapse, play


def test_a_new_supervisor_says_which_nodes_are_needed_once_every_shard_has_told_its_runs() -> None:
    async def acts() -> None:
        acts = await Acts.open(lease_ttl_s=3600.0)
        await acts.begun()
        await acts.supervisor.close()
        answers = asyncio.Event()
        unfinished = acts.shard.unfinished

        async def cold() -> list[Head]:
            await answers.wait()
            return list(await unfinished())

        acts.shard.unfinished = cold  # type: ignore[method-assign]
        successor = await acts.another("successor")
        await elapse(60.0)
        assert successor.needing() is None
        answers.set()
        await elapse(0.1)
        needing = successor.needing()
        assert needing is not None
        assert [one.handle for one in needing] == acts.fleet.made

    play(1, acts())


def test_a_run_between_two_drivers_still_needs_its_node() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        first = await acts.begun()
        await elapse(0.1)
        asked, answers = asyncio.Event(), asyncio.Event()
        record = acts.shard.record

        async def slow(run_id: str) -> tuple[Head, RunSpec] | None:
            asked.set()
            await answers.wait()
            return await record(run_id)

        acts.shard.record = slow  # type: ignore[method-assign]
        first.end.set_result(DriveEnd("handed_over"))
        await asked.wait()
        assert acts.watching == {}
        needing = acts.supervisor.needing()
        assert needing is not None
        assert [one.handle for one in needing] == [first]
        answers.set()
        await elapse(1.0)
        assert [one.handle for one in acts.supervisor.needing() or ()] == acts.fleet.made[1:]

    play(1, acts())
