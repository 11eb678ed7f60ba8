"""Where simulated agents live: sandboxes as P15 to P17 describe them, on a host that outlives every driver.

The world is the truth beside the store. It belongs to no process: what was asked of it happens although whoever asked
was killed meanwhile, and an answer may be lost after the deed. Agents write on, watched or not.

    launch file     made by the first launch in the life of a sandbox (`link`); it stays
    lock            held by the recorder while it lives; free: whoever looks learns that the agent is lost
    exit            recorded by the recorder at the agent's end
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runtime.core.launch import AgentExit, ExitKind
from runtime.errors import OutlastError, SandboxUnreachable, WorkspaceHeld
from runtime.ports import LaunchSpec
from runtime.testing.sim_agent import Script
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_net import answer, fail

T = TypeVar("T")

PREFIX = "sim/"
LATE_WITHIN_S = 40.0  # a request that lands twice lands again within this; its run may have ended by then


@dataclass(slots=True, eq=False)
class Box:
    """One sandbox, from its creation to its destruction; the next one of the same key is another."""

    key: str
    journal_id: str = ""  # no two sandboxes of a world have the same
    exists: bool = True
    launch_file: bool = False
    lock_held: bool = False
    agent_alive: bool = False
    journal: bytearray = field(default_factory=bytearray)
    stderr: bytes = b""
    exit: AgentExit | None = None
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        """Return the run that it belongs to."""
        return self.key.removeprefix(PREFIX)

    def changed(self) -> None:
        """Wake whoever follows."""
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def link(self) -> bool:
        """Make the launch file; False if it exists (P15)."""
        if self.launch_file:
            return False
        self.launch_file = True
        return True

    def crash(self, keep: int) -> None:
        """Cut the power of its host: all processes are dead, and only `keep` bytes of the journal were on disk."""
        self.agent_alive = self.lock_held = False
        if self.exit is None:
            del self.journal[keep:]
        self.changed()

    def look(self) -> AgentExit | None:
        """Return how the agent ended: as recorded, or lost if the lock is free (P15, P16)."""
        if self.exit is None and self.launch_file and not self.lock_held:
            self.agent_alive = False
            self.exit = AgentExit(kind=ExitKind.LOST, journal_length=len(self.journal))
        return self.exit


@dataclass(slots=True)
class Weather:
    """How bad the way to the host is; all off by default."""

    slow_s: float = 0.0  # longest way of one call, each direction
    lose: float = 0.0  # share of calls whose request or answer is lost
    repeat: float = 0.0  # share of requests that land a second time, later
    launcher_dies: float = 0.0  # share of launches that die between the launch file and the agent
    unreachable: bool = False
    held: bool = False  # another sandbox has every workspace


class World:
    """All sandboxes. `watch(kind, run_id, by)` is told of each create, launch, kill and destroy when it is asked for
    (`ask create`, ...) and when it happens (`create`, ...)."""

    def __init__(self, loop: SimLoop, scripts: Mapping[str, Script]) -> None:
        self.loop = loop
        self.weather = Weather()
        self.boxes: dict[str, Box] = {}
        self.started: Counter[str] = Counter()
        self.journals: dict[str, bytearray] = {}  # of the agent that ran, kept after its sandbox is gone
        self.told: dict[str, bytes] = {}  # journals as they were before a crash cut them
        self.watch: Callable[[str, str, str], None] = lambda _kind, _run_id, _by: None
        self.ended: Callable[[str], None] = lambda _run_id: None  # told of each agent that exits by itself
        self._rng = random.Random(loop.rng.random())
        self._scripts = scripts
        self.late = 0  # requests that will land a second time
        self._made = 0

    # --- deeds ---

    async def create(self, key: str, by: str) -> Box:
        """Make the sandbox, or return the one with this key. Raises WorkspaceHeld."""
        box = self.boxes.get(key)
        if box is None:
            if self.weather.held:
                raise WorkspaceHeld("simulated: another sandbox has the workspace")
            self._made += 1
            box = self.boxes[key] = Box(key, f"journal {self._made}")
            self.watch("create", box.run_id, by)
        return box

    async def destroy(self, key: str, by: str) -> None:
        """End its processes and remove it."""
        box = self.boxes.pop(key, None)
        if box is not None:
            self.watch("destroy", box.run_id, by)
            box.exists = box.agent_alive = box.lock_held = False
            box.changed()

    async def launch(self, box: Box, spec: LaunchSpec, by: str) -> None:
        """Do what the launcher does inside, step by step; each step may be its last (P15)."""
        await self._a_while(0.02)
        if not box.exists or not box.link():
            return
        box.lock_held = True
        await self._a_while(0.02)
        if self._rng.random() < self.weather.launcher_dies:
            box.lock_held = False
            box.changed()
        elif box.exists:
            self.watch("launch", box.run_id, by)
            self._start(box, spec)

    def _start(self, box: Box, spec: LaunchSpec) -> None:
        assert spec.argv[1] == box.run_id
        self.started[box.run_id] += 1
        box.agent_alive = True
        self.journals[box.run_id] = box.journal
        self.loop.start(f"agent {box.run_id} {self.started[box.run_id]}", self._live(box))

    async def _live(self, box: Box) -> None:
        script = self._scripts[box.run_id]
        box.stderr = script.stderr
        for done, (delay_s, piece) in enumerate(script.pieces):
            if done == script.recorder_dies_after:
                break
            await asyncio.sleep(delay_s)
            if not box.agent_alive:
                return
            box.journal += piece
            box.changed()
        if script.recorder_dies_after is not None:
            box.lock_held = False
        elif script.hangs:
            return
        else:
            self.end(box, AgentExit(kind=ExitKind.EXITED, journal_length=0, code=script.code, signal=script.signal))
            self.ended(box.run_id)
        box.changed()

    def end(self, box: Box, exit: AgentExit) -> None:
        """Record the exit at the journal's present length, if the agent lives."""
        if box.agent_alive:
            box.agent_alive = box.lock_held = False
            box.exit = AgentExit(
                kind=exit.kind,
                journal_length=len(box.journal),
                code=exit.code,
                signal=exit.signal,
                message=exit.message,
            )
            box.changed()

    def crash(self, box: Box) -> None:
        """Crash the host of a sandbox."""
        if box.launch_file and box.exit is None:
            self.told.setdefault(box.run_id, bytes(box.journal))
            box.crash(max(0, len(box.journal) - self._rng.randrange(200)))

    # --- the way there ---

    async def call(self, deed: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry a request to the host and its answer back. Raises SandboxUnreachable if one of the two is lost; the
        deed may have been done even so, and may be done again."""
        rng, weather = self._rng, self.weather
        fate = rng.random()
        await self.way()
        if fate < weather.lose / 2:
            await self._a_while(1.0)
            raise SandboxUnreachable("simulated: the request was lost")
        if rng.random() < weather.repeat:
            self.loop.start("", self._later(deed))
        done: asyncio.Future[T] = self.loop.create_future()
        self.loop.start("", self._do(deed, done))
        value = await done
        await self.way()
        if fate < weather.lose:
            raise SandboxUnreachable("simulated: the answer was lost")
        return value

    async def _do(self, deed: Callable[[], Coroutine[Any, Any, T]], done: asyncio.Future[T]) -> None:
        try:
            value = await deed()
        except OutlastError as error:
            fail(done, error)
        else:
            answer(done, value)

    async def way(self) -> None:
        """Go one way. Raises SandboxUnreachable while the host is."""
        await self._a_while(self.weather.slow_s)
        if self.weather.unreachable:
            await self._a_while(1.0)
            raise SandboxUnreachable("simulated: the host does not answer")

    async def _later(self, deed: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.late += 1
        await self._a_while(LATE_WITHIN_S)
        self.late -= 1
        await deed()

    async def _a_while(self, most_s: float) -> None:
        if most_s:
            await asyncio.sleep(most_s * self._rng.random() ** 2)
