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


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (_Unfenced, "test_a_change_under_an_epoch_needs_that_epoch"),
        (_Unfenced, "test_an_ending_that_races_with_a_claim_is_stored_or_refused_and_never_both"),
        (_Generous, "test_of_racing_claims_exactly_one_gets_the_epoch"),
        (_Generous, "test_a_claim_raises_the_epoch_by_one_from_the_expected_one_only"),
    ],
)
def test_the_kit_notices(broken: type[MemoryRunRecords], case: str) -> None:
    class Kit(TestMemoryRunRecords):
        seed = 0

        async def make(self) -> Callable[[], RunRecords]:
            records = broken()
            return lambda: records

        def play(self, work: Coroutine[Any, Any, T]) -> T:
            return play(self.seed, work)

    kit, noticed = Kit(), 0
    for kit.seed in range(20):  # what races is noticed in some order of things
        try:
            getattr(kit, case)()
        except (AssertionError, ValueError):
            noticed += 1
    assert noticed
