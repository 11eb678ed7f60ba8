"""Run records in memory: what every implementation does (contract 4.2; rows of scenarios 25 to 36)."""

from __future__ import annotations

from unit.delivery.hosts import RUN, THREAD, played

from runtime.core.record import Status
from runtime.delivery.records import MemoryRunRecords, RunPatch


def test_a_change_names_what_it_clears_and_leaves_the_rest() -> None:
    async def case() -> None:
        records = MemoryRunRecords()
        first = await records.create_or_resume(RUN, THREAD, 5)
        assert (first.cancel_requested, first.detached_since, first.sandbox_key) == (None, None, None)
        assert await records.update(RUN, RunPatch(cancel_requested=False, detached_since=3, sandbox_key="k"))
        assert await records.update(RUN, RunPatch(detached_since=None))
        row = await records.get(RUN)
        assert row is not None
        assert (row.cancel_requested, row.detached_since, row.sandbox_key) == (False, None, "k")
        assert await records.create_or_resume(RUN, "other", 99) == row
        assert not await records.update("unknown", RunPatch(status=Status.FAILED))
        assert await records.get("unknown") is None

    played(case())


def test_the_active_run_of_a_thread_is_the_newest_that_is_running() -> None:
    async def case() -> None:
        records = MemoryRunRecords()
        assert await records.find_active(THREAD) is None
        for n in (1, 2, 3):
            await records.create_or_resume(f"run-{n}", THREAD, n)
        await records.create_or_resume("elsewhere", "thread-2", 9)
        await records.update("run-3", RunPatch(status=Status.INTERRUPTED))
        active = await records.find_active(THREAD)
        assert active is not None
        assert active.run_id == "run-2"

    played(case())
