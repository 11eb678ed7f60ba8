"""A `create` that takes long, or never ends: it is waited for within bounds, and leaves nothing behind (P21, I7)."""

from __future__ import annotations

import asyncio

import pytest
from unit.engine.stage import RUN, Stage, create

from runtime.core.ops import RequestCancel
from runtime.core.record import CancelReason, Limits, Status
from runtime.engine import preparing
from runtime.engine.preparing import CREATE_DEADLINE_S, CREATE_PATIENCE_S
from runtime.ports import Sandbox
from runtime.testing.sim_agent import Script
from runtime.testing.sim_loop import elapse, play
from runtime.testing.sim_sandbox import SimProvider

SCRIPT = Script(pieces=[(0.1, b"say m hello\n"), (0.1, b"result\n")])
COMPLETED, FAILED = Status.COMPLETED, Status.FAILED


class Creates:
    """`SimProvider.create` in slow motion: each takes `seconds`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.times = 0
        quick = SimProvider.create

        async def slow(provider: SimProvider, key: str, thread_key: str) -> Sandbox:
            self.times += 1
            await elapse(seconds)
            return await quick(provider, key, thread_key)

        monkeypatch.setattr(SimProvider, "create", slow)


def test_a_create_that_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that pulls an image: longer than what is unreachable is waited for."""

    async def acts() -> None:
        stage = Stage(SCRIPT)
        shard = await stage.open()
        await shard.submit(create())
        assert (await stage.drive(shard)).status is COMPLETED
        assert stage.head().driver_epoch == 1

    creates = Creates(monkeypatch, 600.0)
    play(1, acts())
    assert creates.times == 1


def test_a_create_that_never_ends_ends_the_run_and_stays_to_be_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        shard = await stage.open()
        await shard.submit(create())
        begun = stage.loop.time()
        assert (await stage.drive(shard)).status is FAILED
        head = stage.head()
        assert head.error is not None
        assert (head.error.code, head.destroy_pending) == ("sandbox_unreachable", True)
        assert stage.loop.time() - begun < CREATE_PATIENCE_S + CREATE_DEADLINE_S + 10.0

    Creates(monkeypatch, 1e6)
    play(1, acts())


def test_who_tries_again_joins_the_create_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        shard = await stage.open()
        await shard.submit(create())
        assert (await stage.drive(shard)).status is COMPLETED

    monkeypatch.setattr(preparing, "CREATE_PATIENCE_S", 8.0)
    creates = Creates(monkeypatch, 20.0)
    play(1, acts())
    assert creates.times == 1


def test_the_run_s_limit_bounds_a_create_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        shard = await stage.open()
        await shard.submit(create(limits=Limits(run_limit_s=20)))
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(25.0)
        head = stage.head()
        assert head.error is not None
        assert (head.status, head.error.code) == (FAILED, "run_limit")
        await driving
        assert not stage.world.boxes

    Creates(monkeypatch, 40.0)
    play(1, acts())


def test_a_cancel_during_a_create_that_does_not_end_stays_to_be_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """P21: by key, until the create's deadline has passed; whoever looks for what is pending does the rest."""

    async def acts() -> None:
        stage = Stage(SCRIPT)
        shard = await stage.open()
        await shard.submit(create())
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(5.0)
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        assert (await driving).status is Status.ABORTED
        assert stage.head().destroy_pending

    Creates(monkeypatch, 1e6)
    play(1, acts())
