"""One run's chunks into its log, to one ending (contract 5.6; scenarios 122 to 138).

One thing differs on purpose: an abort is told in the log, by a RUN_ERROR `aborted`, so that no reader waits for more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

import pytest
from unit.delivery.hosts import RUN, THREAD, Host, events, loop, played, text

from runtime.core.chunk import Event
from runtime.core.record import Status
from runtime.delivery.pipe import ABORTED, UNKNOWN, Pipe, Stop, error_of
from runtime.delivery.records import RowError, RunRow
from runtime.errors import LaunchFailed
from runtime.testing.delivery_kit import turn

TOLD: Event = {
    "type": "RUN_ERROR",
    "message": "Request aborted",
    "code": "aborted",
    "metadata": {"tanstack": {"runId": RUN}},
}


async def pipe(host: Host, source: AsyncIterable[Event], stop: Stop | None = None) -> RunRow:
    return await Pipe(RUN, THREAD, host.records, host.logs(RUN), loop().wall_ms).run(source, stop or Stop())


async def stopped_while_waiting(host: Host, source: Any) -> RunRow:
    """Pipe `source(waiting)`, which sets `waiting` before it waits, and stop it there."""
    waiting, stop = asyncio.Event(), Stop()
    task = loop().create_task(pipe(host, source(waiting), stop))
    await waiting.wait()
    stop.set()
    return await task


def test_122_130_a_normal_source_is_stored_completed_and_closed_once() -> None:
    async def case() -> None:
        host = Host()
        row = await pipe(host, events(text(1), text(2)), Stop())
        assert (row.status, row.error) == (Status.COMPLETED, None)
        assert row.finished_at is not None
        assert row == await host.records.row()
        assert await host.logs.stored() == [text(1), text(2)]
        assert (host.logs.appends, host.logs.closes) == (2, 1)

    played(case())


def test_122_an_empty_source_completes_too() -> None:
    async def case() -> None:
        host = Host()
        assert (await pipe(host, events())).status is Status.COMPLETED
        assert host.logs.closes == 1

    played(case())


def test_123_131_a_source_that_raises_fails_and_the_log_tells_why() -> None:
    async def case() -> None:
        host = Host()
        row = await pipe(host, events(text(1), LaunchFailed("no such agent")))
        assert (row.status, row.error) == (Status.FAILED, RowError(message="no such agent", code="launch_failed"))
        stored = await host.logs.stored()
        assert stored[0] == text(1)
        assert (stored[1]["type"], stored[1]["message"], stored[1]["code"]) == (
            "RUN_ERROR",
            "no such agent",
            "launch_failed",
        )
        assert host.logs.closes == 1

    played(case())


def test_124_a_pipe_that_is_stopped_before_it_begins_never_pulls() -> None:
    async def case() -> None:
        host, stop, pulled = Host(), Stop(), []

        async def source() -> AsyncGenerator[Event, None]:
            pulled.append(1)
            yield text(1)

        stop.set()
        row = await pipe(host, source(), stop)
        assert (row.status, row.error, pulled, host.logs.closes) == (Status.ABORTED, ABORTED, [], 1)
        assert await host.logs.stored() == [TOLD]

    played(case())


@pytest.mark.parametrize(("more", "code"), [({}, None), ({"code": "x"}, "x"), ({"code": 429}, "429")])
def test_125_126_a_run_error_from_the_source_is_the_end_and_the_records_error(
    more: dict[str, Any], code: str | None
) -> None:
    async def case() -> None:
        host, event = Host(), {"type": "RUN_ERROR", "message": "over quota", **more}
        row = await pipe(host, events(event, text(1)))
        assert (row.status, row.error) == (Status.FAILED, RowError(message="over quota", code=code))
        assert await host.logs.stored() == [event]
        assert host.logs.closes == 1

    played(case())


def test_127_128_a_stop_reaches_a_source_that_waits_and_keeps_what_is_stored() -> None:
    async def case() -> None:
        host, cleaned = Host(), []

        async def source(waiting: asyncio.Event) -> AsyncGenerator[Event, None]:
            yield text(1)
            try:
                waiting.set()
                await asyncio.Event().wait()
            finally:
                cleaned.append(asyncio.current_task())

        row = await stopped_while_waiting(host, source)
        assert (row.status, row.error) == (Status.ABORTED, ABORTED)
        assert await host.logs.stored() == [text(1), TOLD]
        assert len(cleaned) == 1

    played(case())


def test_127_a_chunk_that_comes_after_the_stop_is_not_stored() -> None:
    async def case() -> None:
        host, stop = Host(), Stop()

        async def source() -> AsyncGenerator[Event, None]:
            yield text(1)
            stop.set()
            yield text(2)

        assert (await pipe(host, source(), stop)).status is Status.ABORTED
        assert await host.logs.stored() == [text(1), TOLD]

    played(case())


def test_127_a_stop_waits_for_the_append_that_is_under_way() -> None:
    async def case() -> None:
        host, stop = Host(), Stop()
        host.logs.gate.clear()
        task = loop().create_task(pipe(host, events(text(1), text(2)), stop))
        await turn()
        assert host.logs.appends == 1
        stop.set()
        await turn()
        assert not task.done()
        host.logs.gate.set()
        assert (await task).status is Status.ABORTED
        assert await host.logs.stored() == [text(1), TOLD]

    played(case())


def test_128_a_source_that_ends_when_it_is_stopped_is_aborted() -> None:
    async def case() -> None:
        host = Host()

        async def source(waiting: asyncio.Event) -> AsyncGenerator[Event, None]:
            yield text(1)
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        assert (await stopped_while_waiting(host, source)).status is Status.ABORTED

    played(case())


def test_129_a_source_that_raises_when_it_is_stopped_fails() -> None:
    async def case() -> None:
        host = Host()

        async def source(waiting: asyncio.Event) -> AsyncGenerator[Event, None]:
            yield text(1)
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ConnectionError("cut") from None

        row = await stopped_while_waiting(host, source)
        assert (row.status, row.error) == (Status.FAILED, RowError(message="cut"))

    played(case())


def test_a_source_that_cancels_itself_fails_as_aborted() -> None:
    async def case() -> None:
        host = Host()
        row = await pipe(host, events(text(1), asyncio.CancelledError()))
        assert (row.status, row.error) == (Status.FAILED, ABORTED)

    played(case())


@pytest.mark.parametrize("appending", [False, True])
def test_the_end_of_the_host_is_no_ending_of_the_run(appending: bool) -> None:
    async def case() -> None:
        host, waiting, cleaned = Host(), asyncio.Event(), asyncio.Event()

        async def source() -> AsyncGenerator[Event, None]:
            try:
                yield text(1)
                waiting.set()
                if appending:
                    host.logs.gate.clear()
                    yield text(2)
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned.set()

        task = loop().create_task(pipe(host, source()))
        await waiting.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned.is_set()
        assert (await host.records.row()).status is Status.RUNNING
        assert await host.logs.stored() == [text(1)]
        assert host.logs.closes == 0

    played(case())


def test_a_source_is_iterated_in_one_task() -> None:
    async def case() -> None:
        host, tasks = Host(), set()

        async def source() -> AsyncGenerator[Event, None]:
            async with asyncio.timeout(60):  # needs the task that entered it
                for n in range(3):
                    tasks.add(asyncio.current_task())
                    await asyncio.sleep(0)
                    yield text(n)

        assert (await pipe(host, source())).status is Status.COMPLETED
        assert len(tasks) == 1

    played(case())


def test_132_a_status_that_cannot_be_stored_still_closes_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def case() -> None:
        host = Host()
        host.records.failing = {"update"}
        row = await pipe(host, events(text(1)))
        assert (row.status, host.logs.closes) == (Status.COMPLETED, 1)
        assert "could not be stored" in caplog.text

    played(case())


def test_134_a_close_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def case() -> None:
        host = Host()
        host.logs.broken = {"close"}
        assert (await pipe(host, events(text(1)))).status is Status.COMPLETED
        assert "could not be closed" in caplog.text

    played(case())


def test_135_an_error_that_the_log_cannot_be_told_is_kept_with_why() -> None:
    async def case() -> None:
        host = Host()
        host.logs.failing = OSError("no space")
        row = await pipe(host, events(text(1)))
        assert row.error == RowError(message="no space (and its log could not be told: no space)")
        assert row.status is Status.FAILED

    played(case())


def test_136_a_record_that_cannot_be_made_is_a_failed_run() -> None:
    async def case() -> None:
        host = Host()
        host.records.failing = {"create_or_resume"}
        row = await pipe(host, events(text(1)))
        assert (row.status, row.error) == (
            Status.FAILED,
            RowError(message="create_or_resume fails", code="store_unavailable"),
        )
        assert [event["type"] for event in await host.logs.stored()] == ["RUN_ERROR"]

    played(case())


def test_137_138_a_record_that_cannot_be_read_back_is_told_from_memory() -> None:
    async def case() -> None:
        host = Host()
        host.records.failing = {"get"}
        row = await pipe(host, events(text(1)))
        assert (row.run_id, row.thread_id, row.status) == (RUN, THREAD, Status.COMPLETED)
        assert row.finished_at is not None

    played(case())


class _Odd(Exception):
    def __init__(self, message: str = "", **facts: object) -> None:
        super().__init__(message)
        self.__dict__.update(facts)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (_Odd("m"), RowError(message="m")),
        (_Odd("m", code="c"), RowError(message="m", code="c")),
        (_Odd("m", code=404), RowError(message="m", code="404")),
        (_Odd("m", code=float("nan"), status=503), RowError(message="m", code="503")),
        (_Odd("m", status="bad"), RowError(message="m")),
        (_Odd("m", code=True), RowError(message="m")),
        (_Odd(code="c"), RowError(message="_Odd", code="c")),
        (_Odd(), UNKNOWN),
        (asyncio.CancelledError(), ABORTED),
    ],
)
def test_an_exception_becomes_a_message_and_a_code(failure: BaseException, expected: RowError) -> None:
    assert error_of(failure) == expected
