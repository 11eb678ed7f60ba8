"""What a shard tells of its drivers: refusals as far as its memory goes, and the pauses that takeovers made."""

from __future__ import annotations

import pytest
from unit.engine.stage import RUN, Stage, append, claim, claimant, finish, started

from runtime.core.ops import ClaimRun, Note, Superseded
from runtime.core.record import Claim, ClaimReason, pause_before_ms, to_wire
from runtime.engine.story import MAX_OF_RUN, PAUSE_BOUNDS_S, RENEWAL, Story
from runtime.testing.sim_loop import elapse, play


def _taken(expected: int, reason: ClaimReason) -> ClaimRun:
    return ClaimRun(run_id=RUN, expected_epoch=expected, claimant=claimant(f"driver-{expected}"), reason=reason)


def _claim(epoch: int, at: int, first: int | None = None, last: int | None = None, chunks: int = 0) -> Claim:
    return Claim(
        epoch=epoch,
        claimant=claimant("a"),
        reason=ClaimReason.START,
        claimed_at=at,
        first_append_at=first,
        last_append_at=last,
        chunks=chunks,
    )


def test_what_a_superseded_driver_tried_is_told_by_epoch_and_kind() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        await shard.submit(claim(1, "next"))
        for _ in range(3):
            await shard.submit(append(1, "A"))
            await elapse(1.0)
        for op in (finish(1), Note(run_id=RUN, epoch=1), claim(0, "late")):
            assert isinstance(await shard.submit(op), Superseded)
        assert (await shard.pulse(RUN, 1, 1)).superseded_by == 2
        told = await shard.refusals(RUN)
        assert {(one.epoch, one.current_epoch, one.tried): one.count for one in told} == {
            (1, 2, "append"): 3,
            (1, 2, "finish"): 1,
            (1, 2, "note"): 1,
            (1, 2, "claim"): 1,
            (1, 2, "renewal"): 1,
        }
        assert 2000 <= told[0].last_at - told[0].first_at < 2100
        assert (await shard.stats())["refusals"] == {"append": 3, "finish": 1, "note": 1, "claim": 1, "renewal": 1}
        assert await shard.refusals("unknown") == []

    play(1, acts())


def test_a_refusal_writes_nothing_and_a_new_incarnation_knows_of_none() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        await shard.submit(claim(1, "next"))
        before = stage.head()
        await shard.submit(append(1, "A"))
        assert stage.head() == before
        assert await (await stage.open()).refusals(RUN) == []

    play(1, acts())


def test_what_is_kept_of_refusals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.engine.story.MAX_RUNS", 2)

    async def acts() -> None:
        story = Story(Stage().loop)
        for epoch in range(3 * MAX_OF_RUN):
            story.refuse("a", epoch, 99, RENEWAL)
        assert [one.epoch for one in story.refusals("a")] == list(range(2 * MAX_OF_RUN, 3 * MAX_OF_RUN))
        for run in "bca":
            story.refuse(run, 1, 2, RENEWAL)
        assert [bool(story.refusals(run)) for run in "abc"] == [True, False, True]

    play(1, acts())


def test_the_pause_of_a_takeover_is_counted_once_under_its_reason() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        await shard.submit(append(1, "A"))
        await elapse(0.7)
        await shard.submit(_taken(1, ClaimReason.DRIVER_LOST))
        await elapse(0.7)
        for seq in (2, 3):
            await shard.submit(append(seq, "B", epoch=2))
        (reason, counts), *others = (await shard.stats())["pauses"].items()
        assert (reason, others) == ("driver_lost", [])
        assert counts[PAUSE_BOUNDS_S.index(2.5)] == sum(counts[:-1]) == 1
        assert counts[-1] == pytest.approx(1.4, abs=0.05)
        stored = await shard.record(RUN)
        assert stored is not None
        wire = to_wire(*stored, claims=True)
        assert [claim["pauseMs"] for claim in wire["claims"]] == [None, pytest.approx(1400, abs=50)]

    play(1, acts())


def test_a_repeat_of_the_first_append_or_an_ending_that_is_all_counts_once() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        await shard.submit(append(1, "A"))
        await shard.submit(_taken(1, ClaimReason.DRIVER_LOST))
        for _ in range(2):
            await shard.submit(finish(2, epoch=2))
        ((_, counts),) = (await shard.stats())["pauses"].items()
        assert sum(counts[:-1]) == 1

    play(1, acts())


@pytest.mark.parametrize(
    ("claims", "pauses"),
    [
        ([_claim(1, 10, 20, 90, 4)], [None]),
        ([_claim(1, 10, 20, 90, 4), _claim(2, 95, 140, 140, 1)], [None, 50]),
        ([_claim(1, 10, 20, 90, 4), _claim(2, 95)], [None, None]),
        ([_claim(1, 10), _claim(2, 95, 140, 150, 2)], [None, 130]),
        ([_claim(1, 10, 20, 90, 4), _claim(2, 95), _claim(3, 99, 190, 190, 1)], [None, None, 100]),
        ([_claim(1, 10, 20, None, 4), _claim(2, 95, 140, 140, 1)], [None, None]),  # stored by version 0.1.0
        ([_claim(1, 10, 20, 90, 4), _claim(2, 95, 60, 60, 1)], [None, 0]),  # the clock was set back
    ],
)
def test_a_pause_is_from_the_last_chunk_before_to_the_first_after(claims: list[Claim], pauses: list[int]) -> None:
    assert [pause_before_ms(tuple(claims), place) for place in range(len(claims))] == pauses
