"""A claim's log that the store has lost the end of meanwhile (P10)."""

from __future__ import annotations

import pytest
from unit.engine.stage import RUN, Stage, append, claim, create

from runtime.core.batch import Batch
from runtime.core.ops import Claimed
from runtime.engine.claimed_log import ClaimedLog
from runtime.engine.shard import Shard
from runtime.errors import RunClaimLostError, StoreError
from runtime.testing.sim_loop import play


async def nothing(run_id: str, after: int) -> list[Batch]:
    """What a store says of positions that it has lost."""
    assert (run_id, after) == (RUN, 0)
    return []


async def claimed(shard: Shard, epoch: int) -> Claimed:
    outcome = await shard.submit(claim(epoch, name=f"driver-{epoch}"))
    assert isinstance(outcome, Claimed)
    return outcome


@pytest.mark.parametrize("superseded", [True, False])
def test_a_driver_whose_log_has_become_shorter_stops_if_somebody_newer_drives(
    superseded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def acts() -> None:
        shard = await Stage().open()
        await shard.submit(create())
        await shard.submit(claim())
        await shard.submit(append(1, "A"))
        log = await claimed(shard, 1)
        log.batches.clear()
        if superseded:
            await claimed(shard, 2)
        monkeypatch.setattr(shard, "batches", nothing)
        with pytest.raises(RunClaimLostError if superseded else StoreError):
            await ClaimedLog(shard, log).read()

    play(1, acts())
