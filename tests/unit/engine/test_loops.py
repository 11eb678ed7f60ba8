"""Loops go on, plugins may be broken, long logs come in pages: nothing of that is a reason to stop looking (I7)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from unit.engine.stage import RUN, Stage, append, claim, create

from runtime.core.heads import MAX_CLAIMS, with_claim
from runtime.core.ops import Claimed
from runtime.core.record import Claim, Claimant, ClaimReason, Status
from runtime.engine import cold
from runtime.engine.authority import Authority
from runtime.engine.claimed_log import pages
from runtime.engine.doubt import Doubt
from runtime.engine.forever import AFTER_ERROR_S, forever
from runtime.engine.plugins import pick
from runtime.testing.sim_loop import elapse, play


def test_a_turn_that_fails_is_followed_by_the_next() -> None:
    turns: list[int] = []

    async def turn() -> None:
        turns.append(len(turns))
        if len(turns) < 3:
            raise OSError("too many open files")
        await asyncio.Event().wait()

    async def acts() -> None:
        loop = asyncio.create_task(forever("test", turn))
        await elapse(3 * AFTER_ERROR_S)
        assert turns == [0, 1, 2]
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    play(1, acts())


def test_a_doubt_whose_reading_failed_oddly_can_arise_again() -> None:
    asked = []

    async def reread() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("an odd row")

    async def acts() -> None:
        doubt = Doubt(reread)
        doubt.arise()
        with pytest.raises(ValueError, match="odd"):
            await doubt.settled()
        doubt.arise()
        await doubt.settled()
        assert len(asked) == 2

    play(1, acts())


class Broken(Mapping[str, Any]):
    """A registry whose entry cannot be loaded."""

    def __getitem__(self, name: str) -> Any:
        raise ImportError(name)

    def __iter__(self) -> Any:
        return iter(["broken"])

    def __len__(self) -> int:
        return 1


def test_a_plugin_that_cannot_be_loaded_is_not_there() -> None:
    assert pick(Broken(), "broken") is None
    assert pick({"a": 1}, "a") == 1
    assert pick({}, "a") is None


def test_a_long_log_comes_in_pages_and_only_up_to_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "PAGE_BYTES", 3000)

    async def acts() -> None:
        shard = await Stage().open()
        await shard.submit(create())
        await shard.submit(claim())
        for at in range(1, 20):
            await shard.submit(append(at, "A" * 500))
        claimed = await shard.submit(claim(1, "next"))
        assert isinstance(claimed, Claimed)
        await shard.submit(append(20, "later", epoch=2))
        found = [page async for page in pages(shard, RUN, 0, claimed.head.next_seq, claimed.batches)]
        assert len(found) > 2
        assert [batch.seq for page in found for batch in page] == list(range(20))

    play(1, acts())


def test_an_answer_that_was_read_late_permits_nothing() -> None:
    """A driver that was paused between its claim's commit and the answer asks before its first deed (P4)."""

    async def acts() -> None:
        stage = Stage()
        shard = await stage.open()
        await shard.submit(create())
        asked = stage.loop.time()
        claimed = await shard.submit(claim())
        assert isinstance(claimed, Claimed)
        await shard.submit(claim(1, "successor"))
        await elapse(3600)
        late = Authority(shard, claimed.head, stage.loop, 3.0, asked)
        with pytest.raises(Exception, match="driven by epoch 2"):
            await late.permit()

    play(1, acts())


def test_an_older_read_does_not_bring_back_a_run_that_has_ended() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await stage.open()
        await shard.submit(create())
        await shard.submit(claim())
        stored = await shard.record(RUN)
        assert stored is not None
        old = stored[0]
        ended = old.with_(status=Status.COMPLETED, closed=True)
        shard._adopt(ended)
        shard._adopt(old)
        assert (await shard.stats())["runs"] == 0

    play(1, acts())


def test_a_history_of_claims_is_bounded_and_keeps_its_first() -> None:
    history: tuple[Claim, ...] = ()
    for epoch in range(1, 2 * MAX_CLAIMS):
        who = Claimant(claimant=str(epoch))
        history = with_claim(history, Claim(epoch=epoch, claimant=who, reason=ClaimReason.START, claimed_at=epoch))
    assert len(history) == MAX_CLAIMS
    assert [history[0].epoch, history[-1].epoch] == [1, 2 * MAX_CLAIMS - 1]
