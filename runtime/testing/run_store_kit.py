"""The conformance kit of `delivery.records.RunStore`: what every store of runs does, whoever may write to it.

    class TestMine(RunStoreKit):
        async def make(self) -> Callable[[], RunStore]:
            return MyTable(...).client      # fresh storage; each call gives what another host would have

Where rows are not made through the port, `seed` makes them in another way. What differs from store to store (whether
every field can be written, how many runs of a thread run at once) is not asked here: `records_kit.py` goes on.
"""

# ruff: noqa: D102 - a test's name states the fact, and expected numbers are literal on purpose

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from runtime.core.record import Status
from runtime.delivery.records import RunPatch, RunRow, RunStore

T = TypeVar("T")

RUN = "run-1"
THREAD = "thread-1"
ENDED = [Status.COMPLETED, Status.FAILED, Status.ABORTED]


async def row_of(store: RunStore, run_id: str = RUN) -> RunRow:
    """Return the row of a run that exists."""
    row = await store.get(run_id)
    assert row is not None
    return row


class RunStoreKit:
    """All cases; see the module's docstring."""

    async def make(self) -> Callable[[], RunStore]:
        """Return what opens this test's storage."""
        raise NotImplementedError("a subclass has a method make")

    async def seed(self, store: RunStore, row: RunRow) -> None:
        """Make a run as `row` says: its thread, status, `detached_since`, `sandbox_key` and `cancel_requested`. Later
        calls make later runs."""
        await store.create_or_resume(row.run_id, row.thread_id, row.started_at)
        patch = RunPatch(
            status=row.status,
            detached_since=row.detached_since,
            sandbox_key=row.sandbox_key,
            cancel_requested=row.cancel_requested,
        )
        await store.update(row.run_id, patch)

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one test."""
        return asyncio.run(work)

    def test_an_unknown_run_is_none_and_a_change_of_it_makes_none(self) -> None:
        async def case() -> None:
            client = await self.make()
            patches = (RunPatch(cancel_requested=True), RunPatch(detached_since=None), RunPatch(status=Status.FAILED))
            for patch in patches:
                assert not await client().update(RUN, patch)
            assert await client().get(RUN) is None
            assert await client().list_by_thread(THREAD) == []
            assert await client().find_active(THREAD) is None

        self.play(case())

    def test_what_was_not_set_is_none(self) -> None:
        async def case() -> None:
            client = await self.make()
            await self.seed(client(), RunRow(run_id=RUN, thread_id=THREAD, started_at=7))
            row = await row_of(client())
            assert (row.run_id, row.thread_id, row.status) == (RUN, THREAD, Status.RUNNING)
            assert (row.cancel_requested, row.detached_since, row.sandbox_key) == (None, None, None)
            assert (row.finished_at, row.error, row.usage) == (None, None, None)

        self.play(case())

    @pytest.mark.parametrize("status", list(Status))
    def test_a_run_that_is_there_is_resumed_unchanged_and_never_revived(self, status: Status) -> None:
        async def case() -> None:
            client = await self.make()
            await self.seed(client(), RunRow(run_id=RUN, thread_id=THREAD, started_at=7, status=status))
            before = await row_of(client())
            assert before.status is status
            assert await client().create_or_resume(RUN, "another", 99) == before == await client().get(RUN)

        self.play(case())

    def test_to_clear_a_field_and_not_to_name_it_differ(self) -> None:
        async def case() -> None:
            client = await self.make()
            row = RunRow(run_id=RUN, thread_id=THREAD, started_at=7, detached_since=100, sandbox_key="box")
            await self.seed(client(), row)
            before = await row_of(client())
            assert (before.detached_since, before.sandbox_key) == (100, "box")
            assert await client().update(RUN, RunPatch())
            assert await client().get(RUN) == before
            assert await client().update(RUN, RunPatch(detached_since=None))
            after = await row_of(client())
            assert (after.detached_since, after.sandbox_key) == (None, "box")
            assert (after.status, after.started_at) == (before.status, before.started_at)

        self.play(case())

    def test_a_request_to_cancel_changes_that_and_nothing_else(self) -> None:
        async def case() -> None:
            client = await self.make()
            row = RunRow(run_id=RUN, thread_id=THREAD, started_at=7, detached_since=100, sandbox_key="box")
            await self.seed(client(), row)
            before = await row_of(client())
            for _ in range(2):
                assert await client().update(RUN, RunPatch(cancel_requested=True))
                after = await row_of(client())
                assert after.cancel_requested is True
                assert (after.status, after.finished_at) == (Status.RUNNING, None)
                assert (after.detached_since, after.sandbox_key) == (before.detached_since, before.sandbox_key)

        self.play(case())

    def test_the_active_run_is_the_newest_that_is_running_of_its_thread_alone(self) -> None:
        async def case() -> None:
            client = await self.make()
            for number, (run_id, thread_id, status) in enumerate(
                (
                    ("ended", THREAD, Status.COMPLETED),
                    ("runs", THREAD, Status.RUNNING),
                    ("asks", "thread-2", Status.INTERRUPTED),
                    ("over", "thread-3", Status.FAILED),
                )
            ):
                await self.seed(client(), RunRow(run_id=run_id, thread_id=thread_id, started_at=number, status=status))
            active = await client().find_active(THREAD)
            assert active is not None
            assert active == await client().get("runs")
            for thread_id in ("thread-2", "thread-3", "thread-4"):
                assert await client().find_active(thread_id) is None

        self.play(case())

    def test_a_run_that_nobody_watches_is_active_all_the_same(self) -> None:
        async def case() -> None:
            client = await self.make()
            await self.seed(client(), RunRow(run_id=RUN, thread_id=THREAD, started_at=7, detached_since=100))
            assert await client().find_active(THREAD) == await row_of(client())

        self.play(case())

    def test_a_thread_lists_its_runs_oldest_first(self) -> None:
        async def case() -> None:
            client = await self.make()
            for number, (run_id, thread_id) in enumerate((("b", THREAD), ("x", "thread-2"), ("a", THREAD))):
                row = RunRow(run_id=run_id, thread_id=thread_id, started_at=number, status=Status.COMPLETED)
                await self.seed(client(), row)
            assert [row.run_id for row in await client().list_by_thread(THREAD)] == ["b", "a"]

        self.play(case())

    def test_a_run_is_reclaimable_from_the_very_moment_that_its_time_is_over(self) -> None:
        async def case() -> None:
            client = await self.make()
            kinds = (
                ("later", 200, Status.RUNNING),
                ("earlier", 100, Status.RUNNING),
                ("watched", None, Status.RUNNING),
                ("ended", 50, Status.COMPLETED),
                ("asks", 50, Status.INTERRUPTED),
            )
            for number, (run_id, since, status) in enumerate(kinds):
                row = RunRow(run_id=run_id, thread_id=run_id, started_at=number, status=status, detached_since=since)
                await self.seed(client(), row)
            for now, due in ((1099, []), (1100, ["earlier"]), (1199, ["earlier"]), (1200, ["earlier", "later"])):
                assert [row.run_id for row in await client().list_reclaimable(now, 1000)] == due
            await client().update("earlier", RunPatch(detached_since=None))
            assert [row.run_id for row in await client().list_reclaimable(1200, 1000)] == ["later"]

        self.play(case())
