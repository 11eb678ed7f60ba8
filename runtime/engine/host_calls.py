"""Calls of host tools: executed by the holder of the epoch, each at most once by its id, across takeovers.

A call waits as a file in its sandbox, and its answer comes as one; between the two lies the log:

    1. `tool.begun` is stored under the call's key. The store keeps the first one under a key, and says whose it is.
    2. It is ours: the function is called. An earlier epoch's: nobody knows how far that came, so the function is not
       called again, and the result is that; a function that is declared idempotent is called again.
    3. `tool.ended` is stored under the call's second key. Whatever is stored there first is the result, for ever.
    4. The answer is made of what is stored, and written.

So every answer follows from one stored chunk, and who writes it does not matter (I1). The interleavings of an older
driver A and its successor B, by how far A had come when B claimed:

    before 1        A's store is refused (P3), B calls the function
    after 1         B stores "interrupted"; A's own result is then refused by its epoch, and A answers nothing
    between 1, 2    A wakes up: `permit` finds its lease over, asks, and is refused (P4): the function is not called
    after 3         B finds the result and answers it; A, waking up, writes the same bytes, or finds the answer there

What cannot be had: A may be stopped within the function itself, and end that after B has said "interrupted". The effect
then happened once, and the agent was told that this is not known. An idempotent function may then run twice at a time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from runtime import host_tools
from runtime.core import chunk
from runtime.core.ids import shown_run_id
from runtime.core.record import Head
from runtime.engine.appending import Appender
from runtime.engine.authority import Authority, repeat
from runtime.errors import AgentError, InputInvalid, LaunchFailed, OutlastError, SandboxUnreachable, StoreError
from runtime.host_tools import HostTool, ToolCancelled, ToolContext
from runtime.ports import CarriesCalls, Harness, LaunchSpec, LendsTools, Sandbox, SandboxProvider, ToolServer

T = TypeVar("T")

log = logging.getLogger("outlast.driver")

BEGUN, ENDED = "tool.begun", "tool.ended"
SERVER, TOKEN = "AGENT_TOOLS", "AGENT_TOOLS_TOKEN"  # in the agent's environment
WAIT_S = 20.0
RETRY_S, RETRY_MOST_S = 0.5, 10.0  # while the sandbox cannot be reached
MOST_AT_ONCE = 8
TAKEOVER_S = 300.0  # beyond a call's own time: a successor, and a sandbox that is away meanwhile
INTERRUPTED = (
    "The call was interrupted: the process that executed it was lost. Whether it had an effect is not known, and it "
    "was not repeated."
)


Work = Callable[[], dict[str, Any]]


async def on_thread(name: str, work: Work) -> dict[str, Any]:
    """Run `work` on an OS thread of its own, which may outlive who waits for it and never keeps the process up."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[dict[str, Any]] = loop.create_future()

    def tell(result: dict[str, Any]) -> None:
        if not done.done():
            done.set_result(result)

    def run() -> None:
        result = work()
        try:
            loop.call_soon_threadsafe(tell, result)
        except RuntimeError:  # the drive has ended, and its loop
            log.debug("%s: nobody waits for its result any more", name)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


class Lent(NamedTuple):
    """The tools of this process, how long one may take, and where it runs."""

    tools: Mapping[str, HostTool]
    timeout_s: float
    run: Callable[[str, Work], Awaitable[dict[str, Any]]] = on_thread

    def of(self, input: Mapping[str, Any]) -> tuple[HostTool, ...]:
        """Return the tools of a run. Raises InputInvalid."""
        return tuple(self.tools[name] for name in host_tools.chosen(input, self.tools))

    def time_s(self, tool: HostTool) -> float:
        """Return how long a call may take."""
        return tool.timeout_s if tool.timeout_s is not None else self.timeout_s


NO_TOOLS = Lent({}, 0.0)


async def offer(
    lent: Lent,
    input: Mapping[str, Any],
    provider: SandboxProvider,
    sandbox: Sandbox,
    harness: Harness,
    spec: LaunchSpec,
) -> LaunchSpec:
    """Return `spec` with the way to the run's tools in it, and offer them in the sandbox under a new token.

    Raises LaunchFailed; SandboxLost, SandboxUnreachable."""
    try:
        tools = lent.of(input)
    except InputInvalid as error:
        raise LaunchFailed(error.message) from error
    if not tools:
        return spec
    if not provider.capabilities.host_tools or not isinstance(sandbox, CarriesCalls):
        if host_tools.named(input):
            raise LaunchFailed(f"Sandboxes of the provider {provider.name} carry no host tools: leave tools out.")
        return spec
    token = secrets.token_hex(24)
    listed = [tool.listed() for tool in tools]
    await sandbox.offer_tools(chunk.digest(token.encode()), msgspec.json.encode(listed))
    server = ToolServer(
        argv=sandbox.tool_server(),
        env={SERVER: shlex.join(sandbox.tool_server()), TOKEN: token},
        tools=tuple(tool.name for tool in tools),
        patience_s=max(map(lent.time_s, tools)) + TAKEOVER_S,
    )
    spec = replace(spec, env={**spec.env, **server.env})
    return harness.lend(spec, server) if isinstance(harness, LendsTools) else spec


class HostCalls:
    """Serves the calls of one run under one epoch."""

    def __init__(
        self,
        lent: Lent,
        input: Mapping[str, Any],
        head: Head,
        authority: Authority,
        appender: Appender,
        sandbox: CarriesCalls,
    ) -> None:
        self._lent = lent
        self._names = host_tools.still_chosen(input, lent.tools)
        self._head = head
        self._authority = authority
        self._appender = appender
        self._sandbox = sandbox
        self._serving: dict[str, asyncio.Task[None]] = {}  # at most MOST_AT_ONCE: an agent's arguments are held in them
        self._left: set[str] = set()  # what stays unanswered here

    async def serve(self) -> None:
        """Serve until cancelled, or until the sandbox is gone; what is under way then ends unanswered."""
        pause_s = RETRY_S
        try:
            while True:
                try:
                    await self._take()
                    pause_s = RETRY_S
                except AgentError:
                    raise
                except Exception:  # a bug, of a plugin's maybe: the run's other calls are served even so
                    log.exception("run %s: its calls of tools could not be read", self._head.run_id)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_MOST_S)
        except AgentError as error:
            log.info("run %s: its calls of tools cannot be read any more: %s", self._head.run_id, error)
        finally:
            tasks = list(self._serving.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self) -> None:
        """Begin to serve calls, as many as there is room for; the others wait in the sandbox and not here."""
        while len(self._serving) >= MOST_AT_ONCE:
            await asyncio.wait(self._serving.values(), return_when=asyncio.FIRST_COMPLETED)
        known = [*self._serving, *self._left]
        for call in await _reached(lambda: self._sandbox.calls(known, WAIT_S)):
            id = str(call["id"])
            if id not in known and id not in self._serving and len(self._serving) < MOST_AT_ONCE:
                self._serving[id] = asyncio.create_task(self._serve(id, call))

    async def _serve(self, id: str, call: Mapping[str, Any]) -> None:
        try:
            result = await self._result(id, call)
            data = chunk.encode({"content": result["content"], "isError": result["isError"]})
            await _reached(lambda: self._sandbox.answer_call(id, data))
        except (OutlastError, StoreError) as error:
            # The epoch is lost, or the log has ended or is full: whoever is next answers, or nobody need.
            log.info("run %s: the call %s of a tool stays unanswered here: %s", self._head.run_id, id, error)
            self._left.add(id)
        except Exception:
            log.exception("run %s: the call %s of a tool could not be served", self._head.run_id, id)
            self._left.add(id)
        finally:
            self._serving.pop(id, None)

    async def _result(self, id: str, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored result of a call, once there is one: steps 1 to 3."""
        key, name = f"tool:{id}", str(call["tool"])
        if f"{key}:ended" not in self._appender.progress.keys:
            epoch, _ = await self._stored(BEGUN, {"callId": id, "tool": name}, f"{key}:begun")
            made = await self._made(id, call, again=epoch != self._authority.epoch)
        else:
            made = {}  # another one is stored
        _, ended = await self._stored(ENDED, {"callId": id, "tool": name, **made}, f"{key}:ended")
        stored: dict[str, Any] = ended["value"]
        return stored

    async def _made(self, id: str, call: Mapping[str, Any], *, again: bool) -> dict[str, Any]:
        """Return what comes of calling the function; `again`: an earlier epoch had begun to."""
        name = str(call["tool"])
        if name not in self._names:
            have = ", ".join(sorted(self._names))
            return host_tools.failed(f"There is no tool {name!r} here any more; there are: {have or 'none'}.")
        try:
            tool = self._lent.tools[name]
        except InputInvalid as error:
            return host_tools.failed(error.message)
        if again and not tool.idempotent:
            return host_tools.failed(INTERRUPTED)
        return await self._call(id, tool, call["arguments"])

    async def _call(self, id: str, tool: HostTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        head = self._head
        context = ToolContext(head.run_id, head.thread_id, head.owner, id, self._emitter(id))
        time_s = self._lent.time_s(tool)
        await self._authority.permit()
        try:
            async with asyncio.timeout(time_s):
                return await self._lent.run(f"tool {tool.name}", lambda: tool.call(arguments, context))
        except TimeoutError:
            return host_tools.failed(f"{tool.name} did not end within {time_s:g} s.")
        except RuntimeError as error:  # no OS thread is to be had: as for a function that failed, the model hears of it
            log.exception("run %s: the tool %s could not be called", self._head.run_id, tool.name)
            return host_tools.failed(f"{tool.name} could not be called: {error}.")
        finally:
            context.cancel()

    def _emitter(self, id: str) -> Callable[[str, Any], None]:
        """Return what stores an event of a call, from the function's OS thread: the n-th is stored once (P8)."""
        loop = asyncio.get_running_loop()
        count, run_id = 0, shown_run_id(self._head.run_id)

        def emit(name: str, value: Any) -> None:
            nonlocal count
            data = chunk.custom(name, value, runId=run_id, threadId=self._head.thread_id, callId=id)
            key, count = f"tool:{id}:event:{count}", count + 1
            try:
                asyncio.run_coroutine_threadsafe(self._appender.put_live(data, key), loop).result()
            except (OutlastError, RuntimeError) as error:
                raise ToolCancelled(f"The run takes no more events of the call {id}.") from error

        return emit

    async def _stored(self, name: str, value: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        """Store an event under a key; return the epoch and the event that *are* stored there (P8)."""
        position = await self._appender.put_live(chunk.custom(name, value), key)
        batches = await repeat(lambda: self._authority.log.batches(self._head.run_id, position - 1))
        stored = batches[0]
        return stored.epoch, chunk.decode_chunk(stored.chunks()[position - 1 - stored.seq])


async def _reached(call: Callable[[], Awaitable[T]]) -> T:
    """Await `call`, again and again while the sandbox cannot be reached: what that means, its follower says."""
    delay_s = RETRY_S
    while True:
        try:
            return await call()
        except SandboxUnreachable:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MOST_S)


@asynccontextmanager
async def serving(
    lent: Lent, input: Mapping[str, Any], head: Head, authority: Authority, appender: Appender, sandbox: Sandbox
) -> AsyncGenerator[None, None]:
    """Serve the run's calls meanwhile, if it has tools."""
    if not lent.tools or not isinstance(sandbox, CarriesCalls) or host_tools.named(input) == []:
        yield
        return
    task = asyncio.create_task(HostCalls(lent, input, head, authority, appender, sandbox).serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
