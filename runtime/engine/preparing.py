"""From a claim to a sandbox in which the agent runs, launched at most once (P15, P17).

What is known about the sandbox is on the record, under an epoch, *before* the world is changed: first the key, then
`create`; first `launchIntended`, then the launch. So a successor reads from the record what may have happened, and
asks the sandbox what did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runtime.core.ops import Note
from runtime.core.record import Head, Launch, RunSpec
from runtime.engine.authority import Authority
from runtime.errors import LaunchFailed, SandboxLost, SandboxUnreachable
from runtime.ports import Harness, LaunchSpec, Sandbox, SandboxProvider

if TYPE_CHECKING:
    from runtime.engine.driver import Tools

T = TypeVar("T")
# Returns the thread's earlier messages (AG-UI), oldest first, without those of the run itself.
History = Callable[[Head], Awaitable[Sequence[Mapping[str, Any]]]]

UNREACHABLE_RETRY_S = 1.0


class Preparer:
    """Makes one run's sandbox ready under one epoch."""

    def __init__(
        self,
        tools: Tools,
        authority: Authority,
        head: Head,
        spec: RunSpec,
        harness: Harness,
        provider: SandboxProvider,
    ) -> None:
        self._tools = tools
        self._authority = authority
        self._head = head
        self._spec = spec
        self._harness = harness
        self._provider = provider

    async def ready(self) -> Sandbox:
        """Return the sandbox with its agent launched.

        Raises SandboxLost (proven gone after a launch may have happened), SandboxUnreachable (for longer than
        OUTLAST_SANDBOX_RETURN_S), LaunchFailed, RunClaimLostError."""
        sandbox = await self._waiting(self._sandbox)
        if self._head.launch is not Launch.INTENDED:
            await self._note(launch=Launch.INTENDED)
        if not await self._waiting(sandbox.launched):
            spec = await self._launch_spec(sandbox)
            await self._waiting(lambda: sandbox.launch(spec))
        return sandbox

    async def _sandbox(self) -> Sandbox:
        head = self._head
        key = head.sandbox_key or self._provider.key(head.run_id)
        if head.sandbox_key is None:
            await self._note(sandbox_key=key, launch=Launch.KEYED)
        if head.launch is Launch.NONE:
            return await self._provider.create(key, head.thread_id)
        found = await self._provider.resume(key)
        if found is not None:
            return found
        if head.launch is Launch.INTENDED:
            raise SandboxLost(f"The sandbox of run {head.run_id!r} no longer exists on its host.")
        return await self._provider.create(key, head.thread_id)

    async def _launch_spec(self, sandbox: Sandbox) -> LaunchSpec:
        history = await self._tools.history(self._head)
        try:
            return self._harness.launch(
                self._head.run_id, self._spec, self._tools.agent_env, sandbox.workspace, history
            )
        except Exception as error:
            raise LaunchFailed(f"The {self._harness.name} harness could not build its command: {error}") from error

    async def _note(self, *, sandbox_key: str | None = None, launch: Launch | None = None) -> None:
        note = Note(run_id=self._head.run_id, epoch=self._authority.epoch, sandbox_key=sandbox_key, launch=launch)
        outcome = await self._authority.submit(note)
        self._head = getattr(outcome, "head", self._head)

    async def _waiting(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call`, again and again while its host does not answer: unreachable is not gone (P17)."""
        deadline = self._tools.clock.monotonic() + self._tools.sandbox_return_s
        while True:
            try:
                return await call()
            except SandboxUnreachable:
                if self._tools.clock.monotonic() >= deadline:
                    raise
            await asyncio.sleep(UNREACHABLE_RETRY_S)
