"""P15's table: what a successor finds, and what it does about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pytest
from unit.engine.stage import RUN, Stage, claim, create

from runtime.core import chunk
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.ops import Note, RequestCancel
from runtime.core.record import CancelReason, ClaimReason, Launch, Status
from runtime.core.workspace import SourceKind, WorkspaceSource
from runtime.engine.preparing import reaching
from runtime.errors import SandboxUnreachable
from runtime.ports import Capabilities, LaunchSpec
from runtime.testing.sim_agent import Script
from runtime.testing.sim_loop import elapse, play
from runtime.testing.sim_sandbox import SimProvider
from runtime.testing.sim_world import Box

KEY = f"sim/{RUN}"
SCRIPT = Script(pieces=[(0.1, b"say m hello\n"), (0.1, b"result\n")])


@dataclass(frozen=True)
class Row:
    """What is recorded and what exists; what a successor then asks of the world, and how the run ends."""

    name: str
    launch: Launch
    sandbox: str  # none | empty | running | exited | lost
    asked: list[str]
    status: Status
    code: str | None = None


COMPLETED, FAILED = Status.COMPLETED, Status.FAILED
ROWS = [
    Row("no key: create and launch", Launch.NONE, "none", ["create", "launch"], COMPLETED),
    Row("key, nothing there: create and launch", Launch.KEYED, "none", ["create", "launch"], COMPLETED),
    Row("key, an empty sandbox: launch", Launch.KEYED, "empty", ["launch"], COMPLETED),
    Row("intended, an empty sandbox: launch", Launch.INTENDED, "empty", ["launch"], COMPLETED),
    Row("intended, nothing there: lost", Launch.INTENDED, "none", [], FAILED, "sandbox_lost"),
    Row("launched, lock held: follow", Launch.INTENDED, "running", [], COMPLETED),
    Row("launched, not yet known to be intended: follow", Launch.KEYED, "running", [], COMPLETED),
    Row("lock free, exit recorded: finish", Launch.INTENDED, "exited", [], COMPLETED),
    Row("lock free, still running: lost", Launch.INTENDED, "lost", [], FAILED, "agent_lost"),
]


def box_of(stage: Stage, kind: str) -> None:
    if kind == "none":
        return
    box = stage.world.boxes[KEY] = Box(KEY)
    if kind == "empty":
        return
    assert box.link()
    if kind == "running":
        box.lock_held = True
        stage.world._start(box, LaunchSpec(argv=("sim", RUN), env={}))
        return
    box.journal += SCRIPT.output
    stage.world.journals[RUN] = box.journal
    if kind == "exited":
        box.exit = AgentExit(kind=ExitKind.EXITED, journal_length=len(box.journal), code=0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_successor_finds(row: Row) -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        asked: list[str] = []
        stage.world.watch = lambda kind, _run_id, _by: asked.append(kind)
        shard = await stage.open()
        await shard.submit(create())
        await shard.submit(claim())
        if row.launch is not Launch.NONE:
            await shard.submit(Note(run_id=RUN, epoch=1, sandbox_key=KEY, launch=row.launch))
        box_of(stage, row.sandbox)
        asked.clear()
        end = await stage.drive(shard, 1, "successor")
        assert end.status is row.status
        head = stage.head()
        assert (head.error.code if head.error else None) == row.code
        asks = [kind[4:] for kind in asked if kind.startswith("ask ")]
        assert asks == [*row.asked, "destroy"]
        assert head.launch is Launch.INTENDED
        assert head.sandbox_key == KEY
        assert not stage.world.boxes

    play(1, acts())


@pytest.mark.parametrize(("launch", "asked"), [(Launch.KEYED, ["create", "launch"]), (Launch.INTENDED, ["launch"])])
def test_a_sandbox_that_is_there_is_made_again_while_its_workspace_may_be_half_filled(
    launch: Launch, asked: list[str]
) -> None:
    class Filling(SimProvider):
        capabilities = Capabilities(workspace_sources=True)

        async def create(self, key: str, thread_key: str, source: WorkspaceSource | None = None) -> Any:
            assert source == WorkspaceSource(kind=SourceKind.DIRECTORY, place="/srv")
            return await super().create(key, thread_key)

    async def acts() -> None:
        stage = Stage(SCRIPT)
        seen: list[str] = []
        stage.world.watch = lambda kind, _run_id, _by: seen.append(kind)
        shard = await stage.open()
        made = create()
        props = {**made.spec.input, "forwardedProps": {"workspace": {"directory": "/srv"}}}
        await shard.submit(msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, input=props)))
        await shard.submit(claim())
        await shard.submit(Note(run_id=RUN, epoch=1, sandbox_key=KEY, launch=launch))
        box_of(stage, "empty")
        seen.clear()
        driver = stage.driver(shard, "successor")
        cast("dict[str, Any]", driver._tools.providers)["sim"] = Filling(stage.world, "successor")
        await driver.drive(1, ClaimReason.START)
        assert stage.head().status is Status.COMPLETED
        assert [kind[4:] for kind in seen if kind.startswith("ask ")] == [*asked, "destroy"]

    play(1, acts())


@pytest.mark.parametrize(("sandbox", "code"), [("none", "sandbox_lost"), ("running", None)])
def test_what_a_restored_store_does_not_know_to_be_launched_is_not_launched_again(
    sandbox: str, code: str | None
) -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        asked: list[str] = []
        stage.world.watch = lambda kind, _run_id, _by: asked.append(kind)
        shard = await stage.open()
        await shard.submit(create())
        await shard.submit(claim())
        box_of(stage, sandbox)
        asked.clear()
        raised = stage.memory.raise_generation(7_000_000)
        await stage.drive(await stage.open(), raised, "successor")
        head = stage.head()
        assert (head.error.code if head.error else None) == code
        assert not {"ask create", "ask launch"} & set(asked)
        assert head.sandbox_key == KEY

    play(1, acts())


def test_what_may_happen_is_on_the_record_before_it_does() -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        seen: dict[str, tuple[str | None, Launch]] = {}

        def watch(kind: str, _run_id: str, _by: str) -> None:
            seen[kind] = (stage.head().sandbox_key, stage.head().launch)

        stage.world.watch = watch
        shard = await stage.open()
        await shard.submit(create())
        await stage.drive(shard)
        assert seen["ask create"] == (KEY, Launch.KEYED)
        assert seen["ask launch"] == (KEY, Launch.INTENDED)

    play(1, acts())


def test_a_create_whose_answer_was_lost_makes_no_second_sandbox() -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        stage.world.weather.lose = 0.6
        done: list[str] = []
        stage.world.watch = lambda kind, _run_id, _by: done.append(kind)
        shard = await stage.open()
        await shard.submit(create())
        end = await stage.drive(shard)
        assert end.status is not None
        assert done.count("create") == 1
        assert done.count("launch") == 1

    for seed in range(8):
        play(seed, acts())


def test_a_host_that_returns_in_time_is_waited_for() -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        stage.world.weather.unreachable = True
        shard = await stage.open()
        await shard.submit(create())
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(20.0)
        stage.world.weather.unreachable = False
        assert (await driving).status is COMPLETED
        assert stage.head().driver_epoch == 1

    play(1, acts())


def test_a_host_that_stays_away_ends_the_run_and_keeps_the_destroy() -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        stage.world.weather.unreachable = True
        shard = await stage.open()
        await shard.submit(create())
        begun = stage.loop.time()
        end = await stage.drive(shard)
        assert 30.0 <= stage.loop.time() - begun < 40.0
        assert end.status is FAILED
        head = stage.head()
        assert head.error is not None
        assert (head.error.code, head.destroy_pending) == ("sandbox_unreachable", True)

    play(1, acts())


@pytest.mark.parametrize("slow_s", [0.0, 2.0])
def test_a_cancel_in_the_middle_of_a_create_leaves_no_sandbox(slow_s: float) -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        stage.world.weather.slow_s = slow_s
        shard = await stage.open()
        await shard.submit(create())
        asked = asyncio.Event()
        stage.world.watch = lambda kind, _run_id, _by: asked.set() if kind == "ask create" else None
        driving = asyncio.create_task(stage.drive(shard))
        await asked.wait()
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        end = await driving
        await elapse(20.0)
        assert end.status is Status.ABORTED
        assert not stage.world.boxes
        assert not stage.head().destroy_pending

    for seed in range(20):
        play(seed, acts())


def test_an_unreachable_host_is_asked_for_so_long_and_no_longer() -> None:
    async def acts() -> None:
        stage = Stage()
        stage.world.weather.unreachable = True
        provider = SimProvider(stage.world, "test")
        with pytest.raises(SandboxUnreachable):
            await reaching(lambda: provider.resume(KEY), stage.loop, 10.0)
        assert 10.0 <= stage.loop.time() < 12.5

    play(1, acts())


def test_who_watches_is_told_once_that_the_thread_s_workspace_is_waited_for() -> None:
    """P18; by a successor of the one who told it neither."""

    async def acts() -> None:
        stage = Stage(SCRIPT)
        stage.world.weather.held = True
        shard = await stage.open()
        await shard.submit(create())
        driving = asyncio.create_task(stage.drive(shard))
        await elapse(10.0)
        told = [chunk.run_accepted(), chunk.run_waiting("workspace")]
        assert stage.log() == told
        assert stage.head().launch is Launch.KEYED
        successor = asyncio.create_task(stage.drive(shard, 1, "successor"))
        await driving
        await elapse(5.0)
        assert stage.log() == told
        stage.world.weather.held = False
        assert (await successor).status is COMPLETED
        kinds = [chunk.chunk_type(data) for data in stage.log()]
        assert kinds[:3] == ["CUSTOM", "CUSTOM", chunk.RUN_STARTED]

    for seed in range(4):
        play(seed, acts())


def test_a_workspace_that_stays_held_ends_the_run_before_anything_is_launched() -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        stage.world.weather.held = True
        shard = await stage.open()
        await shard.submit(create())
        await stage.drive(shard)
        head = stage.head()
        assert head.error is not None
        assert (head.status, head.error.code, head.launch) == (FAILED, "launch_failed", Launch.KEYED)
        assert stage.log()[1] == chunk.run_waiting("workspace")
        assert 30.0 <= stage.loop.time() < 40.0

    play(1, acts())


def test_a_host_that_is_away_is_not_told_as_a_workspace() -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        stage.world.weather.unreachable = True
        shard = await stage.open()
        await shard.submit(create())
        await stage.drive(shard)
        assert chunk.run_waiting("workspace") not in stage.log()

    play(1, acts())


def test_a_threads_workspace_that_cannot_be_reached_is_waited_for_and_never_replaced_by_an_empty_one() -> None:
    """P18."""

    async def acts() -> None:
        stage = Stage(SCRIPT)
        shard = await stage.open()
        await shard.submit(create())
        await stage.driver(shard, home="elsewhere").drive(0, ClaimReason.START)
        head = stage.head()
        assert head.error is not None
        assert (head.status, head.error.code) == (Status.FAILED, "launch_failed")
        assert "elsewhere" in head.error.message
        assert (head.sandbox_key, list(stage.world.boxes)) == (None, [])
        assert stage.log()[1] == chunk.run_waiting("workspace")
        assert stage.loop.time() >= 30.0

    play(1, acts())


def test_a_workspace_that_the_provider_cannot_fill_is_no_empty_one() -> None:
    async def acts() -> None:
        stage = Stage(SCRIPT)
        shard = await stage.open()
        asked = create()
        input = {**asked.spec.input, "forwardedProps": {"workspace": {"directory": "/srv/app"}}}
        spec = msgspec.structs.replace(asked.spec, input=input)
        await shard.submit(msgspec.structs.replace(asked, spec=spec))
        await stage.drive(shard)
        head = stage.head()
        assert head.error is not None
        assert (head.status, head.error.code) == (Status.FAILED, "launch_failed")
        assert "begin empty" in head.error.message
        assert not stage.world.boxes

    play(1, acts())


def test_what_takes_long_to_make_is_told_of_and_nothing_twice() -> None:
    """As an image that is pulled: each new word once a second."""

    class Pulling(SimProvider):
        begun = 0.0

        def making(self) -> Mapping[str, Any] | None:
            return {"image": "i", "bytesDone": min(3, int(asyncio.get_running_loop().time() - self.begun) // 2)}

        async def create(self, key: str, thread_key: str, source: WorkspaceSource | None = None) -> Any:
            self.begun = asyncio.get_running_loop().time()
            await elapse(10.5)
            return await super().create(key, thread_key, source)

    async def run() -> list[bytes]:
        stage = Stage(SCRIPT)
        shard = await stage.open()
        await shard.submit(create())
        driver = stage.driver(shard)
        cast("dict[str, Any]", driver._tools.providers)["sim"] = Pulling(stage.world, "driver")
        await driver.drive(0, ClaimReason.START)
        assert stage.head().status is Status.COMPLETED
        return stage.log()

    told = [
        event["value"] for event in map(chunk.decode_chunk, play(1, run())) if event.get("name") == chunk.IMAGE_PULL
    ]
    assert told == [{"image": "i", "bytesDone": done} for done in (0, 1, 2, 3)]
