"""Run records in memory pass their kit (contract 4.2; rows of scenarios 25 to 36), and what does not is noticed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from runtime.delivery.records import MemoryRunRecords, RunPatch, RunRecords, RunRow
from runtime.testing.records_kit import RunRecordsKit
from runtime.testing.sim_loop import play

T = TypeVar("T")


class TestMemoryRunRecords(RunRecordsKit):
    async def make(self) -> Callable[[], RunRecords]:
        records = MemoryRunRecords()
        return lambda: records

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        return play(9, work)


class _Unfenced(MemoryRunRecords):
    """Forgets the epoch of a change."""

    async def update(self, run_id: str, patch: RunPatch, if_epoch: int | None = None) -> bool:  # noqa: ARG002
        return await super().update(run_id, patch)


class _Generous(MemoryRunRecords):
    """Reads, and then writes: gives one epoch to all who ask."""

    async def advance_epoch(self, run_id: str, expected_epoch: int, claimant: str) -> RunRow | None:
        row = await super().advance_epoch(run_id, expected_epoch, claimant)
        current = await self.get(run_id)
        return row or (current if current and current.driver_epoch == expected_epoch + 1 else None)


class _Careless(MemoryRunRecords):
    """Takes what is cleared for what is not named."""

    async def update(self, run_id: str, patch: RunPatch, if_epoch: int | None = None) -> bool:
        named = {name: value for name in patch.__struct_fields__ if (value := getattr(patch, name)) is not None}
        return await super().update(run_id, RunPatch(**named), if_epoch)


class _Late(MemoryRunRecords):
    """Takes `for so long` for `for longer`."""

    async def list_reclaimable(self, now: int, ttl_ms: int) -> list[RunRow]:
        return await super().list_reclaimable(now - 1, ttl_ms)


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (_Unfenced, "test_a_change_under_an_epoch_needs_that_epoch"),
        (_Unfenced, "test_an_ending_that_races_with_a_claim_is_stored_or_refused_and_never_both"),
        (_Generous, "test_of_racing_claims_exactly_one_gets_the_epoch"),
        (_Careless, "test_to_clear_a_field_and_not_to_name_it_differ"),
        (_Late, "test_a_run_is_reclaimable_from_the_very_moment_that_its_time_is_over"),
        (_Generous, "test_a_claim_raises_the_epoch_by_one_from_the_expected_one_only"),
    ],
)
def test_the_kit_notices(broken: type[MemoryRunRecords], case: str) -> None:
    class Kit(TestMemoryRunRecords):
        order = 0

        async def make(self) -> Callable[[], RunRecords]:
            records = broken()
            return lambda: records

        def play(self, work: Coroutine[Any, Any, T]) -> T:
            return play(self.order, work)

    kit, noticed = Kit(), 0
    for kit.order in range(20):  # what races is noticed in some order of things
        try:
            getattr(kit, case)()
        except (AssertionError, ValueError):
            noticed += 1
    assert noticed
