"""The latch and the two fences (contract 5.4; scenarios 84 to 100 and 111 to 121).

118 has nothing left to fail: the record checks the epoch in the step that writes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.delivery.hosts import RUN, THREAD, Host, Lossy, loop, played, sleep, supersede, text

from runtime.core.chunk import encode
from runtime.core.record import Status
from runtime.delivery.claim import EPOCH_RECHECK_APPENDS, RunClaim, claim_run
from runtime.delivery.errors import (
    RunClaimNotAcquiredError,
    RunDriverPipeOutsideClaimError,
)
from runtime.delivery.fences import FencedLog, FencedRecords
from runtime.delivery.locks import MemoryLocks
from runtime.delivery.records import RunPatch
from runtime.errors import RunClaimLostError
from runtime.testing.delivery_kit import turn

CHUNK = encode(text(1))


def fenced(host: Host, claim: RunClaim, **more: int) -> FencedLog:
    return FencedLog(host.logs(RUN), claim.latch, **more)


# --- the log's fence -------------------------------------------------------------------------------------------


def test_84_95_87_a_healthy_claim_appends_far_and_looks_at_the_record_once_in_32() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with claim_run(host.records, RUN) as claim:
            log, before = fenced(host, claim), host.records.gets
            for count in range(1, 200):
                await log.append([CHUNK])
                assert host.records.gets - before == (count + EPOCH_RECHECK_APPENDS - 1) // EPOCH_RECHECK_APPENDS
        assert len(await host.logs.stored()) == 199

    played(case())


def test_85_94_a_lost_lease_refuses_and_latches() -> None:
    async def case() -> None:
        host, locks = Host(), Lossy()
        await host.create()
        async with claim_run(host.records, RUN, locks=locks) as claim:
            log = fenced(host, claim)
            locks.lease.lost.set()
            with pytest.raises(RunClaimLostError) as caught:
                await log.append([CHUNK])
            assert (caught.value.run_id, caught.value.held_epoch, caught.value.current_epoch) == (RUN, 1, None)
            locks.lease.lost.clear()
            with pytest.raises(RunClaimLostError):
                await log.append([CHUNK])
        assert await host.logs.stored() == []

    played(case())


def test_86_91_92_93_a_higher_epoch_refuses_for_ever_with_one_error_and_no_more_questions() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with claim_run(host.records, RUN) as claim:
            log = fenced(host, claim)
            await supersede(host)
            with pytest.raises(RunClaimLostError) as first:
                await log.append([CHUNK])
            assert (first.value.held_epoch, first.value.current_epoch) == (1, 2)
            gets, appends = host.records.gets, host.logs.appends
            with pytest.raises(RunClaimLostError) as second:
                await log.append([CHUNK])
            assert second.value is first.value
            assert not await FencedRecords(host.records, claim.latch).update(RUN, RunPatch(status=Status.FAILED))
            assert (host.records.gets, host.logs.appends, host.records.updates) == (gets, appends, [])
        assert await host.logs.stored() == []

    played(case())


@pytest.mark.parametrize(("recheck", "before"), [(32, 1), (32, 7), (5, 1), (1, 1)])
def test_88_100_a_superseded_driver_writes_at_most_one_less_than_the_recheck_more(recheck: int, before: int) -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with claim_run(host.records, RUN) as claim:
            log = fenced(host, claim, recheck_appends=recheck)
            for _ in range(before):
                await log.append([CHUNK])
            await supersede(host)
            for _ in range((recheck - before) % recheck):
                await log.append([CHUNK])
            with pytest.raises(RunClaimLostError):
                await log.append([CHUNK])
        late = len(await host.logs.stored()) - before
        assert late < recheck

    played(case())


def test_89_a_record_that_cannot_be_read_refuses_nobody_and_is_read_again_at_the_next_append() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with claim_run(host.records, RUN) as claim:
            log = fenced(host, claim)
            host.records.failing = {"get"}
            await log.append([CHUNK])
            await log.append([CHUNK])
            host.records.failing = set()
            await supersede(host)
            with pytest.raises(RunClaimLostError):
                await log.append([CHUNK])
        assert len(await host.logs.stored()) == 2

    played(case())


def test_90_96_reading_and_closing_pass_before_and_after_the_latch() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.logs.put(text(1))
        async with claim_run(host.records, RUN) as claim:
            log = fenced(host, claim)
            await supersede(host)
            with pytest.raises(RunClaimLostError):
                await log.append([CHUNK])
            assert len(await log.snapshot()) == 1
            assert await log.exists()
            assert log.resume_from is None
            await log.close()
            assert [entry.chunk async for entry in log.read("-1")] == [CHUNK]

    played(case())


def test_98_a_lock_of_another_process_does_not_help_the_superseded_one() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with (
            claim_run(host.records, RUN, locks=MemoryLocks()) as old,
            claim_run(host.records, RUN, locks=MemoryLocks()) as new,
        ):
            await fenced(host, new).append([CHUNK])
            with pytest.raises(RunClaimLostError):
                await fenced(host, old).append([CHUNK])
        assert len(await host.logs.stored()) == 1

    played(case())


def test_a_log_that_fences_refuses_at_once_and_that_closes_the_latch_for_the_record_too() -> None:
    async def case() -> None:
        host = Host(fences=True)
        await host.create()
        async with claim_run(host.records, RUN) as old:
            log, records = fenced(host, old), FencedRecords(host.records, old.latch)
            await log.claim(old.epoch)
            await log.append([CHUNK])
            async with claim_run(host.records, RUN) as new:
                await fenced(host, new).claim(new.epoch)
                with pytest.raises(RunClaimLostError) as first:
                    await log.append([CHUNK])
                with pytest.raises(RunClaimLostError):
                    await log.close()
                with pytest.raises(RunClaimLostError) as again:
                    await log.claim(old.epoch)
                assert again.value is first.value
                assert not await records.update(RUN, RunPatch(status=Status.COMPLETED))
        assert len(await host.logs.stored()) == 1

    played(case())


def test_92_appends_that_are_refused_side_by_side_get_one_error() -> None:
    async def case() -> None:
        host = Host(fences=True)
        await host.create()
        async with claim_run(host.records, RUN) as claim:
            log = fenced(host, claim)
            await log.claim(claim.epoch)
            host.logs.gate.clear()
            both = [loop().create_task(log.append([CHUNK])) for _ in range(2)]
            await turn()
            await host.logs.streams.log(RUN).claim(2)
            host.logs.gate.set()
            first, second = await asyncio.gather(*both, return_exceptions=True)
            assert isinstance(first, RunClaimLostError)
            assert second is first

    played(case())


def test_what_is_written_after_the_claim_was_given_back_is_refused() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with claim_run(host.records, RUN) as claim:
            log = fenced(host, claim)
            await log.append([CHUNK])
        with pytest.raises(RunDriverPipeOutsideClaimError):
            await log.append([CHUNK])
        assert not await FencedRecords(host.records, claim.latch).update(RUN, RunPatch(status=Status.FAILED))
        assert (await host.records.row()).status is Status.RUNNING

    played(case())


# --- the record's fence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(Status))
def test_111_115_119_a_superseded_driver_moves_no_status_and_may_still_note_the_rest(
    status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with claim_run(host.records, RUN) as claim:
            records = FencedRecords(host.records, claim.latch)
            await supersede(host)
            assert not await records.update(RUN, RunPatch(status=status, finished_at=9))
            assert await records.update(RUN, RunPatch(detached_since=7, sandbox_key="box"))
            await records.create_or_resume("run-2", THREAD, 1)
            row = await host.records.row()
            assert (row.status, row.finished_at) == (Status.RUNNING, None)
            assert (row.detached_since, row.sandbox_key) == (7, "box")
            assert await records.get("run-2") is not None
        assert f"status {status} was not stored" in caplog.text

    played(case())


def test_116_the_successor_can_end_the_run_right_after() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with claim_run(host.records, RUN) as old, claim_run(host.records, RUN) as new:
            assert not await FencedRecords(host.records, old.latch).update(RUN, RunPatch(status=Status.FAILED))
            assert await FencedRecords(host.records, new.latch).update(RUN, RunPatch(status=Status.COMPLETED))
        assert (await host.records.row()).status is Status.COMPLETED

    played(case())


def test_118_a_record_that_cannot_be_read_does_not_hold_an_ending_back() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with claim_run(host.records, RUN) as claim:
            host.records.failing = {"get"}
            assert await FencedRecords(host.records, claim.latch).update(RUN, RunPatch(status=Status.COMPLETED))

    played(case())


def test_120_121_another_runs_ending_and_the_questions_pass() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.create("run-2")
        async with claim_run(host.records, RUN) as claim:
            records = FencedRecords(host.records, claim.latch)
            await supersede(host)
            assert await records.update("run-2", RunPatch(status=Status.COMPLETED))
            assert (await host.records.row("run-2")).status is Status.COMPLETED
            active = await records.find_active(THREAD)
            assert active is not None
            assert active.run_id == RUN

    played(case())


# --- a law -----------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10_000),
    pauses_ms=st.lists(st.integers(1, 400), min_size=2, max_size=4),
    recheck=st.integers(1, 4),
    fences=st.booleans(),
)
def test_whatever_the_interleaving_only_the_newest_claim_ends_the_run_and_late_chunks_are_few(
    seed: int, pauses_ms: list[int], recheck: int, fences: bool
) -> None:
    """Hosts claim one after the other, and none hears of the others. `since[e]`: the log's length as e was claimed."""

    async def case() -> None:
        host = Host(fences=fences)
        await host.create()
        endings: list[int] = []
        since: dict[int, int] = {}

        async def one(pause_ms: int) -> None:
            async with claim_run(host.records, RUN) as claim:
                log = fenced(host, claim, recheck_appends=recheck)
                records = FencedRecords(host.records, claim.latch)
                with suppress(RunClaimLostError):
                    await log.claim(claim.epoch)
                    since[claim.epoch] = len(await log.snapshot())
                    for n in range(6):
                        await log.append([encode(text(100 * claim.epoch + n))])
                        await sleep(pause_ms / 1000)
                if await records.update(RUN, RunPatch(status=Status.COMPLETED)):
                    endings.append(claim.epoch)

        async def late(number: int, pause_ms: int) -> None:
            await sleep(0.15 * number)
            with suppress(RunClaimNotAcquiredError):
                await one(pause_ms)

        await asyncio.gather(*(late(number, pause_ms) for number, pause_ms in enumerate(pauses_ms)))
        assert endings == [(await host.records.row()).driver_epoch]
        epochs = [int(event["delta"][1:]) // 100 for event in await host.logs.stored()]
        for epoch, length in since.items():
            for older in range(1, epoch):
                assert epochs[length:].count(older) <= (0 if fences else recheck - 1)

    played(case(), seed)
