"""What the engine asks of agents: the sandboxes they live in, and the harnesses that know how to run and read them.

Part of `runtime/ports.py`, which is where everybody imports these from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from runtime.core.launch import AgentExit
from runtime.core.record import RunError, RunSpec, Status, Struct
from runtime.core.result import ResultAsk
from runtime.core.workspace import WorkspaceSource

# --- sandboxes -------------------------------------------------------------------------------------------------


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a provider can do: declared, never guessed from a name (contract 10)."""

    background_processes: bool = True
    killable_processes: bool = True
    writable_stdin: bool = True
    durable_filesystem: bool = True
    isolated_agent: bool = False
    one_host: bool = False  # only the host that its key names reaches a sandbox: see `SandboxProvider.host`
    network_policy: bool = False
    snapshots: bool = False
    workspace_sources: bool = False  # a new workspace may begin with a folder, an archive or a repository
    host_tools: bool = False  # its sandboxes are `CarriesCalls`


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """How to start an agent: never a shell string made of user input. `env` is complete (nothing is inherited)."""

    argv: tuple[str, ...]
    env: dict[str, str]
    stdin: bytes = b""
    max_log_bytes: int = 1 << 30


class Sandbox(Protocol):
    """One sandbox that exists, by its key. Every method may raise SandboxUnreachable (no answer) or SandboxLost
    (its host says it does not exist)."""

    key: str
    workspace: str  # path inside the sandbox
    home: str | None  # path inside the sandbox of the thread's agent home (P18), the agent's HOME; None: it has none

    async def launched(self) -> bool:
        """Return whether the launch file exists (P15): if so there is never a second launch."""

    async def launch(self, spec: LaunchSpec) -> None:
        """Start the agent under its recorder, at most once in the life of the sandbox (P15, P16). A second call,
        from anyone, changes nothing and returns. Returns when journal and exit file exist. Raises LaunchFailed."""

    def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the journal's bytes from `start` as they come, in pieces of at most 128 KiB, and end when the exit is
        recorded and all bytes up to its `journal_length` were yielded. Reacts in milliseconds.

        Raises JournalUnavailable."""

    async def journal_id(self) -> str:
        """Return what tells this sandbox's journal from every other that there was or will be: made with the launch
        file, and the same for as long as that exists (P25). Raises JournalUnavailable if nothing was launched."""

    async def read_journal(self, start: int, size: int) -> bytes:
        """Return the journal's bytes from `start` on, `size` of them (at most 64 KiB) or what there is, without
        waiting. Raises JournalUnavailable."""

    async def exit(self) -> AgentExit | None:
        """Return how the agent ended; None while it lives. Recorder gone without a record: `lost` (P16)."""

    async def stderr_tail(self, max_bytes: int) -> bytes:
        """Return the end of the agent's stderr."""

    async def kill(self) -> None:
        """End the agent and all of its processes, by identity (P5); the recorder then records the exit."""

    async def exec(self, argv: Sequence[str], timeout_s: float) -> tuple[int, bytes]:
        """Run a short command in the workspace; return its exit code and output (stdout then stderr, bounded)."""


@runtime_checkable
class CarriesCalls(Protocol):
    """A Sandbox through which its agent can call host tools: calls and answers wait in it as files (a spool), so both
    outlive drivers. Every method may raise SandboxUnreachable or SandboxLost."""

    def tool_server(self) -> tuple[str, ...]:
        """Return the argv, inside the sandbox, of the MCP server that puts calls into the spool."""

    async def offer_tools(self, name: str, data: bytes) -> None:
        """Write an offer: the tools that an agent finds whose token has the digest `name`. Offers never change."""

    async def calls(self, known: Collection[str], wait_s: float) -> list[dict[str, Any]]:
        """Return calls of offers' agents, `{id, tool, arguments}`, that have no answer yet and are not `known`; with
        none, wait up to `wait_s` for one. What they hold is the agent's and not to be trusted."""

    async def answer_call(self, call_id: str, data: bytes) -> None:
        """Write the answer of a call, unless it has one."""


class SandboxProvider(Protocol):
    """Makes and ends sandboxes."""

    name: str
    capabilities: Capabilities

    def key(self, run_id: str) -> str:
        """Return the key of the run's sandbox: a function of deployment, host and run id (P15, P17)."""

    def host(self, key: str) -> str:
        """Return the host that `key` names, in words that no other provider uses; the host of `key(run_id)` is the one
        that this process is on. Asked only of a provider that declares `one_host`: the sandboxes of the others are
        reachable from everywhere."""

    async def create(self, key: str, thread_key: str, source: WorkspaceSource | None = None) -> Sandbox:
        """Make the sandbox, or return the one with this key; with the thread's workspace in it. One that is not there
        yet begins with what is at `source`, given only to a provider that declares `workspace_sources`.

        Raises LaunchFailed, SandboxUnreachable; WorkspaceHeld while another sandbox has the workspace (P18)."""

    async def resume(self, key: str) -> Sandbox | None:
        """Return the sandbox, or None if its own host says that it does not exist. Raises SandboxUnreachable."""

    async def destroy(self, key: str) -> None:
        """End all of its processes and remove it; returns when that is true. Absent: nothing to do. Workspaces stay
        (P18). Raises SandboxUnreachable."""

    async def list(self) -> list[str]:
        """Return the keys of this deployment's sandboxes that exist."""


@runtime_checkable
class TellsMaking(Protocol):
    """A SandboxProvider whose `create` may take long, and which says meanwhile how far it is."""

    def making(self) -> Mapping[str, Any] | None:
        """Return facts for people, JSON values; None if nothing is to be said now. Never blocks."""


class FileChange(Struct, frozen=True, kw_only=True):
    """What became of one file. `type`: create, change or delete; `timestamp`: ms. `key` tells it from every other, and
    is the same for whoever sees the same."""

    type: str
    path: str
    timestamp: int
    key: str
    diff: str | None = None


@runtime_checkable
class WatchesFiles(Protocol):
    """A Sandbox that says what its agent does to files, if that is asked for."""

    async def file_changes(self, *, diffs: bool, settled: bool) -> Sequence[FileChange]:
        """Return what changed in the workspace since the last call, the first time since the launch; a bounded piece of
        it. Nothing if that cannot be said. Unless `settled`, what is being written just now may wait for the next call.
        One call at a time; what a cancelled one has found may be lost."""


class WholeDiff(Struct, frozen=True, kw_only=True):
    """What a run made of its workspace, as `git diff` writes it. `truncated`: parts of some files are left out."""

    diff: str
    truncated: bool


@runtime_checkable
class TellsDiff(Protocol):
    """A Sandbox that says, at the end of a run, what that made of its workspace, if that is asked for."""

    async def whole_diff(self, max_bytes: int, within_s: float) -> WholeDiff | None:
        """Return the diff against the launch: whole parts, each one file's, of at most `max_bytes` together, and what
        was found within `within_s`. None if that cannot be said."""


@runtime_checkable
class Results(Protocol):
    """What runs have made of their workspaces, while they run and after. A provider of a user's own may be one too."""

    def read_result(self, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        """Yield a result in pieces, on the host that its key names. What stands against it is raised before the first.

        Raises WorkspaceGone, WorkspaceTooLarge, SandboxUnreachable."""


# --- harnesses -------------------------------------------------------------------------------------------------


class Ending(Struct, frozen=True, kw_only=True):
    """How a translator reads an exit: chunks made from it, then what the run is.

    `terminal` is the terminal chunk if the agent's own output decides it (held back until now), else the engine
    makes one from `status` and `error`. Closers are not the translator's: the engine derives them from the log (P9)."""

    status: Status
    chunks: tuple[bytes, ...] = ()
    terminal: bytes | None = None
    error: RunError | None = None
    usage: dict[str, Any] | None = None


class Translator(Protocol):
    """Turns one agent's output lines into chunks. Pure and deterministic: no clock, no randomness, no set order, so
    that a replay of the same bytes gives the same chunks (P24). Never raises on any input line."""

    @property
    def has_result(self) -> bool:
        """True once the output said how the run ended; the process should exit soon (`agent_no_exit` if not)."""

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        """Return the chunks of one line (without its newline). `torn`: an unterminated last line."""

    def finish(self, exit: AgentExit, stderr: bytes) -> Ending:
        """Return the ending, once, after the last line."""


@runtime_checkable
class Resumable(Protocol):
    """A Translator whose work can be put aside after a whole line and gone on with by another one (P25): ours all are.

    A translator without these two works as well; its runs have no checkpoints, and each takeover replays the whole
    journal. `translator_version` goes up when a state comes to mean something else."""

    def state(self) -> bytes:
        """Return everything that the lines so far have left behind. Deterministic, like the chunks."""

    def restore(self, state: bytes) -> None:
        """Take, into a fresh translator, what one of the same harness, version and run has given. Everything that it
        then does must be what that one would have done. May raise anything for bytes that it did not give."""


class Harness(Protocol):
    """Knows how to launch one kind of agent and how to read it.

    Output that is translated otherwise than before is a new version. The old one is kept for as long as there are runs
    that began with it: `translator` then goes by `spec.translator_version`, and `translator_versions` (a collection;
    absent: `translator_version` alone) names all that it makes. A run whose version is not kept ends
    `journal_unavailable`."""

    name: str
    translator_version: int  # of new runs

    def validate(self, input: Mapping[str, Any]) -> None:
        """Check the options in `input["forwardedProps"]` and the messages.

        Raises InputInvalid (`option_invalid`, `message_invalid`)."""

    def launch(
        self, run_id: str, spec: RunSpec, env: Mapping[str, str], workspace: str, history: Sequence[Mapping[str, Any]]
    ) -> LaunchSpec:
        """Return how to start the agent. `env` is the whole environment it may have. `history` is the thread's
        earlier messages (AG-UI), oldest first."""

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        """Return a fresh translator of `spec.translator_version`."""


class ToolServer(Struct, frozen=True, kw_only=True):
    """How an agent reaches its host tools: an MCP server on stdin and stdout, and its environment, which holds the
    run's token and so belongs into no argv and no file."""

    argv: tuple[str, ...]
    env: dict[str, str]
    tools: tuple[str, ...]
    patience_s: float  # the longest that a call takes, with a takeover in the middle


@runtime_checkable
class LendsTools(Protocol):
    """A Harness whose agent speaks MCP. An agent of another one finds the server in its environment."""

    def lend(self, spec: LaunchSpec, server: ToolServer) -> LaunchSpec:
        """Return `spec` with the server named in its argv; `server.env` is in its environment already."""


class SessionFile(NamedTuple):
    """Where an agent keeps one session: somewhere below `folder`, itself below its HOME, under a `name` of which `*`
    stands for any text."""

    folder: str
    name: str


@runtime_checkable
class KeepsSessions(Protocol):
    """A Harness whose agent goes on with a session that the input names, where that is in its home (P18)."""

    def session_file(self, input: Mapping[str, Any], env: Mapping[str, str]) -> SessionFile | None:
        """Return where the session that `input` names is kept; None if it names none, or `env` has the agent keep its
        sessions elsewhere."""

    def with_session(self, input: Mapping[str, Any], session: str) -> dict[str, Any]:
        """Return `input`, which names none, as it would be if it named this one."""

    def without_session(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """Return `input` as it would be if it named none."""
