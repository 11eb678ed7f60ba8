"""Why a driver was made, as its claim says: of one that is found without a driver, it is what was so before (I7)."""

from __future__ import annotations

import pytest
from unit.engine.fleet_by_hand import Acts
from unit.engine.stage import RUN

from runtime.core.ops import Note
from runtime.core.record import Head
from runtime.testing.sim_loop import elapse, play


def test_what_a_new_supervisor_finds_before_it_knows_all_was_so_when_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        await acts.shard.submit(Note(run_id=RUN, epoch=1, handed_over=True))
        await acts.supervisor.close()
        await elapse(5.0)
        unfinished = acts.shard.unfinished

        async def slow() -> list[Head]:
            await elapse(5.0)
            return await unfinished()

        monkeypatch.setattr(acts.shard, "unfinished", slow)
        await acts.another("successor")
        await elapse(1.0)
        assert acts.made == [(0, "start"), (1, "restart")]

    play(1, acts())


def test_a_driver_that_is_too_slow_to_claim_is_replaced_for_the_same_reason() -> None:
    async def acts() -> None:
        acts = await Acts.open()
        await acts.begun()
        await acts.shard.submit(Note(run_id=RUN, epoch=1, handed_over=True))
        await acts.supervisor.close()
        acts.fleet.made[-1].kill()
        await acts.another("successor")
        await elapse(5.0)  # its lease ran out after 3
        assert acts.made == [(0, "start"), (1, "restart"), (1, "restart")]

    play(1, acts())
