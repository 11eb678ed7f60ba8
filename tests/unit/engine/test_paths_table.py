"""What each path of a run writes: the contract's table 9.5, row by row, and where P19 differs, what we do instead.

Of the table: an ended run's sandbox is given back (P19), where the table keeps it at the end of a run that was not
cancelled. Who wants it kept says so (`keepAlive`), and that counts for a completed run alone; each row tells both. And
a journal is gone with its sandbox, never at the sentinel, when the log might still need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

from msgspec.structs import replace
from unit.engine.stage import RUN, Stage, create

from runtime.core import chunk
from runtime.core.ops import Attach, Detach, OpenSupervisor, RequestCancel
from runtime.core.reap_ops import Expire
from runtime.core.record import CancelReason, ClaimReason, Limits, Status
from runtime.engine.concluding import DriveEnd
from runtime.engine.shard import Shard
from runtime.ports import Capabilities
from runtime.testing.sim_agent import Script
from runtime.testing.sim_loop import elapse, play
from runtime.testing.sim_sandbox import SimProvider

KEY = f"sim/{RUN}"
WELL = Script(pieces=[(0.5, b"say m on\n")] * 20 + [(0.1, b"result\n")])
FAILS = Script(pieces=[(0.5, b"say m on\n")] * 4, code=3)
NEVER_ENDS = Script(pieces=[(0.5, b"say m on\n")] * 10_000)
GONE_AT = 1_000
KEEP_S = 3600


class Written(NamedTuple):
    """What a path has written. `log`: open, or the code of its terminal chunk; `journal`: whether it is there."""

    status: Status
    detached_since: int | None
    sandbox_key: str | None
    log: str
    sandbox: bool
    journal: bool


def written(stage: Stage) -> Written:
    head = stage.head()
    last = chunk.decode_chunk(stage.log()[-1])
    log = str(last.get("code", last["type"])) if head.closed else "open"
    box = stage.world.boxes.get(KEY)
    return Written(
        head.status, head.detached_since, head.sandbox_key, log, box is not None, box is not None and bool(box.journal)
    )


Path = Callable[[Stage, Shard, "asyncio.Task[DriveEnd]"], Awaitable[None]]


def of(script: Script, path: Path) -> Written:
    """Return what is written when a run of `script`, begun 5 s ago, has gone along `path`; kept or not is the same."""
    found = asked(script, path, keep_s=0)
    assert asked(script, path, keep_s=KEEP_S) == found
    return found


def asked(script: Script, path: Path, keep_s: int) -> Written:
    """Return what is written if the run asks for its sandbox to be kept for `keep_s`."""

    async def acts() -> Written:
        stage = Stage(script)
        shard = await stage.open()
        op = create(limits=Limits(detached_ttl_s=1, max_line_bytes=2048))
        await shard.submit(replace(op, spec=replace(op.spec, keep_alive_s=keep_s)))
        await shard.submit(Attach(run_id=RUN))
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(5.0 if script is not FAILS else 0.5)
        await path(stage, shard, driving)
        seen = written(stage)
        kept, ended = seen.sandbox and seen.status.terminal, stage.head().finished_at or 0
        assert stage.head().sandbox_kept_until == (ended + keep_s * 1000 if kept else None)
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        return seen

    return play(1, acts())


async def to_its_end(_stage: Stage, _shard: Shard, driving: asyncio.Task[DriveEnd]) -> None:
    await driving


async def left(stage: Stage, shard: Shard, _driving: asyncio.Task[DriveEnd]) -> None:
    await shard.submit(Detach(run_id=RUN, since=GONE_AT))
    told = stage.head().next_seq
    await elapse(3.0)
    assert stage.head().next_seq > told, "the agent and its driver go on"


async def lost(driving: asyncio.Task[DriveEnd]) -> None:
    """The driver's process ends, as with its host."""
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)


def test_normal_finish() -> None:
    """The table keeps the sandbox unless `destroyOnComplete`; P19 gives it back unless that is false."""
    gone = Written(Status.COMPLETED, None, KEY, "RUN_FINISHED", sandbox=False, journal=False)
    assert asked(WELL, to_its_end, keep_s=0) == gone
    assert asked(WELL, to_its_end, keep_s=KEEP_S) == gone._replace(sandbox=True, journal=True)


def test_provider_error() -> None:
    """The table keeps the sandbox; P19 gives it back."""
    found = of(FAILS, to_its_end)
    assert found == Written(Status.FAILED, None, KEY, found.log, sandbox=False, journal=False)
    assert found.log not in ("open", "RUN_FINISHED")


def test_viewer_leaves() -> None:
    assert of(NEVER_ENDS, left) == Written(Status.RUNNING, GONE_AT, KEY, "open", sandbox=True, journal=True)


def test_abort_as_detach() -> None:
    """A request that is aborted is a viewer that left: the server never takes it for a wish (I6)."""

    async def cut(stage: Stage, shard: Shard, driving: asyncio.Task[DriveEnd]) -> None:
        await left(stage, shard, driving)
        assert chunk.chunk_type(stage.log()[-1]) not in chunk.TERMINAL_TYPES

    assert of(NEVER_ENDS, cut) == Written(Status.RUNNING, GONE_AT, KEY, "open", sandbox=True, journal=True)


def test_explicit_cancel() -> None:
    """The journal goes with the sandbox, which the table says too: nothing else deletes it."""

    async def cancelled(stage: Stage, shard: Shard, driving: asyncio.Task[DriveEnd]) -> None:
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        await driving

    assert of(NEVER_ENDS, cancelled) == Written(Status.ABORTED, None, KEY, "aborted", sandbox=False, journal=False)


def test_host_death() -> None:
    async def died(stage: Stage, _shard: Shard, driving: asyncio.Task[DriveEnd]) -> None:
        await lost(driving)
        told, grown = stage.head().next_seq, len(stage.world.boxes[KEY].journal)
        await elapse(3.0)
        assert stage.head().next_seq == told
        assert len(stage.world.boxes[KEY].journal) > grown, "the agent goes on"

    assert of(NEVER_ENDS, died) == Written(Status.RUNNING, None, KEY, "open", sandbox=True, journal=True)


def test_takeover_ok() -> None:
    """`detachedSince` is cleared by the viewer that comes back, and not by the takeover."""

    async def taken_over(stage: Stage, shard: Shard, driving: asyncio.Task[DriveEnd]) -> None:
        await shard.submit(Detach(run_id=RUN, since=GONE_AT))
        await lost(driving)
        await shard.submit(Attach(run_id=RUN))
        assert (await stage.drive(shard, 1, "successor")).status is Status.COMPLETED

    gone = Written(Status.COMPLETED, None, KEY, "RUN_FINISHED", sandbox=False, journal=False)
    assert asked(WELL, taken_over, keep_s=0) == gone
    assert asked(WELL, taken_over, keep_s=KEEP_S) == gone._replace(sandbox=True, journal=True)


def test_reaper_finalize() -> None:
    """A run that ends while nobody watches is ended by its driver, or the successor of that; the reaper only tells."""

    async def ended_unseen(stage: Stage, shard: Shard, driving: asyncio.Task[DriveEnd]) -> None:
        await shard.submit(Detach(run_id=RUN, since=GONE_AT))
        await lost(driving)
        await elapse(30.0)
        await stage.drive(shard, 1, "successor")

    gone = Written(Status.COMPLETED, GONE_AT, KEY, "RUN_FINISHED", sandbox=False, journal=False)
    assert asked(WELL, ended_unseen, keep_s=0) == gone
    assert asked(WELL, ended_unseen, keep_s=KEEP_S) == gone._replace(sandbox=True, journal=True)


def test_reaper_expire() -> None:
    """The table leaves the journal with the sandbox, and the sandbox is reclaimed: both are gone."""

    async def expired(stage: Stage, shard: Shard, driving: asyncio.Task[DriveEnd]) -> None:
        await shard.submit(Detach(run_id=RUN, since=GONE_AT))
        for number in range(1, 8):  # a gateway says for long enough that nobody watches
            await shard.set_viewers("replica-1", number, {})
            await elapse(1.0)
        await shard.submit(OpenSupervisor(claimant="supervisor"))
        await shard.submit(Expire(run_id=RUN, supervisor_epoch=1))
        await driving

    found = of(NEVER_ENDS, expired)
    assert found == Written(Status.ABORTED, GONE_AT, KEY, "detached_expired", sandbox=False, journal=False)


def test_where_processes_cannot_be_killed_the_destroy_is_the_cancel() -> None:
    """A provider that says so is never asked to kill: what ends the agent is that its sandbox is destroyed."""

    class Whole(SimProvider):
        capabilities = Capabilities(killable_processes=False)

    async def acts() -> tuple[Written, list[str]]:
        stage = Stage(NEVER_ENDS)
        asked: list[str] = []
        stage.world.watch = lambda kind, _run_id, _by: asked.append(kind)
        shard = await stage.open()
        await shard.submit(create())
        driver = stage.driver(shard)
        cast("dict[str, Any]", driver._tools.providers)["sim"] = Whole(stage.world, "driver")
        driving = asyncio.create_task(driver.drive(0, ClaimReason.START))
        await elapse(5.0)
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        await driving
        return written(stage), asked

    found, asked = play(1, acts())
    assert found[0] is Status.ABORTED
    assert (found.log, found.sandbox) == ("aborted", False)
    assert "ask destroy" in asked
    assert "ask kill" not in asked
