"""One run, driven by one host after another (contract 12.1 and 5.5; scenarios 1, 6, 102 to 105 and 111 to 117)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.delivery.hosts import RUN, THREAD, Host, Lossy, events, loop, played, sleep, supersede, text

from runtime.core.chunk import Event
from runtime.core.record import Status
from runtime.delivery.driver import DriverClaim
from runtime.delivery.errors import RunClaimNotAcquiredError
from runtime.delivery.records import RowError
from runtime.errors import RunClaimLostError

CUSTOM: Event = {"type": "CUSTOM", "name": "file.changed", "value": 1}
STARTED: Event = {"type": "RUN_STARTED", "runId": RUN, "threadId": THREAD}
FINISHED: Event = {"type": "RUN_FINISHED", "runId": RUN, "threadId": THREAD}


def texts(*numbers: int) -> list[Event]:
    return [text(n) for n in numbers]


@pytest.mark.parametrize("fences", [False, True])
def test_1_a_takeover_leaves_the_log_with_each_chunk_once(fences: bool) -> None:
    async def case() -> None:
        host = Host(fences=fences)
        story = [STARTED, *texts(1, 2, 3), FINISHED]
        read_three = asyncio.Event()

        async def stalling(_claim: DriverClaim) -> AsyncGenerator[Event, None]:
            for event in story[:3]:
                yield event
            read_three.set()
            await asyncio.Event().wait()

        first = loop().create_task(host.driver().start(RUN, THREAD, stalling))
        await read_three.wait()
        first.cancel()  # as its process ends
        with suppress(asyncio.CancelledError):
            await first
        assert (await host.records.row()).status is Status.RUNNING
        await host.logs.put(CUSTOM)
        row = await host.driver().take_over(RUN, lambda _: events(*story))
        assert (row.status, row.driver_epoch) == (Status.COMPLETED, 2)
        assert await host.logs.stored() == [*story[:3], CUSTOM, *story[3:]]

    played(case())


@pytest.mark.parametrize("fences", [False, True])
def test_6_111_112_a_driver_that_wakes_up_after_its_successor_changes_nothing(fences: bool) -> None:
    async def case() -> None:
        host = Host(fences=fences)
        story = [STARTED, *texts(1, 2, 3, 4), FINISHED]
        asleep, wake = asyncio.Event(), asyncio.Event()

        async def sleeper(_claim: DriverClaim) -> AsyncGenerator[Event, None]:
            for event in story[:3]:
                yield event
            asleep.set()
            await wake.wait()
            for event in story[3:]:
                yield event

        first = loop().create_task(host.driver(epoch_recheck_appends=1).start(RUN, THREAD, sleeper))
        await asleep.wait()
        ended = await host.driver().take_over(RUN, lambda _: events(*story))
        wake.set()
        seen_by_the_first = await first
        assert ended == seen_by_the_first == await host.records.row()
        assert (ended.status, ended.error, ended.driver_epoch) == (Status.COMPLETED, None, 2)
        assert await host.logs.stored() == story
        assert host.logs.closes == 2

    played(case())


def test_104_113_a_lost_lease_ends_nothing_and_lets_readers_go() -> None:
    async def case() -> None:
        locks = Lossy()
        host = Host(locks=locks)
        waiting = asyncio.Event()

        async def source(_claim: DriverClaim) -> AsyncGenerator[Event, None]:
            yield text(1)
            waiting.set()
            await asyncio.Event().wait()

        drive = loop().create_task(host.driver().start(RUN, THREAD, source))
        await waiting.wait()
        locks.lease.lost.set()
        row = await drive
        assert (row.status, row.error) == (Status.RUNNING, None)
        assert await host.logs.stored() == texts(1)
        assert host.logs.closes == 1

    played(case())


def test_102_103_105_a_claim_that_is_superseded_while_it_waits_for_quiet_writes_nothing() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        await host.logs.put(text(1))
        loop().call_later(2.0, lambda: asyncio.create_task(supersede(host)))
        row = await host.driver().take_over(RUN, lambda _: events(*texts(1, 2)))
        assert row.driver_epoch == 2
        assert row.status is Status.RUNNING
        assert await host.logs.stored() == texts(1)
        assert host.logs.closes == 1

    played(case())


def test_114_an_empty_source_of_a_superseded_driver_completes_nothing() -> None:
    async def case() -> None:
        host = Host()
        await host.create()
        async with host.driver().claim(RUN) as claim:
            await supersede(host)
            row = await claim.pipe(events())
        assert (row.status, row.finished_at) == (Status.RUNNING, None)

    played(case())


def test_117_a_providers_error_on_a_healthy_claim_fails_the_run() -> None:
    async def case() -> None:
        host = Host()
        row = await host.driver().start(RUN, THREAD, lambda _: events(text(1), RuntimeError("no quota")))
        assert (row.status, row.error) == (Status.FAILED, RowError(message="no quota"))
        assert (await host.logs.stored())[-1] == {
            "type": "RUN_ERROR",
            "message": "no quota",
            "metadata": {"tanstack": {"runId": RUN}},
        }

    played(case())


# --- a law -----------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10_000),
    pauses=st.lists(st.floats(0, 12), min_size=1, max_size=4),
    length=st.integers(1, 6),
)
def test_whoever_drives_a_log_that_fences_it_holds_the_story_once(seed: int, pauses: list[float], length: int) -> None:
    """Each host replays the story, and pauses somewhere in it; hosts come while others pause, and these wake up."""

    async def case() -> None:
        host = Host(fences=True)
        story = [STARTED, *texts(*range(length)), FINISHED]
        await host.create()

        async def drive(number: int, pause: float) -> None:
            async def source(_claim: DriverClaim) -> AsyncGenerator[Event, None]:
                for at, event in enumerate(story):
                    if at == (number + 1) % len(story):
                        await sleep(pause)
                    await sleep(0.01)
                    yield event

            await sleep(number * 3.0)
            with suppress(RunClaimNotAcquiredError, RunClaimLostError):
                await host.driver().take_over(RUN, source)

        await asyncio.gather(*(drive(number, pause) for number, pause in enumerate(pauses)))
        assert await host.logs.stored() == story
        row = await host.records.row()
        assert (row.status, row.error) == (Status.COMPLETED, None)

    played(case(), seed)
