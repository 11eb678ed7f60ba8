"""The claim on the record (contract 5.2; scenarios 69 to 78, 97 and 99; 71 by compare-and-set)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from unit.delivery.hosts import RUN, THREAD, Host, Lossy, played, sleep

from runtime.core.record import Status
from runtime.delivery.claim import EPOCH_RECHECK_APPENDS, claim_run
from runtime.delivery.errors import (
    NotAcquired,
    RunClaimNotAcquiredError,
)
from runtime.delivery.locks import MemoryLocks
from runtime.delivery.quiet import FENCE_QUIET_MS, MAX_PROBES
from runtime.delivery.records import MemoryRunRecords, RunPatch, RunRow


def test_69_70_72_76_a_first_claim_is_epoch_1_under_its_lock_whose_lease_it_shows() -> None:
    async def case() -> None:
        host, locks = Host(), Lossy()
        await host.create()
        async with claim_run(host.records, RUN, locks=locks) as claim:
            assert (claim.run_id, claim.epoch, claim.row.driver_epoch) == (RUN, 1, 1)
            assert claim.lease is locks.lease
            assert (locks.keys, locks.held) == ([f"run-driver:{RUN}"], 1)
        assert locks.held == 0

    played(case())


def test_71_each_claim_is_one_above_the_last() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        for epoch in (1, 2, 3):
            async with claim_run(host.records, RUN) as claim:
                assert claim.epoch == epoch
        assert (await host.records.row()).driver_epoch == 3

    played(case())


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.ABORTED])
def test_73_75_a_run_that_has_ended_is_refused_as_terminal(status: Status) -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.records.update(RUN, RunPatch(status=status))
        with pytest.raises(RunClaimNotAcquiredError) as caught:
            async with claim_run(host.records, RUN):
                pass
        assert caught.value.reason is NotAcquired.TERMINAL
        assert (await host.records.row()).driver_epoch == 0

    played(case())


def test_an_interrupted_run_can_be_claimed() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.records.update(RUN, RunPatch(status=Status.INTERRUPTED))
        async with claim_run(host.records, RUN) as claim:
            assert claim.epoch == 1

    played(case())


def test_74_75_an_unknown_run_is_refused_and_not_made() -> None:
    async def case() -> None:
        host = Host()
        with pytest.raises(RunClaimNotAcquiredError) as caught:
            async with claim_run(host.records, RUN):
                pass
        assert caught.value.reason is NotAcquired.UNKNOWN
        assert await host.records.get(RUN) is None

    played(case())


def test_75_who_loses_the_race_is_told_superseded_and_has_written_nothing() -> None:
    class Racing(MemoryRunRecords):
        async def get(self, run_id: str) -> RunRow | None:
            row = await super().get(run_id)
            if row is not None and row.driver_epoch == 0:
                await self.advance_epoch(run_id, 0, "the winner")
            return row

    async def case() -> None:
        records = Racing()
        await records.create_or_resume(RUN, THREAD, 1)
        with pytest.raises(RunClaimNotAcquiredError) as caught:
            async with claim_run(records, RUN):
                pass
        assert caught.value.reason is NotAcquired.SUPERSEDED
        row = await records.get(RUN)
        assert row is not None
        assert (row.driver_epoch, row.claimant) == (1, "the winner")

    played(case())


def test_a_claim_whose_answer_was_lost_is_asked_again_and_is_one_claim() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        host.records.failing = {"advance_epoch.answer"}
        async with claim_run(host.records, RUN) as claim:
            assert claim.epoch == 1
        assert (await host.records.row()).driver_epoch == 1

    played(case())


def test_77_the_lock_is_let_go_when_the_body_raises() -> None:
    async def case() -> None:
        host, locks = Host(), MemoryLocks()
        await host.create()
        with suppress(ZeroDivisionError):
            async with claim_run(host.records, RUN, locks=locks):
                raise ZeroDivisionError
        async with claim_run(host.records, RUN, locks=locks) as claim:
            assert claim.epoch == 2
        assert locks._locks == {}

    played(case())


def test_78_the_defaults_are_five_seconds_six_probes_and_32_appends() -> None:
    assert (FENCE_QUIET_MS, MAX_PROBES, EPOCH_RECHECK_APPENDS) == (5_000, 6, 32)


@pytest.mark.parametrize("seed", range(5))
def test_97_99_racing_claims_under_a_lock_of_this_process_take_turns(seed: int) -> None:
    async def case() -> None:
        host, locks = Host(), MemoryLocks()
        await host.create()
        inside: list[int] = []

        async def one() -> int:
            async with claim_run(host.records, RUN, locks=locks) as claim:
                inside.append(claim.epoch)
                await sleep(1.0)
                assert inside[-1] == claim.epoch
                assert not claim.lease.lost.is_set()
                return claim.epoch

        assert sorted(await asyncio.gather(one(), one(), one())) == [1, 2, 3]

    played(case(), seed)


@pytest.mark.parametrize("seed", range(10))
def test_99_racing_claims_without_a_lock_never_share_an_epoch(seed: int) -> None:
    async def case() -> None:
        host = Host()
        await host.create()

        async def one() -> int:
            try:
                async with claim_run(host.records, RUN) as claim:
                    return claim.epoch
            except RunClaimNotAcquiredError:
                return 0

        epochs = [epoch for epoch in await asyncio.gather(*(one() for _ in range(6))) if epoch]
        assert sorted(epochs) == list(range(1, len(epochs) + 1))
        assert epochs

    played(case(), seed)
