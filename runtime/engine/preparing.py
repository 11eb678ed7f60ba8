"""From a claim to a sandbox in which the agent runs, launched at most once (P15, P17).

What is known about the sandbox is on the record, under an epoch, *before* the world is changed: first the key, then
`create`; first `launchIntended`, then the launch. So a successor reads from the record what may have happened, and
asks the sandbox what did.

A `create` may take long, since an image may have to be pulled, and one that hangs says nothing. It is waited for
CREATE_PATIENCE_S at most, and by the run's limit; a provider that can tell that nothing moves any more says so itself,
and earlier (`docker` does). It goes on when nobody waits: whoever tries again joins it.

While the thread's workspace cannot be had, because an earlier run's sandbox is not proven to be gone or its host is
away, whoever watches is told so once, by a live chunk (P18).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from runtime.core import chunk
from runtime.core.ids import shown_run_id, thread_key
from runtime.core.ops import Note
from runtime.core.record import Head, Launch, RunSpec
from runtime.core.workspace import WorkspaceSource, read_source
from runtime.engine import host_calls
from runtime.engine.authority import Authority
from runtime.engine.sessions import going_on
from runtime.engine.tools import Tools
from runtime.errors import InputInvalid, LaunchFailed, SandboxLost, SandboxUnreachable, WorkspaceHeld
from runtime.ports import Clock, Harness, LaunchSpec, Sandbox, SandboxProvider, TellsMaking

T = TypeVar("T")

CREATE_DEADLINE_S = 60.0  # P21: a `create` that has not ended so long after its run is taken for failed
CREATE_PATIENCE_S = 900.0  # an image of some gigabytes comes within it; one that does not is pulled beforehand
UNREACHABLE_RETRY_S = 1.0
TELL_S, TELL_LATER_S, TELL_LATER_AFTER_S = 1.0, 5.0, 30.0  # some 200 chunks at most


class Preparer:
    """Makes one run's sandbox ready under one epoch."""

    def __init__(
        self,
        tools: Tools,
        authority: Authority,
        spec: RunSpec,
        harness: Harness,
        provider: SandboxProvider,
        tell: Callable[[bytes, str], Awaitable[object]],
    ) -> None:
        """`tell` stores a live chunk under a key, at most once in the run's life."""
        self._tell = tell
        self._tools = tools
        self._authority = authority
        self._spec = spec
        self._harness = harness
        self._provider = provider
        self.creating: asyncio.Future[Sandbox] | None = None  # the newest `create`; it goes on if we are interrupted
        self._unheard = False  # it was not waited for to its end

    @property
    def _head(self) -> Head:
        return self._authority.head

    async def ready(self) -> Sandbox:
        """Return the sandbox with its agent launched.

        Raises SandboxLost (proven gone after a launch may have happened), SandboxUnreachable (for longer than
        OUTLAST_SANDBOX_RETURN_S), LaunchFailed, RunClaimLostError."""
        try:
            sandbox = await reaching(
                self._sandbox, self._tools.clock, self._tools.sandbox_return_s, self._say_what_is_missing
            )
        except SandboxUnreachable as error:
            if self._head.sandbox_key is None:
                raise LaunchFailed(f"The thread's workspace could not be reached: {error}") from error
            raise
        if self._head.launch is not Launch.INTENDED:
            await self._note(launch=Launch.INTENDED)
        if not await self._reaching(sandbox.launched):
            spec = await self._launch_spec(sandbox)
            await self._reaching(lambda: self._launch(sandbox, spec))
        return sandbox

    async def _sandbox(self) -> Sandbox:
        if self.creating is not None and self._unheard:
            return await self._created(self.creating)
        head = self._head
        key = head.sandbox_key or self._provider.key(head.run_id)
        if head.sandbox_key is None:
            self._check_home(key)
            await self._note(sandbox_key=key, launch=Launch.KEYED)
        if head.launch is Launch.NONE:
            return await self._create(key)
        found = await self._provider.resume(key)
        if found is not None and (head.launch is Launch.INTENDED or self._source() is None):
            return found
        if found is None and head.launch is Launch.INTENDED:
            raise SandboxLost(f"The sandbox of run {head.run_id!r} no longer exists on its host.")
        return await self._create(key)  # also of one that is there: its workspace may not be filled to its end

    def _check_home(self, key: str) -> None:
        """Raise SandboxUnreachable where the thread's workspace is not: an existing one is never replaced by an empty
        one (P18)."""
        home = self._tools.home
        if home is not None and self._provider.host(key) != home:
            raise SandboxUnreachable(f"it is on {home}, and this driver is on {self._provider.host(key)}.")

    async def _say_what_is_missing(self, error: SandboxUnreachable) -> None:
        if isinstance(error, WorkspaceHeld) or self._head.sandbox_key is None:
            await self._tell(chunk.run_waiting("workspace"), chunk.RUN_WAITING)

    async def _create(self, key: str) -> Sandbox:
        create = partial(self._provider.create, key, thread_key(self._head.owner, self._head.thread_id))
        source = self._source()
        if source is not None:
            create = partial(create, source)
        await self._authority.permit()
        self.creating = asyncio.ensure_future(create())
        self.creating.add_done_callback(_hear)
        return await self._created(self.creating)

    async def _created(self, creating: asyncio.Future[Sandbox]) -> Sandbox:
        """Return what a `create` made. Raises SandboxUnreachable while it is under way for too long."""
        self._unheard = True
        if isinstance(self._provider, TellsMaking):
            ended = await self._wait_telling(creating, self._provider)
        else:
            ended = bool((await asyncio.wait((creating,), timeout=CREATE_PATIENCE_S))[0])
        if not ended:
            raise SandboxUnreachable(f"The sandbox is still not made after {CREATE_PATIENCE_S:.0f} s.")
        self._unheard = False
        return creating.result()

    async def _wait_telling(self, creating: asyncio.Future[Sandbox], provider: TellsMaking) -> bool:
        """Wait for a `create` as for any, and say how far it is: what is new, at most every TELL_S, later TELL_LATER_S.

        The key follows from what is said, so a successor does not say it again (P8)."""
        clock = self._tools.clock
        begun, said = clock.monotonic(), None
        while (waited := clock.monotonic() - begun) < CREATE_PATIENCE_S:
            pause = TELL_S if waited < TELL_LATER_AFTER_S else TELL_LATER_S
            if (await asyncio.wait((creating,), timeout=min(pause, CREATE_PATIENCE_S - waited)))[0]:
                return True
            facts = provider.making()
            if facts is not None and facts != said:
                said = facts
                told = chunk.custom(chunk.IMAGE_PULL, dict(facts))
                await self._tell(told, f"{chunk.IMAGE_PULL}:{chunk.digest(told)[:16]}")
        return creating.done()

    def _source(self) -> WorkspaceSource | None:
        """Return what the workspace begins with, if it is made now. Raises LaunchFailed."""
        try:
            source = read_source(self._spec.input)
        except InputInvalid as error:
            raise LaunchFailed(error.message) from error
        if source is not None and not self._provider.capabilities.workspace_sources:
            raise LaunchFailed(f"Workspaces of the provider {self._provider.name} begin empty: leave workspace out.")
        return source

    async def _launch(self, sandbox: Sandbox, spec: LaunchSpec) -> None:
        await self._authority.permit()
        await sandbox.launch(spec)

    async def _launch_spec(self, sandbox: Sandbox) -> LaunchSpec:
        past = await self._tools.history(self._head)
        env = dict(self._tools.agent_env)
        if sandbox.home is not None:
            env["HOME"] = sandbox.home
        try:
            spec = await self._reaching(lambda: going_on(self._harness, sandbox, self._spec, env, past))
            launch = self._harness.launch(shown_run_id(self._head.run_id), spec, env, sandbox.workspace, past.messages)
            lent, provider = self._tools.lent, self._provider
            offer = partial(host_calls.offer, lent, spec.input, provider, sandbox, self._harness, launch)
            return await self._reaching(offer)
        except (SandboxLost, SandboxUnreachable, LaunchFailed):
            raise
        except Exception as error:
            raise LaunchFailed(f"The {self._harness.name} harness could not build its command: {error}") from error

    async def _note(self, *, sandbox_key: str | None = None, launch: Launch | None = None) -> None:
        note = Note(run_id=self._head.run_id, epoch=self._authority.epoch, sandbox_key=sandbox_key, launch=launch)
        await self._authority.submit(note)

    async def _reaching(self, call: Callable[[], Awaitable[T]]) -> T:
        return await reaching(call, self._tools.clock, self._tools.sandbox_return_s)


def _hear(creating: asyncio.Future[Sandbox]) -> None:
    """Take note of how a `create` ended that nobody may wait for any more."""
    if not creating.cancelled():
        creating.exception()


async def reaching(
    call: Callable[[], Awaitable[T]],
    clock: Clock,
    within_s: float,
    failed: Callable[[SandboxUnreachable], Awaitable[None]] | None = None,
) -> T:
    """Await `call`, again and again while its host does not answer: unreachable is not gone (P17). `failed` hears of
    each try in vain.

    Raises SandboxUnreachable after `within_s`, and whatever else `call` raises."""
    deadline = clock.monotonic() + within_s
    while True:
        try:
            return await call()
        except SandboxUnreachable as error:
            if clock.monotonic() >= deadline:
                raise
            if failed is not None:
                await failed(error)
        await asyncio.sleep(UNREACHABLE_RETRY_S)
