"""One sandbox of the `docker` provider: an agent in a container, reached through attendants in it.

What the engine says of a container, and what that means for the sandbox:

    there is none           gone (SandboxLost), if it is still the same engine that says so (P17)
    running                 an attendant is started in it (`attendant.py`), one for each connection
    created, exited         it is started: whatever ran in it is dead, its journal is not (P15: never a second launch)
    paused                  SandboxUnreachable: whoever paused it wants it so; nothing in it can answer

An attendant ends with its connection, or soon after it has heard of nobody, so a driver that dies leaves nothing
behind. A connection that ends says nothing about the run: `follow` goes on where it was, through another one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from runtime.core.launch import AgentExit
from runtime.errors import AgentError, JournalUnavailable, LaunchFailed, SandboxUnreachable
from runtime.ports import FileChange, LaunchSpec, WholeDiff
from runtime.sandboxes.attendant import HOME, SPOOL
from runtime.sandboxes.container_engine import Engine, Refusal
from runtime.sandboxes.container_filling import SEND_S, Prepared, is_made, prepared, send
from runtime.sandboxes.container_line import Line, LineLost
from runtime.sandboxes.container_python import LOADER, program, script
from runtime.sandboxes.hardening import UNSAID, WORKSPACE
from runtime.sandboxes.isolated import AGENT_GID, AGENT_UID
from runtime.sandboxes.recorder import MARKER

ROOT, AGENT = "0:0", f"{AGENT_UID}:{AGENT_GID}"
ANSWER_S = 20.0  # of an attendant, which reads and writes small files; a paused container gives none
STDERR_S = 2.0  # a cancel asks for it, of whatever state the container is in, and has something better to do
KILL_S = 5.0  # the exit is worth waiting for: the recorder syncs the journal first
SLACK_S = 30.0  # for the start and end of a command, beyond its own time
SILENCE_S = 60.0  # an attendant that hears nothing for so long has lost its client, and ends
ATTACHES = 3  # in a row without an answer: then whoever follows waits
FILLER = ("workspace_filler", str(SILENCE_S), WORKSPACE)
OF_THE_HOST = ("PATH", "HOME")  # they name places of the driver's machine; the container has its own


Wake = Callable[[str, Refusal], None]  # raises SandboxLost, SandboxUnreachable, Refusal


class DockerSandbox:
    """One sandbox in a container (`runtime.ports.Sandbox`)."""

    workspace = WORKSPACE
    home: str | None = HOME

    def __init__(self, engine: Engine, key: str, container: str, wake: Wake) -> None:
        self.key = key
        self._engine = engine
        self._container = container
        self._wake = wake
        self._ended: AgentExit | None = None  # once it is recorded it is for ever
        self._idle: list[Line] = []  # at most one
        self._telling: list[Line] = []  # at most one, to what tells of files
        for lines in (self._idle, self._telling):
            weakref.finalize(self, _close, lines)

    async def launched(self) -> bool:
        """Return whether the launch file exists. Raises SandboxLost, SandboxUnreachable."""
        return (await self._ask("launched"))[0]["journal"] is not None

    async def launch(self, spec: LaunchSpec) -> None:
        """Launch, unless somebody has (P15). Raises LaunchFailed, SandboxLost, SandboxUnreachable."""
        job = {
            "argv": spec.argv,
            "env": {name: value for name, value in spec.env.items() if name not in OF_THE_HOST},
            "cwd": WORKSPACE,
            "stdin": base64.b64encode(spec.stdin).decode(),
            "maxLogBytes": spec.max_log_bytes,
            "sandbox": self.key,
        }
        said = (await self._ask("launch", job=job, run=self.key.rpartition("/")[2]))[0]["said"]
        if said != "launched":
            raise LaunchFailed(f"The agent could not be launched: {said.removeprefix('failed ') or 'no word of it'}.")

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the journal from `start` to its end. Raises JournalUnavailable, SandboxLost, SandboxUnreachable."""
        position, silent = start, 0
        while True:
            line = await self._line()
            done, facts = False, dict[str, Any]()
            try:
                await line.ask("follow", start=position)
                while not done:
                    facts, piece = await line.answer()
                    silent = 0
                    done = "exit" in facts or "error" in facts
                    if piece:
                        position += len(piece)
                        yield piece
            except LineLost as lost:
                silent += 1
                if silent >= ATTACHES:
                    raise SandboxUnreachable(f"The connection to the container ends at once: {lost}.") from lost
                await self._after(lost)
                continue
            finally:
                self._give_back(line, whole=done)
            self._take_exit(facts)
            if "error" in facts:
                raise JournalUnavailable(f"The journal cannot be read: {facts['error']}.")
            return

    async def journal_id(self) -> str:
        """Return the container and who recorded in it (P5, P15). Raises as `follow`."""
        recorder = (await self._ask("launched"))[0]["journal"]
        if recorder is None:
            raise JournalUnavailable(f"Nothing was launched in the sandbox {self.key}.")
        return f"{self._container}/{recorder}"

    async def read_journal(self, start: int, size: int) -> bytes:
        """Return a stretch of the journal. Raises as `follow`."""
        return (await self._ask("read", refused=JournalUnavailable, start=start, size=size))[1]

    async def exit(self) -> AgentExit | None:
        """Return how the agent ended; None while it lives. Raises SandboxLost, SandboxUnreachable."""
        if self._ended is None:
            self._take_exit((await self._ask("exit"))[0])
        return self._ended

    async def stderr_tail(self, max_bytes: int) -> bytes:
        """Return the end of the agent's stderr. Raises SandboxLost, SandboxUnreachable."""
        return (await self._ask("stderr", within_s=STDERR_S, size=max_bytes))[1]

    async def kill(self) -> None:
        """End all of the agent's user; the recorder records the exit. Raises SandboxUnreachable if some stay."""
        left = (await self._ask("kill", within_s=ANSWER_S + 4 * KILL_S, patienceS=KILL_S))[0]["left"]
        if left:
            raise SandboxUnreachable(f"{left} processes of {self.key} could not be ended.")

    async def exec(self, argv: Sequence[str], timeout_s: float) -> tuple[int, bytes]:
        """Run a short command in the workspace, as the agent's user (see `run_command`)."""
        job = {"argv": list(argv), "cwd": WORKSPACE, "env": {"HOME": HOME, MARKER: self.key}, "timeoutS": timeout_s}
        line = await self._attach(AGENT, "commanded")
        try:
            async with asyncio.timeout(timeout_s + SLACK_S):
                await line.send(json.dumps(job).encode() + b"\n")
                facts, output = await line.answer()
        except (LineLost, TimeoutError, KeyError) as error:  # the agent may have ended or changed it
            return -1, str(error).encode()
        finally:
            line.close()
        return int(facts["code"]), output

    def tool_server(self) -> tuple[str, ...]:
        """Return the program, run by the Python that the container has from us."""
        return tuple(script("sandboxes/tool_server", SPOOL))

    async def offer_tools(self, name: str, data: bytes) -> None:
        """Write an offer. Raises SandboxLost, SandboxUnreachable."""
        await self._ask("offer", name=name, data=data.decode())

    async def calls(self, known: Collection[str], wait_s: float) -> list[dict[str, Any]]:
        """Return the calls that wait, or wait for one. Raises SandboxLost, SandboxUnreachable."""
        _, data = await self._ask("calls", within_s=ANSWER_S + wait_s, known=list(known), waitS=wait_s)
        found: list[dict[str, Any]] = json.loads(data)
        return found

    async def answer_call(self, call_id: str, data: bytes) -> None:
        """Write an answer. Raises SandboxLost, SandboxUnreachable."""
        await self._ask("answer", id=call_id, data=data.decode())

    async def file_changes(self, *, diffs: bool, settled: bool) -> list[FileChange]:
        """Return what changed since the last call, told by a program of its own (`file_teller.py`). Nothing while that
        cannot be reached; the next one begins with the launch again."""
        told = await self._told(diffs=diffs, settled=settled)
        return [FileChange(**facts) for facts in told or ()]

    async def whole_diff(self, max_bytes: int, within_s: float) -> WholeDiff | None:
        """Return how the workspace differs from what it was at the launch, told by the same program."""
        told = await self._told(diffs=True, settled=True, whole=[max_bytes, within_s])
        return WholeDiff(**told) if isinstance(told, dict) else None  # an older program in an older container: a list

    async def _told(self, **asked: Any) -> Any:
        """Return what the teller of files answers; None if it cannot be reached."""
        job = {"workspace": WORKSPACE, "run": self.key.rpartition("/")[2], **asked}
        line = self._telling.pop() if self._telling else await self._attach(ROOT, "file_teller")
        try:
            async with asyncio.timeout(ANSWER_S):
                await line.send(json.dumps(job).encode() + b"\n")
                data = (await line.answer())[1]
        except (LineLost, TimeoutError):
            line.close()
            return None
        except BaseException:
            line.close()
            raise
        self._telling.append(line)
        return json.loads(data)

    async def begin_with(self, source: Prepared) -> None:
        """Fill the workspace with its source, unless it is there: whole or not at all (`workspace_filler.py`).

        Raises LaunchFailed, SandboxLost, SandboxUnreachable, OSError."""
        line = await self._attach(ROOT, *FILLER)
        try:
            async with asyncio.timeout(SEND_S):
                if await is_made(line):
                    return
            line.close()
            async with prepared(source) as folder:
                line = await self._attach(ROOT, *FILLER)
                await send(line, folder)
        except TimeoutError as error:
            raise SandboxUnreachable(f"The container of {self.key} does not say what its workspace is.") from error
        except LineLost as lost:
            await self._after(lost)
            raise SandboxUnreachable(f"The connection that fills the workspace has ended: {lost}.") from lost
        finally:
            line.close()

    # --- connections

    async def _ask(
        self, op: str, within_s: float = ANSWER_S, refused: type[AgentError] = SandboxUnreachable, **facts: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Ask an attendant; a repeat after a lost connection is harmless (I9). Raises `refused` if it says why not."""
        for attempt in range(ATTACHES):
            line = await self._line()
            whole = False
            try:
                async with asyncio.timeout(within_s):
                    await line.ask(op, **facts)
                    answer = await line.answer()
                whole = True
            except TimeoutError as error:
                raise SandboxUnreachable(f"The container of {self.key} does not answer within {within_s} s.") from error
            except LineLost as lost:
                if attempt == ATTACHES - 1:
                    raise SandboxUnreachable(f"The connection to the container ends at once: {lost}.") from lost
                await self._after(lost)
                continue
            finally:
                self._give_back(line, whole=whole)
            if "error" in answer[0]:
                raise refused(f"The container of {self.key} does not do what was asked ({op}): {answer[0]['error']}.")
            return answer
        raise AssertionError("a loop that returns or raises")

    async def _line(self) -> Line:
        """Return a connection, the caller's to give back."""
        if self._idle:
            return self._idle.pop()
        return await self._attach(ROOT, "attendant", str(SILENCE_S))

    def _give_back(self, line: Line, *, whole: bool) -> None:
        if whole and not self._idle:
            self._idle.append(line)
        else:
            line.close()

    async def _attach(self, user: str, *what: str) -> Line:
        attaching = asyncio.ensure_future(asyncio.to_thread(self._attach_now, user, what))
        try:
            return Line(await asyncio.shield(attaching), SILENCE_S / 3)
        except asyncio.CancelledError:
            attaching.add_done_callback(_abandon)
            raise

    def _attach_now(self, user: str, what: Sequence[str]) -> Any:
        """Start a program in the container, which is started if it does not run. Raises SandboxLost,
        SandboxUnreachable. Blocks."""
        for _ in range(ATTACHES):
            try:
                return self._engine.attach(self._container, program(*what), user, UNSAID)
            except Refusal as refusal:
                self._revive(refusal)
        raise SandboxUnreachable(f"The container of {self.key} does not stay up.")

    async def _after(self, lost: LineLost) -> None:
        """See to what kept a program from starting, if that is why a connection was lost."""
        if LOADER in str(lost):
            await asyncio.to_thread(self._revive, Refusal(Refusal.ABSENT, str(lost)))

    def _revive(self, refusal: Refusal) -> None:
        try:
            self._wake(self._container, refusal)
        except Refusal as again:
            raise SandboxUnreachable(f"The container does not start: {again.message}.") from again

    def _take_exit(self, facts: dict[str, Any]) -> None:
        if facts.get("exit") is not None:
            self._ended = msgspec.convert(facts["exit"], AgentExit)


def _close(lines: list[Line]) -> None:
    for line in lines:
        with suppress(OSError):
            line.close()


def _abandon(attaching: asyncio.Future[Any]) -> None:
    """Close a connection that nobody waits for any more; else its attendant would stay."""
    if not attaching.cancelled() and attaching.exception() is None:
        Line(attaching.result(), SILENCE_S).close()
