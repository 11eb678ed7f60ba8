"""Runs in the background of one process (contract 5.6; scenarios 139 and 144)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from unit.delivery.hosts import RUN, THREAD, Host, events, played, sleep, text

from runtime.core.chunk import Event, decode_chunk
from runtime.core.record import Status
from runtime.delivery.controller import RunController
from runtime.delivery.driver import DriverClaim
from runtime.errors import StoreUnavailable


async def slow(_claim: DriverClaim) -> AsyncGenerator[Event, None]:
    for n in (1, 2, 3):
        await sleep(1.0)
        yield text(n)


def controller(host: Host) -> RunController:
    return RunController(host.driver(), host.logs)


def test_139_start_returns_at_once_and_drain_waits_for_the_end() -> None:
    async def case() -> None:
        host = Host(fences=True)
        control = controller(host)
        task = await control.start(RUN, THREAD, slow)
        row = await control.status(RUN)
        assert row is not None
        assert row.status is Status.RUNNING
        assert not task.done()
        await control.drain()
        ended = task.result()
        assert ended is not None
        assert ended.status is Status.COMPLETED
        assert await control.status(RUN) == ended
        assert await control.status("unknown") is None

    played(case())


def test_139_a_run_that_fails_is_a_row_and_no_exception() -> None:
    async def case() -> None:
        control = controller(Host())
        task = await control.start(RUN, THREAD, lambda _: events(RuntimeError("no")))
        await control.drain()
        row = task.result()
        assert row is not None
        assert row.status is Status.FAILED

    played(case())


def test_139_144_attach_reads_the_asked_for_run_from_the_asked_for_offset() -> None:
    async def case() -> None:
        host = Host(fences=True)
        control = controller(host)
        _ = await control.start("a", THREAD, lambda _: events(text(10), text(11)))
        _ = await control.start("b", THREAD, lambda _: events(text(20), text(21)))
        await control.drain()
        entries = [entry async for entry in control.attach("b")]
        assert [decode_chunk(entry.chunk) for entry in entries] == [text(20), text(21)]
        assert [entry async for entry in control.attach("b", entries[0].offset)] == entries[1:]

    played(case())


def test_a_reader_that_leaves_changes_nothing_for_the_run() -> None:
    async def case() -> None:
        control = controller(Host(fences=True))
        task = await control.start(RUN, THREAD, slow)
        await sleep(1.5)
        reading = control.attach(RUN)
        assert decode_chunk((await anext(reading)).chunk) == text(1)
        await reading.aclose()
        await control.drain()
        assert len([entry async for entry in control.attach(RUN)]) == 3
        assert task.result() is not None

    played(case())


def test_what_a_process_leaves_another_takes_over() -> None:
    async def case() -> None:
        host = Host(fences=True)
        old, new = controller(host), controller(host)
        task = await old.start(RUN, THREAD, slow)
        await sleep(2.5)
        await old.leave()
        assert task.cancelled()
        assert (await host.records.row()).status is Status.RUNNING
        _ = new.ensure(RUN, slow)
        await new.drain()
        row = await host.records.row()
        assert (row.status, row.driver_epoch) == (Status.COMPLETED, 2)
        assert await host.logs.stored() == [text(1), text(2), text(3)]

    played(case())


def test_drain_also_waits_for_what_is_started_meanwhile() -> None:
    async def case() -> None:
        control = controller(Host(fences=True))
        _ = await control.start("a", THREAD, slow)
        draining = asyncio.get_running_loop().create_task(control.drain())
        await sleep(2.0)
        second = await control.start("b", THREAD, slow)
        await draining
        assert second.done()

    played(case())


def test_a_record_that_cannot_be_made_begins_nothing() -> None:
    async def case() -> None:
        host = Host()
        host.records.failing = {"create_or_resume"}
        control = controller(host)
        with pytest.raises(StoreUnavailable):
            _ = await control.start(RUN, THREAD, slow)
        await control.drain()
        assert host.logs.made == []

    played(case())
