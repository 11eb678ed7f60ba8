"""A successor waits until a log that cannot fence is quiet (contract 5.3; scenarios 79 to 83)."""

from __future__ import annotations

import asyncio

import pytest
from unit.delivery.hosts import RUN, Host, loop, played, text

from runtime.delivery.errors import (
    LogNotQuietError,
)
from runtime.delivery.quiet import await_quiet
from runtime.errors import OwnershipLost


def test_79_80_83_two_equal_lengths_are_quiet_and_nothing_is_read() -> None:
    async def case() -> None:
        host = Host()
        assert await await_quiet(host.logs(RUN)) == 0
        assert loop().time() == 5.0
        await host.logs.put(text(1), text(2))
        assert await await_quiet(host.logs(RUN)) == 2
        assert host.logs.reads == 0
        assert host.logs.snapshots == [0.0, 5.0, 5.0, 10.0]

    played(case())


def test_81_a_log_that_grows_is_looked_at_again() -> None:
    async def case() -> None:
        host = Host()
        for at in (1.0, 6.0, 11.0):
            loop().call_later(at, lambda: asyncio.create_task(host.logs.put(text(1))))
        assert await await_quiet(host.logs(RUN)) == 3
        assert loop().time() == 20.0

    played(case())


def test_82_six_windows_of_growth_are_given_up() -> None:
    async def case() -> None:
        host = Host()
        for at in range(20):
            loop().call_later(at * 5 + 1, lambda: asyncio.create_task(host.logs.put(text(1))))
        with pytest.raises(LogNotQuietError) as caught:
            await await_quiet(host.logs(RUN))
        assert (caught.value.probes, caught.value.quiet_ms, loop().time()) == (6, 5_000, 30.0)
        assert isinstance(caught.value, OwnershipLost)

    played(case())


def test_a_quiet_time_of_zero_does_not_wait() -> None:
    async def case() -> None:
        assert await await_quiet(Host().logs(RUN), 0) == 0
        assert loop().time() == 0.0

    played(case())
