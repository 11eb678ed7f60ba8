"""A shard after lost answers, outages and a successor: what it knows, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from unit.engine.stage import RUN, Stage, append, claim, create, finish, started

from runtime.core.ops import (
    Append,
    Appended,
    ClaimRun,
    Create,
    Finish,
    Note,
    Op,
    Outcome,
    RequestCancel,
    Superseded,
)
from runtime.core.record import CancelReason, OnDisconnect
from runtime.errors import ShardSuperseded, StoreError, StoreUnavailable
from runtime.ports import Pulse
from runtime.testing.sim_loop import elapse, play

# --- trouble ---


class Lossy:
    """Loses the answer of every commit that holds one of `kinds`, until told to stop."""

    def __init__(self, stage: Stage, *kinds: type[Any]) -> None:
        self.active = True
        self._stage = stage
        self._kinds = kinds
        stage.store._watch = self._see
        self._lose = False
        stage.trouble.strike_after = self._strike_after  # type: ignore[method-assign]

    def _see(self, _shard: int, _epoch: int, ops: Sequence[Op], _outcomes: Sequence[Outcome]) -> None:
        self._lose = self.active and any(isinstance(op, self._kinds) for op in ops)

    def _strike_after(self) -> None:
        if self._lose:
            raise StoreUnavailable("the answer is lost")


def test_an_append_whose_answer_was_lost_once_reaches_its_readers() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        parked = asyncio.create_task(shard.read(RUN, 1, 25.0))
        lossy = Lossy(stage, Append)
        appending = asyncio.create_task(shard.submit(append(1, "A")))
        await elapse(0.02)
        lossy.active = False
        outcome = await appending
        assert isinstance(outcome, Appended)
        assert outcome.repeat
        assert (await parked).tail == b'{"type":"A"}'

    play(1, acts())


def test_after_a_lost_answer_the_shard_reads_back_before_it_answers() -> None:
    """Each of these happened, was never told, and nobody repeats it."""

    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        await shard.submit(create("run-2", on_busy="enqueue"))
        Lossy(stage, Append, Finish, RequestCancel, ClaimRun, Create)
        with pytest.raises(StoreError):
            await shard.submit(append(1, "A"))
        assert (await shard.read(RUN, 1, 0.0)).next == 2
        with pytest.raises(StoreError):
            await shard.submit(create("run-3", "thread-3"))
        assert await shard.record("run-3") is not None
        with pytest.raises(StoreError):
            await shard.submit(RequestCancel(run_id="run-3", reason=CancelReason.USER))
        with pytest.raises(StoreError):
            await shard.submit(claim(0, "third", run_id="run-3"))
        assert (await shard.pulse("run-3", 1, 1)).cancel_requested
        with pytest.raises(StoreError):
            await shard.submit(finish(2))
        assert (await shard.read(RUN, 2, 0.0)).closed
        told = [(due.head.run_id, due.why, due.head.driver_epoch) for due in await shard.due(0.0)]
        assert sorted(told) == [("run-2", "unqueued", 0), ("run-3", "cancel", 1)]

    play(1, acts())


def test_a_detach_that_was_not_stored_is_tried_again() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        await shard.attach(RUN, "viewer", 1)
        for number in range(2, 9):
            await shard.set_viewers("viewer", number, {RUN: 1})
            await elapse(1.0)
        stage.trouble.before = 1.0
        for number in range(9, 20):
            stage.trouble.before = float(number < 15)
            await shard.set_viewers("viewer", number, {})
            await elapse(1.0)
        assert stage.head().detached_since is not None

    play(1, acts())


def test_a_store_outage_makes_no_takeover() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        stage.trouble.down = True
        for _ in range(20):
            with pytest.raises(StoreError):
                await shard.submit(Note(run_id=RUN, epoch=1))
            await elapse(0.5)
        stage.trouble.down = False
        await elapse(1.0)
        assert await shard.due(0.0) == []

    play(1, acts())


def test_a_new_incarnation_serves_the_same_log_and_gives_fresh_leases() -> None:
    async def acts() -> None:
        stage = Stage()
        await (await started(stage)).submit(append(1, "A", "B"))
        shard = await stage.open()
        assert (await shard.read(RUN, 1, 0.0)).tail == b'{"type":"A"}\n{"type":"B"}'
        assert await shard.pulse(RUN, 1, 1) == Pulse()
        await elapse(2.9)
        assert await shard.due(0.0) == []
        assert isinstance(await shard.submit(append(3, "C")), Appended)

    play(1, acts())


def test_a_superseded_incarnation_fails_all_parked_and_later_calls() -> None:
    async def acts() -> None:
        stage = Stage()
        old = await started(stage)
        parked = [asyncio.create_task(old.read(RUN, 1, 25.0)), asyncio.create_task(old.due(25.0))]
        await elapse(0.1)
        await stage.open()
        await elapse(3.0)
        answers = await asyncio.gather(*parked, return_exceptions=True)
        assert {type(answer) for answer in answers} == {ShardSuperseded}
        asked = (old.read(RUN, 0, 0.0), old.pulse(RUN, 1, 1), old.due(0.0), old.submit(append(1, "A")))
        told = (old.attach(RUN, "viewer", 1), old.set_viewers("viewer", 2, {}))  # or our successor would never be told
        for call in (*asked, *told):
            with pytest.raises(ShardSuperseded):
                await call

    play(1, acts())


def test_a_superseded_incarnation_does_not_act_on_viewers_that_leave(caplog: pytest.LogCaptureFixture) -> None:
    async def acts() -> None:
        stage = Stage()
        old = await stage.open()
        await old.submit(create(on_disconnect=OnDisconnect.CANCEL))
        await stage.open()
        for number in range(1, 40):
            with suppress(ShardSuperseded):
                await old.set_viewers("viewer", number, {})
            await elapse(1.0)

    play(1, acts())
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_superseded_driver_is_refused_and_counted() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        await shard.submit(claim(1, "next"))
        assert isinstance(await shard.submit(append(1, "A")), Superseded)
        stats = await shard.stats()
        assert (stats["appends_refused"], stats["appends"], stats["runs"], stats["epoch"]) == (1, 0, 1, 1)

    play(1, acts())


@pytest.mark.parametrize("late", [append(2, "late"), finish(2), append(1, "late", epoch=2)])
def test_a_driver_that_knows_more_than_the_store_has_everybody_superseded(late: Append | Finish) -> None:
    """What was put back has no sign of its own, and the shard that serves it began since (P10)."""

    async def acts() -> None:
        stage = Stage()
        await started(stage)
        shard = await stage.open()
        caught = [asyncio.create_task(call) for call in (shard.submit(late), shard.read(RUN, 1, 25.0))]
        await elapse(1.0)
        for one in caught:
            with pytest.raises(ShardSuperseded):
                await one
        after = await stage.open()
        assert isinstance(await after.submit(late), Superseded)
        record = await after.record(RUN)
        assert record is not None
        assert (record[0].next_seq, record[0].generation > 0) == (1, True)

    play(1, acts())


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.engine.shard.MAX_IDLE_TAILS", 4)

    async def acts() -> None:
        shard = await Stage().open()
        for number in range(40):
            run_id = f"run-{number}"
            await shard.submit(create(run_id, f"thread-{number}"))
            if number % 10:
                await shard.submit(claim(run_id=run_id))
                await shard.submit(finish(1, run_id=run_id))
        assert len(shard._tails) <= 4 + 2 * 4
        for number in range(40):
            reply = await shard.read(f"run-{number}", 0, 0.0)
            assert (reply.known, reply.closed) == (True, bool(number % 10))

    play(1, acts())


def test_close_releases_readers() -> None:
    async def acts() -> None:
        shard = await started(Stage())
        parked = asyncio.create_task(shard.read(RUN, 1, 25.0))
        await elapse(1.0)
        await shard.close()
        assert (await parked).next == 1

    play(1, acts())
