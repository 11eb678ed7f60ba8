"""The simulated world as one process sees it: the ports `SandboxProvider` and `Sandbox` over `sim_world.World`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from runtime.core.launch import AgentExit, ExitKind
from runtime.core.workspace import WorkspaceSource
from runtime.errors import SandboxLost
from runtime.ports import Capabilities, LaunchSpec, Sandbox
from runtime.testing.sim_world import PREFIX, Box, World

T = TypeVar("T")

# Pieces of a journal as a follower gets them; small, so that lines are cut everywhere.
PIECE_BYTES = 700


class SimProvider:
    """The world as the process `by` sees it: a SandboxProvider."""

    name = "sim"
    capabilities = Capabilities()

    def __init__(self, world: World, by: str) -> None:
        self._world = world
        self._by = by

    def key(self, run_id: str) -> str:
        """Return the key of the run's sandbox."""
        return PREFIX + run_id

    def host(self, key: str) -> str:
        """Return the one host there is; nobody asks, since it can be reached from everywhere."""
        return key.partition("/")[0]

    async def create(self, key: str, thread_key: str, source: WorkspaceSource | None = None) -> Sandbox:
        """Make the sandbox, or return it. Raises SandboxUnreachable."""
        assert thread_key
        assert source is None
        self._world.watch("ask create", key.removeprefix(PREFIX), self._by)
        box = await self._world.call(lambda: self._world.create(key, self._by))
        return SimSandbox(self._world, box, self._by)

    async def resume(self, key: str) -> Sandbox | None:
        """Return the sandbox, or None if there is none. Raises SandboxUnreachable."""

        async def look() -> Box | None:
            return self._world.boxes.get(key)

        box = await self._world.call(look)
        return None if box is None else SimSandbox(self._world, box, self._by)

    async def destroy(self, key: str) -> None:
        """Remove it. Raises SandboxUnreachable."""
        self._world.watch("ask destroy", key.removeprefix(PREFIX), self._by)
        await self._world.call(lambda: self._world.destroy(key, self._by))

    async def list(self) -> list[str]:
        """Return the keys of all sandboxes."""
        return list(self._world.boxes)


class SimSandbox:
    """One sandbox as the process `by` sees it. It is bound to that very one, as a container id is."""

    workspace = "/workspace"
    home: str | None = None

    def __init__(self, world: World, box: Box, by: str) -> None:
        self.key = box.key
        self._world = world
        self._box = box
        self._by = by

    async def launched(self) -> bool:
        """Return whether the launch file exists. Raises SandboxLost, SandboxUnreachable."""

        async def look() -> bool:
            return self._box.launch_file

        return await self._call(look)

    async def launch(self, spec: LaunchSpec) -> None:
        """Launch at most once. Raises SandboxLost, SandboxUnreachable."""
        self._world.watch("ask launch", self._box.run_id, self._by)
        await self._call(lambda: self._world.launch(self._box, spec, self._by))

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the journal from `start` to its recorded end. Raises SandboxLost, SandboxUnreachable."""
        box, at = self._box, start
        self._world.watch(f"follow from {start}", box.run_id, self._by)
        while box.exists:
            await self._world.way()
            piece = bytes(box.journal[at : at + PIECE_BYTES])
            at += len(piece)
            if piece:
                yield piece
            elif box.look() is not None:
                return
            else:
                await self._news()
        raise SandboxLost("simulated: the sandbox is gone")

    async def _news(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._box.waiting.append(future)
        await future

    async def journal_id(self) -> str:
        """Return the box's own name, which no other ever has. Raises SandboxLost, SandboxUnreachable."""

        async def look() -> str:
            return self._box.journal_id

        return await self._call(look)

    async def read_journal(self, start: int, size: int) -> bytes:
        """Return a stretch of the journal. Raises SandboxLost, SandboxUnreachable."""

        async def look() -> bytes:
            return bytes(self._box.journal[start : start + size])

        return await self._call(look)

    async def exit(self) -> AgentExit | None:
        """Return how the agent ended. Raises SandboxLost, SandboxUnreachable."""

        async def look() -> AgentExit | None:
            return self._box.look()

        return await self._call(look)

    async def stderr_tail(self, max_bytes: int) -> bytes:
        """Return the end of stderr. Raises SandboxLost, SandboxUnreachable."""

        async def look() -> bytes:
            return self._box.stderr[-max_bytes:]

        return await self._call(look)

    async def kill(self) -> None:
        """End the agent; its exit is then recorded. Raises SandboxLost, SandboxUnreachable."""
        self._world.watch("ask kill", self._box.run_id, self._by)

        async def kill() -> None:
            self._world.end(self._box, AgentExit(kind=ExitKind.KILLED, journal_length=0))

        await self._call(kill)

    async def exec(self, argv: Sequence[str], timeout_s: float) -> tuple[int, bytes]:
        """Run nothing: no part under test needs it."""
        raise NotImplementedError(f"{argv} {timeout_s}")

    async def _call(self, deed: Callable[[], Coroutine[Any, Any, T]]) -> T:
        answer = await self._world.call(deed)
        if not self._box.exists:
            raise SandboxLost("simulated: the sandbox is gone")
        return answer
