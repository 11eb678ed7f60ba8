"""The conformance kit of `delivery.records.RunRecords`: the record beside an external log, in whatever database.

    class TestMine(RunRecordsKit):
        async def make(self) -> Callable[[], RunRecords]:
            return MyTable(...).client      # fresh storage; each call gives what another host would have

It is the kit of a `RunStore` (`run_store_kit.py`) with what only a store of one's own rows can do, and the fence.

The log beside it may not be able to keep an older driver out; this record must. So each implementation is tried with
racing claims and late endings, from several clients. `play` runs a test's coroutine: override it for virtual time.
"""

# ruff: noqa: D102, PLR2004 - a test's name states the fact, and expected numbers are literal on purpose

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from runtime.core.record import Status
from runtime.delivery.records import RowError, RunPatch, RunRecords, RunRow
from runtime.testing.run_store_kit import ENDED, RUN, THREAD, RunStoreKit, row_of


class RunRecordsKit(RunStoreKit):
    """All cases; see the module's docstring."""

    async def make(self) -> Callable[[], RunRecords]:
        """Return what opens this test's storage."""
        raise NotImplementedError("a subclass of RunRecordsKit has a method make")

    # --- making

    def test_a_new_row_is_running_and_nothing_else_is_set(self) -> None:
        async def case() -> None:
            client = await self.make()
            assert await client().get(RUN) is None
            made = await client().create_or_resume(RUN, THREAD, 7)
            assert made == RunRow(run_id=RUN, thread_id=THREAD, started_at=7) == await client().get(RUN)

        self.play(case())

    # --- changing

    def test_every_field_reads_back_and_only_named_ones_change(self) -> None:
        async def case() -> None:
            client = await self.make()
            await client().create_or_resume(RUN, THREAD, 7)
            patch = RunPatch(
                status=Status.FAILED,
                finished_at=9,
                error=RowError(message="m", code="c"),
                usage={"totalTokens": 3, "parts": [1, None]},
                sandbox_key="box",
                detached_since=8,
                cancel_requested=False,
            )
            assert await client().update(RUN, patch)
            expected = patch.apply(RunRow(run_id=RUN, thread_id=THREAD, started_at=7))
            assert expected == await client().get(RUN)
            assert await client().update(RUN, RunPatch(detached_since=None, error=RowError(message="other")))
            row = await row_of(client())
            assert (row.detached_since, row.error, row.sandbox_key) == (None, RowError(message="other"), "box")
            assert row.cancel_requested is False
            assert await client().update(RUN, RunPatch(cancel_requested=None))
            assert (await row_of(client())).cancel_requested is None

        self.play(case())

    def test_to_clear_every_field_leaves_what_a_run_is(self) -> None:
        async def case() -> None:
            client = await self.make()
            made = await client().create_or_resume(RUN, THREAD, 7)
            full = RunPatch(sandbox_key="box", detached_since=8, cancel_requested=True, usage={"n": 1}, finished_at=9)
            assert await client().update(RUN, full)
            nothing = RunPatch(
                sandbox_key=None, detached_since=None, cancel_requested=None, usage=None, finished_at=None, error=None
            )
            assert await client().update(RUN, nothing)
            assert made == await client().get(RUN)

        self.play(case())

    def test_a_change_of_an_unknown_run_makes_none(self) -> None:
        async def case() -> None:
            client = await self.make()
            assert not await client().update(RUN, RunPatch(status=Status.FAILED))
            assert not await client().update(RUN, RunPatch(status=Status.FAILED), 0)
            assert await client().get(RUN) is None

        self.play(case())

    def test_the_active_run_is_the_newest_of_its_thread_that_is_running(self) -> None:
        async def case() -> None:
            client = await self.make()
            assert await client().find_active(THREAD) is None
            for run_id, started_at in (("old", 1), ("newest", 3), ("middle", 2)):
                await client().create_or_resume(run_id, THREAD, started_at)
            await client().create_or_resume("elsewhere", "thread-2", 9)
            for run_id, status in (("newest", Status.INTERRUPTED), ("middle", Status.COMPLETED)):
                active = await client().find_active(THREAD)
                assert active is not None
                assert active.run_id == run_id
                await client().update(run_id, RunPatch(status=status))
            await client().update("old", RunPatch(detached_since=5))
            active = await client().find_active(THREAD)
            assert active is not None
            assert active.run_id == "old"

        self.play(case())

    # --- claiming

    def test_a_claim_raises_the_epoch_by_one_from_the_expected_one_only(self) -> None:
        async def case() -> None:
            client = await self.make()
            assert await client().advance_epoch(RUN, 0, "a") is None
            await client().create_or_resume(RUN, THREAD, 7)
            assert await client().advance_epoch(RUN, 1, "a") is None
            first = await client().advance_epoch(RUN, 0, "a")
            assert first is not None
            assert (first.driver_epoch, first.claimant) == (1, "a")
            assert first == await client().get(RUN)
            assert await client().advance_epoch(RUN, 0, "b") is None
            second = await client().advance_epoch(RUN, 1, "b")
            assert second is not None
            assert second.driver_epoch == 2
            assert await client().advance_epoch(RUN, 0, "a") is None

        self.play(case())

    def test_the_same_claim_again_is_the_same_claim(self) -> None:
        async def case() -> None:
            client = await self.make()
            await client().create_or_resume(RUN, THREAD, 7)
            first = await client().advance_epoch(RUN, 0, "a")
            assert await client().advance_epoch(RUN, 0, "a") == first == await client().get(RUN)

        self.play(case())

    @pytest.mark.parametrize("status", ENDED)
    def test_a_run_that_has_ended_cannot_be_claimed(self, status: Status) -> None:
        async def case() -> None:
            client = await self.make()
            await client().create_or_resume(RUN, THREAD, 7)
            await client().update(RUN, RunPatch(status=status))
            assert await client().advance_epoch(RUN, 0, "a") is None
            assert (await row_of(client())).driver_epoch == 0

        self.play(case())

    def test_an_interrupted_run_can_be_claimed(self) -> None:
        async def case() -> None:
            client = await self.make()
            await client().create_or_resume(RUN, THREAD, 7)
            await client().update(RUN, RunPatch(status=Status.INTERRUPTED))
            assert await client().advance_epoch(RUN, 0, "a") is not None

        self.play(case())

    def test_of_racing_claims_exactly_one_gets_the_epoch(self) -> None:
        async def case() -> None:
            client = await self.make()
            await client().create_or_resume(RUN, THREAD, 7)
            for epoch in range(10):
                names = [f"{epoch}-{n}" for n in range(8)]
                rows = await asyncio.gather(*(client().advance_epoch(RUN, epoch, name) for name in names))
                (winner,) = [row for row in rows if row is not None]
                assert winner == await client().get(RUN)
                assert winner.driver_epoch == epoch + 1

        self.play(case())

    # --- the fence

    def test_a_change_under_an_epoch_needs_that_epoch(self) -> None:
        async def case() -> None:
            client = await self.make()
            await client().create_or_resume(RUN, THREAD, 7)
            await client().advance_epoch(RUN, 0, "a")
            await client().advance_epoch(RUN, 1, "b")
            before = await row_of(client())
            for epoch in (0, 1, 3):
                assert not await client().update(RUN, RunPatch(status=Status.COMPLETED), epoch)
            assert await client().get(RUN) == before
            assert await client().update(RUN, RunPatch(status=Status.COMPLETED), 2)
            assert (await row_of(client())).status is Status.COMPLETED

        self.play(case())

    def test_an_ending_that_races_with_a_claim_is_stored_or_refused_and_never_both(self) -> None:
        async def case() -> None:
            client = await self.make()
            for number in range(20):
                run_id = f"run-{number}"
                await client().create_or_resume(run_id, THREAD, 7)
                await client().advance_epoch(run_id, 0, "old")
                stored, claimed = await asyncio.gather(
                    client().update(run_id, RunPatch(status=Status.FAILED), 1),
                    client().advance_epoch(run_id, 1, "new"),
                )
                row = await row_of(client(), run_id)
                assert stored != (claimed is not None)
                assert (row.status, row.driver_epoch) == ((Status.FAILED, 1) if stored else (Status.RUNNING, 2))

        self.play(case())
