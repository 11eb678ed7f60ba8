"""From journal bytes to chunks, and the bounds that were chosen in advance (I6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from unit.engine.stage import RUN, THREAD, Stage, create
from unit.engine.test_driver import journal_band

from runtime.core import chunk
from runtime.core.ops import Note
from runtime.core.record import Limits, Status
from runtime.engine import following
from runtime.engine.concluding import DriveEnd
from runtime.engine.driver import TOLD_PER_IDLE
from runtime.engine.following import LISTEN_S, RESULT_GRACE_S
from runtime.engine.shard import Shard
from runtime.ports import Clock
from runtime.testing.sim_agent import Script, translate
from runtime.testing.sim_loop import elapse, play

FOREVER = [(1.0, b"say m on\n")] * 10_000


async def driven(stage: Stage, **limits: Any) -> DriveEnd:
    shard = await stage.open()
    await shard.submit(create(limits=Limits(max_line_bytes=2048, **limits)))
    return await stage.drive(shard)


def code(stage: Stage) -> str | None:
    error = stage.head().error
    return error.code if error is not None else None


def test_a_partial_last_line_is_fed_marked_and_nothing_is_after_it() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.1, b"say m hel"), (0.1, b"lo\nresult\nto"), (0.1, b"rn")]))
        end = await driven(stage)
        assert end.status is Status.COMPLETED
        assert journal_band(stage) == translate(RUN, THREAD, b"say m hello\nresult\ntorn")
        assert chunk.decode_chunk(journal_band(stage)[-1])["value"] == {"number": 3, "text": "torn", "torn": True}

    play(1, acts())


HALF = b"half a line"


@pytest.mark.parametrize(
    ("limits", "ended"),
    [({"run_limit_s": 20}, "run_limit"), ({"idle_limit_s": 20}, "agent_idle"), ({}, "sandbox_unreachable")],
)
def test_half_a_line_at_a_forced_end_is_in_the_finish(limits: dict[str, Any], ended: str) -> None:
    """In no append before it: until then the agent may end its line, and a successor would find it whole (P24)."""

    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.1, b"say m a\n" + HALF), (9999.0, b"\n")]))
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, **limits)))
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(5.0)
        stage.world.weather.unreachable = ended == "sandbox_unreachable"
        await driving
        assert code(stage) == ended
        assert journal_band(stage) == translate(RUN, THREAD, b"say m a\n")
        told = [chunk.decode_chunk(data) for data in stage.log()]
        assert [event["value"] for event in told if event.get("name") == "line"] == [
            {"number": 2, "text": HALF.decode(), "torn": True}
        ]
        assert told[-1]["type"] == chunk.RUN_ERROR

    play(1, acts())


def test_half_a_line_after_a_result_is_told_if_no_exit_follows() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.1, b"say m a\nresult\n" + HALF)], hangs=True))
        assert (await driven(stage)).status is Status.COMPLETED
        assert journal_band(stage) == translate(RUN, THREAD, b"say m a\nresult\n")
        told = [chunk.decode_chunk(data).get("value") for data in stage.log()]
        assert told.count({"number": 3, "text": HALF.decode(), "torn": True}) == 1

    play(1, acts())


def test_half_a_line_that_the_log_may_hold_whole_is_not_told_again() -> None:
    """The successor is ended while it still reads what is stored."""

    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.1, b"say m %d\n" % at) for at in range(200)] + [(9999.0, b"")]))
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, run_limit_s=60)))
        first = asyncio.create_task(stage.drive(shard))
        await elapse(30.0)
        first.cancel()
        await elapse(29.0)
        stage.world.weather.slow_s = 2.0
        await stage.drive(shard, 1, "successor")
        assert code(stage) == "run_limit"
        assert sum(b'"delta"' in data for data in stage.log()) == 200
        assert len(journal_band(stage)) == 201, "with RUN_STARTED"

    for seed in range(6):
        play(seed, acts())


def test_half_a_line_that_is_too_long_for_the_finish_is_told_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MAX_REST_BYTES", len(HALF) - 1)

    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.1, b"say m a\n" + HALF), (9999.0, b"\n")]))
        await driven(stage, idle_limit_s=20)
        skipped = chunk.line_skipped(len(b"say m a\n"), len(HALF))
        assert stage.log().count(skipped) == 1

    play(1, acts())


def test_a_line_over_the_bound_is_told_and_not_kept() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.0, b"before\n" + b"x" * 5000 + b"\nafter\nresult\n")]))
        await driven(stage)
        skipped = [chunk.decode_chunk(data) for data in journal_band(stage)][2]
        assert (skipped["name"], skipped["value"]) == ("journal.line_skipped", {"position": 7, "bytes": 5000})

    play(1, acts())


def test_the_run_limit_ends_a_chatty_agent_too() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.3, b"say m on\n")] * 1000))
        begun = stage.loop.time()
        end = await driven(stage, run_limit_s=20)
        assert end.status is Status.FAILED
        assert code(stage) == "run_limit"
        assert 20.0 <= stage.loop.time() - begun < 23.0
        assert not stage.world.boxes
        assert 60 <= len(journal_band(stage)) <= 70

    play(1, acts())


def test_the_run_limit_counts_from_the_first_claim() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=FOREVER))
        shard = await stage.open()
        await shard.submit(create(limits=Limits(run_limit_s=30)))
        first = asyncio.create_task(stage.drive(shard))
        await elapse(20.0)
        first.cancel()
        begun = stage.loop.time()
        await stage.drive(shard, 1, "successor")
        assert code(stage) == "run_limit"
        assert 9.0 < stage.loop.time() - begun < 13.0

    play(1, acts())


def test_silence_ends_a_run_only_if_that_was_chosen() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(1.0, b"say m a\n"), (300.0, b"result\n")]))
        assert (await driven(stage)).status is Status.COMPLETED
        stage = Stage(Script(pieces=[(1.0, b"say m a\n"), (300.0, b"result\n")]))
        begun = stage.loop.time()
        await driven(stage, idle_limit_s=50)
        assert code(stage) == "agent_idle"
        assert 50.0 < stage.loop.time() - begun < 54.0

    play(1, acts())


async def drive_in_turns(stage: Stage, shard: Shard, turns_s: Sequence[float], gap_s: float = 0.0) -> float:
    """Have one driver after another die after its turn; return the seconds until the run has ended, or -1."""
    begun = stage.loop.time()
    for epoch, turn_s in enumerate(turns_s):
        driving = asyncio.create_task(stage.drive(shard, epoch, f"driver-{epoch}"))
        ended, _ = await asyncio.wait((driving,), timeout=turn_s)
        if ended:
            return stage.loop.time() - begun
        driving.cancel()
        await elapse(gap_s)
    return -1.0


SILENT = {
    "after a line": [(1.0, b"say m a\n"), (9999.0, b"")],
    "in the middle of a line": [(1.0, b"say m a\nsay m b"), (9999.0, b"")],
    "after a line that says nothing": [(1.0, b"say m a\nmute 1\n"), (9999.0, b"")],
    "from its start": [(9999.0, b"")],
}


@pytest.mark.parametrize("when", SILENT)
def test_silence_counts_on_over_takeovers_so_a_run_whose_drivers_keep_dying_ends(when: str) -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=SILENT[when]))
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, idle_limit_s=100)))
        ended_s = await drive_in_turns(stage, shard, [40.0] * 8)
        assert code(stage) == "agent_idle"
        assert 100.0 <= ended_s < 100.0 + LISTEN_S + 15.0, "by a driver that listened, and soon"

    play(1, acts())


def test_drivers_that_do_not_live_long_enough_to_listen_end_no_run_by_its_silence() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=SILENT["after a line"]))
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, idle_limit_s=100)))
        assert await drive_in_turns(stage, shard, [LISTEN_S - 5.0] * 8) == -1.0
        assert stage.head().status is Status.RUNNING
        assert stage.head().claims_without_progress == 7, "which ends it in another way (P19)"

    play(1, acts())


SOUNDS = {"lines that make no chunk": b"mute x\n", "one line that grows": b"x"}


@pytest.mark.parametrize("sounds", SOUNDS)
def test_an_agent_that_a_driver_hears_is_not_silent_to_the_next_one_though_no_chunk_came_of_it(sounds: str) -> None:
    async def acts() -> None:
        stage = Stage(
            Script(pieces=[(1.0, b"say m a\n"), *[(40.0, SOUNDS[sounds])] * 20, (40.0, b"\n"), (1.0, b"result\n")])
        )
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, idle_limit_s=100)))
        await drive_in_turns(stage, shard, [405.0, 90.0])
        assert (await stage.drive(shard, 2, "successor")).status is Status.COMPLETED

    play(1, acts())


def test_a_line_that_makes_no_chunk_and_that_nobody_read_yet_is_no_silence() -> None:
    async def acts() -> None:
        stage = Stage(
            Script(pieces=[(1.0, b"say m a\n"), (29.0, b"mute x\n"), (95.0, b"mute y\n"), (95.0, b"result\n")])
        )
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, idle_limit_s=100)))
        await drive_in_turns(stage, shard, [20.0], gap_s=20.0)
        assert (await stage.drive(shard, 1, "successor")).status is Status.COMPLETED

    play(1, acts())


def test_what_makes_no_chunk_is_told_to_the_store_now_and_then_only() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(1.0, b"say m a\n"), *[(0.5, b"mute x\n")] * 2000, (1.0, b"result\n")]))
        assert (await driven(stage, idle_limit_s=100)).status is Status.COMPLETED
        told = [op for ops, _ in stage.commits for op in ops if isinstance(op, Note) and op.heard_to]
        assert 8 <= len(told) <= 1000 / (100 / TOLD_PER_IDLE)

        stage = Stage(Script(pieces=[(0.5, b"mute x\n")] * 2000 + [(1.0, b"result\n")]))
        assert (await driven(stage)).status is Status.COMPLETED
        assert not any(isinstance(op, Note) and op.heard_to for ops, _ in stage.commits for op in ops)

    play(1, acts())


class Ahead:
    """The clock of a host that is an hour ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + 3_600_000


def test_a_host_whose_clock_is_ahead_takes_no_agent_for_silent() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(1.0, b"say m a\n"), (90.0, b"result\n")]))
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, idle_limit_s=100)))
        await drive_in_turns(stage, shard, [20.0])
        stage.clock = Ahead(stage.loop)
        assert (await stage.drive(shard, 1, "successor")).status is Status.COMPLETED

    play(1, acts())


@pytest.mark.parametrize("slow_s", [0.0, 3.0])
def test_what_an_agent_printed_while_nobody_drove_is_no_silence(slow_s: float) -> None:
    async def acts() -> None:
        stage = Stage(
            Script(pieces=[(1.0, b"say m a\n"), (150.0, b"say m b\n"), (95.0, b"say m c\n"), (1.0, b"result\n")])
        )
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, idle_limit_s=100)))
        await drive_in_turns(stage, shard, [40.0], gap_s=120.0)
        stage.world.weather.slow_s = slow_s
        end = await stage.drive(shard, 1, "successor")
        assert end.status is Status.COMPLETED
        assert journal_band(stage) == translate(RUN, THREAD, bytes(stage.world.journals[RUN]))

    for seed in range(4):
        play(seed, acts())


def test_a_replay_that_takes_longer_than_a_driver_listens_is_no_silence() -> None:
    async def acts() -> None:
        lines = [(0.1, b"say m %d %s\n" % (at, b"x" * 500)) for at in range(200)]
        stage = Stage(Script(pieces=[*lines, (115.0, b"result\n")]))
        shard = await stage.open()
        await shard.submit(create(limits=Limits(max_line_bytes=2048, idle_limit_s=100)))
        await drive_in_turns(stage, shard, [30.0], gap_s=100.0)
        stage.world.weather.slow_s = 0.8
        begun = stage.loop.time()
        assert (await stage.drive(shard, 1, "successor")).status is Status.COMPLETED
        assert stage.loop.time() - begun > LISTEN_S + 5.0

    play(1, acts())


def test_a_result_that_no_exit_follows_ends_as_the_result_says() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(1.0, b"say m a\n"), (1.0, b"result\n"), (5.0, b"say m late\n")], hangs=True))
        begun = stage.loop.time()
        end = await driven(stage)
        assert end.status is Status.COMPLETED
        assert RESULT_GRACE_S <= stage.loop.time() - begun - 7.0 < RESULT_GRACE_S + 3.0
        assert not stage.world.boxes

    play(1, acts())


def test_a_log_at_its_bound_ends_the_run_even_if_the_agent_falls_silent() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.1, b"say m %s\n" % (b"x" * 300))] * 30 + [(9999.0, b"")]))
        begun = stage.loop.time()
        end = await driven(stage, max_log_bytes=4000)
        assert end.status is Status.FAILED
        assert code(stage) == "log_limit"
        assert stage.loop.time() - begun < 10.0
        assert (
            journal_band(stage) == translate(RUN, THREAD, bytes(stage.world.journals[RUN]))[: len(journal_band(stage))]
        )

    play(1, acts())


@pytest.mark.parametrize("away_s", [5.0, 25.0])
def test_a_host_that_returns_while_we_follow_is_waited_for(away_s: float) -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(1.0, b"say m a\n")] * 40 + [(1.0, b"result\n")]))
        shard = await stage.open()
        await shard.submit(create())
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(10.0)
        stage.world.weather.unreachable = True
        await elapse(away_s)
        stage.world.weather.unreachable = False
        assert (await driving).status is Status.COMPLETED
        assert journal_band(stage) == translate(RUN, THREAD, b"say m a\n" * 40 + b"result\n")
        assert stage.head().driver_epoch == 1

    play(1, acts())


def test_a_host_that_stays_away_while_we_follow_ends_the_run() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=FOREVER))
        shard = await stage.open()
        await shard.submit(create())
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(10.0)
        stage.world.weather.unreachable = True
        begun = stage.loop.time()
        await driving
        assert code(stage) == "sandbox_unreachable"
        assert 30.0 <= stage.loop.time() - begun < 40.0
        assert stage.head().destroy_pending

    play(1, acts())


def test_a_sandbox_that_is_gone_while_we_follow_ends_the_run_after_what_was_read() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=FOREVER))
        shard = await stage.open()
        await shard.submit(create())
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(10.5)
        await stage.world.destroy(f"sim/{RUN}", "somebody")
        assert (await driving).status is Status.FAILED
        assert code(stage) == "sandbox_lost"
        assert journal_band(stage) == translate(RUN, THREAD, bytes(stage.world.journals[RUN]))

    play(1, acts())
