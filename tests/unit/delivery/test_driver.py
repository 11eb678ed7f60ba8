"""A driver of external logs, step by step (contract 5.5; scenarios 101, 105 to 110 and 140 to 143)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from unit.delivery.hosts import RUN, THREAD, Host, events, loop, played, sleep, text

from runtime.core.chunk import Event, encode
from runtime.core.record import Status
from runtime.delivery.driver import DriverClaim
from runtime.delivery.errors import LogNotQuietError, RunClaimNotAcquiredError, RunDriverPipeOutsideClaimError
from runtime.delivery.locks import MemoryLocks
from runtime.delivery.records import RunPatch
from runtime.testing.delivery_kit import turn

CUSTOM: Event = {"type": "CUSTOM", "name": "file.changed", "value": 1}
STARTED: Event = {"type": "RUN_STARTED", "runId": RUN, "threadId": THREAD}
FINISHED: Event = {"type": "RUN_FINISHED", "runId": RUN, "threadId": THREAD}


def texts(*numbers: int) -> list[Event]:
    return [text(n) for n in numbers]


# --- before the first write ------------------------------------------------------------------------------------


def test_105_a_takeover_waits_until_the_log_is_quiet_and_only_then_pulls() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.logs.put(text(1))
        loop().call_later(3.0, lambda: asyncio.create_task(host.logs.put(text(2))))
        pulled: list[float] = []

        async def source(_claim: DriverClaim) -> AsyncGenerator[Event, None]:
            pulled.append(loop().time())
            for event in texts(1, 2, 3):
                yield event

        await host.driver().take_over(RUN, source)
        assert pulled == [10.0]
        assert await host.logs.stored() == texts(1, 2, 3)

    played(case())


def test_a_log_that_never_gets_quiet_is_left_alone() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.logs.put(CUSTOM)
        for at in range(8):
            loop().call_later(at * 5 + 1, lambda: asyncio.create_task(host.logs.put(CUSTOM)))
        with pytest.raises(LogNotQuietError):
            await host.driver().take_over(RUN, lambda _: events(text(99)))
        assert text(99) not in await host.logs.stored()
        assert host.logs.closes == 0
        assert (await host.records.row()).status is Status.RUNNING

    played(case())


@pytest.mark.parametrize(("fences", "seconds"), [(True, 0.0), (False, 5.0)])
def test_a_log_that_fences_is_taken_over_without_waiting(fences: bool, seconds: float) -> None:
    async def case() -> None:
        host = Host(fences=fences)
        await host.create()
        await host.logs.put(text(1))
        await host.driver().take_over(RUN, lambda _: events(*texts(1, 2)))
        assert loop().time() == seconds

    played(case())


def test_a_fresh_run_has_nobody_to_wait_for() -> None:
    async def case() -> None:
        host = Host()
        row = await host.driver().start(RUN, THREAD, lambda _: events(*texts(1)))
        assert (row.status, row.driver_epoch, loop().time()) == (Status.COMPLETED, 1, 0.0)

    played(case())


def test_a_first_claim_of_a_log_that_somebody_wrote_without_one_waits() -> None:
    async def case() -> None:
        host = Host()
        await host.logs.put({"type": "CUSTOM", "name": "run.accepted", "value": {}})
        await host.driver().start(RUN, THREAD, lambda _: events(*texts(1)))
        assert loop().time() == 5.0

    played(case())


def test_64_chunks_between_that_no_replay_produces_are_passed_over_and_65_end_the_run() -> None:
    async def case(count: int) -> tuple[Status, str | None]:
        host = Host()
        await host.create()
        await host.logs.put(text(1), *[CUSTOM] * count, text(2))
        row = await host.driver(fence_quiet_ms=0).take_over(RUN, lambda _: events(*texts(1, 2, 3)))
        assert (text(3) in await host.logs.stored()) == (row.status is Status.COMPLETED)
        return row.status, row.error.code if row.error else None

    async def both() -> None:
        assert await case(64) == (Status.COMPLETED, None)
        assert await case(65) == (Status.FAILED, "journal_diverged")

    played(both())


# --- the claim's block -----------------------------------------------------------------------------------------


def test_101_107_a_pipe_works_within_its_claim_and_no_longer() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with host.driver().claim(RUN) as claim:
            assert (claim.run_id, claim.thread_id, claim.epoch) == (RUN, THREAD, 1)
            row = await claim.pipe(events(*texts(1)))
        assert row.status is Status.COMPLETED
        with pytest.raises(RunDriverPipeOutsideClaimError) as caught:
            await claim.pipe(events(*texts(2)))
        assert caught.value.run_id == RUN
        assert await host.logs.stored() == texts(1)

    played(case())


@pytest.mark.parametrize("together", [False, True])
def test_a_claim_has_one_pipe_and_its_ending_is_the_last_thing_written(together: bool) -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with host.driver().claim(RUN) as claim:
            first = loop().create_task(claim.pipe(events(*texts(1))))
            if together:
                host.logs.gate.clear()
                await turn()
            else:
                await first
            with pytest.raises(RunDriverPipeOutsideClaimError):
                await claim.pipe(events(*texts(2)))
            host.logs.gate.set()
            await first
            assert not await claim.records.update(RUN, RunPatch(status=Status.FAILED))
            with pytest.raises(RunDriverPipeOutsideClaimError):
                await claim.log.append([encode(text(3))])
        assert await host.logs.stored() == texts(1)
        assert (await host.records.row()).status is Status.COMPLETED

    played(case())


def test_106_a_pipe_that_is_left_behind_by_its_claim_writes_nothing() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.logs.put(text(1))
        async with host.driver().claim(RUN) as claim:
            waits_for_quiet = loop().create_task(claim.pipe(events(*texts(1, 2))))
            await sleep(1.0)
        with pytest.raises(RunDriverPipeOutsideClaimError):
            await waits_for_quiet
        assert await host.logs.stored() == texts(1)
        assert (await host.records.row()).status is Status.RUNNING

    played(case())


def test_110_a_run_that_has_ended_is_not_piped() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.records.update(RUN, RunPatch(status=Status.COMPLETED))
        asked: list[DriverClaim] = []

        def source(claim: DriverClaim) -> AsyncGenerator[Event, None]:
            asked.append(claim)
            return events()

        with pytest.raises(RunClaimNotAcquiredError):
            await host.driver().take_over(RUN, source)
        assert asked == []
        assert host.logs.made == []

    played(case())


def test_140_141_142_the_factory_is_asked_once_for_exactly_the_driven_run() -> None:
    async def case() -> None:
        host = Host()
        row = await host.driver().start("a/b", THREAD, lambda _: events(*texts(1)))
        assert host.logs.made == ["a/b"]
        assert row.run_id == "a/b"
        assert await host.logs.stored("a/b") == texts(1)

    played(case())


def test_143_concurrent_runs_have_logs_of_their_own() -> None:
    async def case() -> None:
        host = Host()
        driver = host.driver()

        def source(claim: DriverClaim) -> AsyncGenerator[Event, None]:
            n = int(claim.run_id.removeprefix("run-"))
            return events(*texts(n, n + 10))

        await asyncio.gather(*(driver.start(f"run-{n}", THREAD, source) for n in range(4)))
        for n in range(4):
            assert await host.logs.stored(f"run-{n}") == texts(n, n + 10)

    played(case())


# --- somebody came to read -------------------------------------------------------------------------------------


def test_ensure_drives_what_is_due_and_clears_that_it_was_detached() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.records.update(RUN, RunPatch(detached_since=5))
        row = await host.driver().ensure(RUN, lambda _: events(*texts(1)))
        assert row is not None
        assert (row.status, row.detached_since) == (Status.COMPLETED, None)

    played(case())


@pytest.mark.parametrize("state", ["unknown", "ended", "cancelled", "store down"])
def test_ensure_drives_nothing_else_and_raises_nothing(state: str) -> None:
    async def case() -> None:
        host = Host()
        if state != "unknown":
            await host.create()
        if state == "ended":
            await host.records.update(RUN, RunPatch(status=Status.ABORTED))
        if state == "cancelled":
            await host.records.update(RUN, RunPatch(cancel_requested=True))
        if state == "store down":
            host.records.failing = {"get"}
        assert await host.driver().ensure(RUN, lambda _: events(*texts(1))) is None
        assert host.logs.made == []

    played(case())


def test_ensure_of_a_run_that_this_driver_is_at_returns_at_once() -> None:
    async def case() -> None:
        host = Host(locks=MemoryLocks())
        go = asyncio.Event()

        async def source(_claim: DriverClaim) -> AsyncGenerator[Event, None]:
            yield text(1)
            await go.wait()

        driver = host.driver()
        drive = loop().create_task(driver.start(RUN, THREAD, source))
        await sleep(0.01)
        assert await driver.ensure(RUN, source) is None
        go.set()
        assert (await drive).status is Status.COMPLETED

    played(case())


def test_a_detached_mark_that_cannot_be_cleared_does_not_stop_the_drive() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        host.records.failing = {"update"}
        row = await host.driver().ensure(RUN, lambda _: events(*texts(1)))
        assert row is not None
        assert await host.logs.stored() == texts(1)
        assert host.logs.closes == 1

    played(case())
