"""A drive from its claim to its end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from unit.engine.stage import RUN, THREAD, Stage, batch, claim, claimant, create, rng

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.ops import Append, Assign, OpenSupervisor, RequestCancel, RequestHandover
from runtime.core.record import CancelReason, ClaimEnd, ClaimReason, Status
from runtime.engine.concluding import DriveEnd
from runtime.engine.driver import Driver
from runtime.engine.shard import Shard
from runtime.engine.transcribing import Transcripts
from runtime.errors import LogClosedError
from runtime.testing.sim_agent import Script, translate, write_script
from runtime.testing.sim_loop import elapse, play

LINES = Script(pieces=[(0.5, b"say m line %d\n" % at) for at in range(40)] + [(0.1, b"result\n")])
NEVER_ENDS = Script(pieces=[(0.5, b"say m on\n")] * 10_000)


def journal_band(stage: Stage) -> list[bytes]:
    batches = stage.memory.read_batches(RUN, 0, 1 << 40)
    return [data for one in batches if one.band is Band.JOURNAL for data in one.chunks()]


async def begun(stage: Stage, seconds: float = 5.0) -> tuple[Shard, asyncio.Task[DriveEnd]]:
    """Return a shard and a drive that has gone on for a while."""
    shard = await stage.open()
    await shard.submit(create())
    driving = asyncio.create_task(stage.drive(shard))
    await elapse(seconds)
    return shard, driving


@pytest.mark.parametrize("seed", range(12))
def test_a_run_ends_with_every_line_once(seed: int) -> None:
    async def acts() -> None:
        script = write_script(rng(seed), lines=300, seconds=10.0)
        stage = Stage(script)
        shard = await stage.open()
        await shard.submit(create())
        end = await stage.drive(shard)
        assert end.kind == "finished"
        assert stage.head().status is end.status
        assert journal_band(stage) == translate(RUN, THREAD, bytes(stage.world.journals[RUN]))
        assert stage.world.started[RUN] == 1
        assert not stage.world.boxes
        assert not stage.head().destroy_pending
        assert chunk.chunk_type(stage.log()[-1]) in chunk.TERMINAL_TYPES
        assert stage.memory.read_stderr(RUN) == script.stderr

    play(seed, acts())


def test_a_successor_goes_on_where_the_log_ends() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        shard, first = await begun(stage)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        before = stage.head().next_seq
        assert before > 5
        end = await stage.drive(shard, 1, "successor")
        assert end.status is Status.COMPLETED
        assert journal_band(stage) == translate(RUN, THREAD, LINES.output)
        assert [one.chunks > 0 for one in stage.head().claims] == [True, True]

    play(1, acts())


def test_a_refused_claim_ends_the_actor() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        shard, first = await begun(stage)
        assert await stage.drive(shard, 0, "twin") == DriveEnd("refused")
        assert await stage.drive(shard, 7, "dreamer") == DriveEnd("refused")
        assert (await first).status is Status.COMPLETED

    play(1, acts())


def test_a_superseded_driver_stops_and_touches_nothing() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        shard, first = await begun(stage)
        asked: list[str] = []
        stage.world.watch = lambda kind, _run_id, by: asked.append(f"{by} {kind}")
        await shard.submit(claim(1, "next"))
        assert await first == DriveEnd("superseded")
        assert asked == []
        assert stage.world.boxes

    play(1, acts())


def test_a_handover_stores_what_is_read_and_leaves_the_agent_alone() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        shard, first = await begun(stage)
        await shard.submit(RequestHandover(run_id=RUN))
        assert await first == DriveEnd("handed_over")
        assert stage.world.boxes
        assert stage.head().status is Status.RUNNING
        assert stage.head().claims[-1].end is ClaimEnd.HANDED_OVER
        assert (await stage.drive(shard, 1, "successor")).status is Status.COMPLETED
        assert journal_band(stage) == translate(RUN, THREAD, LINES.output)

    play(1, acts())


def test_a_cancel_destroys_then_ends() -> None:
    async def acts() -> None:
        stage = Stage(NEVER_ENDS)
        shard, first = await begun(stage)
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        asked_at = stage.loop.time()
        end = await first
        assert stage.loop.time() - asked_at < 1.2
        assert end.status is Status.ABORTED
        head = stage.head()
        assert head.error is not None
        assert (head.error.code, head.destroy_pending) == ("aborted", False)
        assert not stage.world.boxes

    play(1, acts())


def test_a_cancel_that_is_recorded_before_the_claim_starts_nothing() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        shard = await stage.open()
        await shard.submit(create())
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.OPERATOR))
        end = await stage.drive(shard)
        assert end.status is Status.ABORTED
        assert stage.world.started[RUN] == 0
        assert stage.head().sandbox_key is None

    play(1, acts())


def test_a_cancel_with_a_host_that_is_away_ends_in_time_and_stays_pending() -> None:
    async def acts() -> None:
        stage = Stage(NEVER_ENDS)
        shard, first = await begun(stage)
        stage.world.weather.unreachable = True
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        asked_at = stage.loop.time()
        await first
        assert stage.loop.time() - asked_at < 13.0
        head = stage.head()
        assert head.error is not None
        assert (head.status, head.error.code, head.destroy_pending) == (Status.ABORTED, "sandbox_unreachable", True)

    play(1, acts())


def test_a_cancel_that_comes_before_the_finish_wins() -> None:
    """The agent has exited and the finish is built; the store says that it must be an abort (P9)."""

    async def acts() -> None:
        stage = Stage(LINES)
        shard = await stage.open()
        await shard.submit(create())
        submit = shard.submit

        async def cancelling(op: object) -> object:
            if type(op).__name__ == "Finish" and not stage.head().cancel_requested:
                await submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
            return await submit(op)  # type: ignore[arg-type]

        shard.submit = cancelling  # type: ignore[assignment, method-assign]
        end = await stage.drive(shard)
        assert end.status is Status.ABORTED
        kinds = [chunk.chunk_type(data) for data in stage.log()]
        assert kinds[-1] == "RUN_ERROR"
        assert kinds.count("RUN_ERROR") == 1
        assert not stage.world.boxes

    play(1, acts())


def test_a_cancel_after_the_finish_changes_nothing() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        shard, first = await begun(stage)
        end = await first
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        assert stage.head().status is end.status is Status.COMPLETED

    play(1, acts())


def test_look_is_the_receipt_of_a_cancel() -> None:
    async def acts() -> None:
        stage = Stage(NEVER_ENDS)
        shard = await stage.open()
        await shard.submit(create())
        driver = stage.driver(shard)
        assert not await driver.look()
        driving = asyncio.create_task(driver.drive(0, ClaimReason.START))
        await elapse(5.0)
        assert not await driver.look()
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        asked_at = stage.loop.time()
        assert await driver.look()
        await driving
        assert driver.ending
        assert stage.loop.time() - asked_at < 0.1

    play(1, acts())


def exit_of(code: int) -> AgentExit:
    return AgentExit(kind=ExitKind.EXITED, journal_length=0, code=code)


def assign() -> Assign:
    return Assign(run_id=RUN, expected_epoch=0, supervisor_epoch=1, max_attempts=8)


async def driving(stage: Stage) -> tuple[Shard, Driver, asyncio.Task[DriveEnd]]:
    shard = await stage.open()
    await shard.submit(create())
    driver = stage.driver(shard)
    task = asyncio.create_task(driver.drive(0, ClaimReason.START))
    await elapse(5.0)
    return shard, driver, task


def test_an_effect_is_stored_once_and_survives_a_takeover() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        shard, driver, task = await driving(stage)
        position = await driver.emit("note", {"a": 1}, "key")
        assert await driver.emit("note", {"a": 1}, "key") == position
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(LogClosedError):
            await driver.emit("note", {"a": 1}, "key")
        successor = stage.driver(shard, "successor")
        following = asyncio.create_task(successor.drive(1, ClaimReason.DRIVER_LOST))
        await elapse(2.0)
        assert await successor.emit("note", {"a": 1}, "key") == position
        assert (await following).status is Status.COMPLETED
        assert stage.log().count(chunk.custom("note", {"a": 1})) == 1
        assert stage.log()[position - 1] == chunk.custom("note", {"a": 1})
        assert journal_band(stage) == translate(RUN, THREAD, LINES.output)

    play(1, acts())


def test_an_effect_that_comes_with_the_end_is_stored_before_it_or_refused() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        _shard, driver, task = await driving(stage)
        stored = 0
        while not task.done():
            try:
                await driver.emit("note", stored, f"key-{stored}")
            except LogClosedError:
                break
            stored += 1
            await elapse(0.01)
        assert (await task).status is Status.COMPLETED
        names = [chunk.decode_chunk(data).get("name") for data in stage.log()]
        assert names.count("note") == stored
        assert chunk.chunk_type(stage.log()[-1]) == "RUN_FINISHED"

    for seed in range(3):
        play(seed, acts())


def test_a_journal_that_tells_another_story_ends_the_run_and_nothing_of_it_is_delivered() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        shard, first = await begun(stage)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        at = stage.head().next_seq
        await shard.submit(Append(batch=batch(at, "FOREIGN")))
        end = await stage.drive(shard, 1, "successor")
        head = stage.head()
        assert end.status is Status.FAILED
        assert head.error is not None
        assert head.error.code == "journal_diverged"
        assert [chunk.chunk_type(data) for data in stage.log()[at + 1 :]] == ["RUN_ERROR"]

    play(1, acts())


@pytest.mark.parametrize(("lost", "code"), [(True, "agent_lost"), (False, "journal_diverged")])
def test_a_journal_that_is_shorter_than_the_log_is_lost_only_with_its_recorder(lost: bool, code: str) -> None:
    async def acts() -> None:
        stage = Stage(NEVER_ENDS)
        shard, first = await begun(stage)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        box = stage.world.boxes[f"sim/{RUN}"]
        box.agent_alive = False
        del box.journal[40:]
        if lost:
            box.lock_held = False
        else:
            box.agent_alive = True
            stage.world.end(box, exit_of(0))
        await stage.drive(shard, 1, "successor")
        error = stage.head().error
        assert error is not None
        assert error.code == code

    play(1, acts())


def test_a_run_of_an_unknown_harness_or_provider_fails_with_what_to_do() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await stage.open()
        unknown = msgspec.structs.replace(create().spec, harness="none")
        await shard.submit(msgspec.structs.replace(create(), spec=unknown))
        await stage.drive(shard)
        error = stage.head().error
        assert error is not None
        assert error.code == "launch_failed"
        assert "OUTLAST_HARNESSES" in error.message

    play(1, acts())


def test_a_driver_renews_its_lease_for_as_long_as_it_lives() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(120.0, b"result\n")]))
        shard, first = await begun(stage, 100.0)
        assert await shard.due(0.0) == []
        assert (await first).status is Status.COMPLETED

    play(1, acts())


def test_a_driver_keeps_its_lease_while_a_long_log_is_read_for_its_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(_self: Transcripts, _last: Batch) -> bytes:
        await elapse(60.0)
        return b"{}"

    async def acts() -> None:
        stage = Stage(LINES)
        monkeypatch.setattr(Transcripts, "_make", slow)
        shard, driving = await begun(stage, 60.0)  # its agent ended after 20
        assert await shard.due(0.0) == []
        assert (await driving).status is Status.COMPLETED

    play(1, acts())


def test_a_silent_agent_that_is_followed_for_a_while_is_progress() -> None:
    async def acts() -> None:
        stage = Stage(Script(pieces=[(120.0, b"result\n")]))
        shard = await stage.open()
        await shard.submit(create())
        await shard.submit(OpenSupervisor(claimant="supervisor"))
        for _ in range(3):
            await shard.submit(assign())
        assert stage.head().attempts_without_progress == 3
        task = asyncio.create_task(stage.drive(shard))
        await elapse(29.0)
        assert stage.head().attempts_without_progress == 3
        await elapse(4.0)
        assert stage.head().attempts_without_progress == 0
        await task

    play(1, acts())


def test_the_claim_history_names_the_process() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        _, first = await begun(stage)
        await first
        (entry,) = stage.head().claims
        assert entry.claimant == claimant("driver")
        assert entry.ended_at is not None
        assert entry.chunks == stage.head().next_seq - 1

    play(1, acts())
