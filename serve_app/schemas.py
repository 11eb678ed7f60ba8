"""What goes over HTTP, as pydantic models: they check requests, and `/openapi.json` is made from them.

Field names are camelCase outside. Unknown keys of a request are ignored at the top level, as AG-UI servers do; inside
`forwardedProps` and messages they are kept: they are the agent's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_SECONDS = 10 * 365 * 86400
ID_SCHEMA: dict[str, Any] = {"pattern": r"^[A-Za-z0-9._:~-]{1,128}$"}

Id = Annotated[str, Field(json_schema_extra=ID_SCHEMA)]
Seconds = Annotated[int, Field(ge=0, le=MAX_SECONDS, strict=True)]
Role = Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]


class _In(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", strict=True)


class _Open(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="allow", strict=True)


class _Out(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", populate_by_name=True)


class Message(_Open):
    """One AG-UI message."""

    role: Role
    id: str | None = None
    content: str | list[dict[str, Any]] | dict[str, Any] | None = None


class Answer(_Open):
    """What the user says to one interrupt of the thread's interrupted run."""

    interrupt_id: str = Field(min_length=1, max_length=512)
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class ForwardedProps(_Open):
    """The options that Outlast reads; what a harness reads, and what it does not, is kept beside them."""

    harness: str | None = Field(None, description="Which kind of agent; the server's default if absent.")
    on_disconnect: Literal["detach", "cancel"] | None = Field(
        None, description="What it means that nobody watches any more. `detach` (default): nothing."
    )
    on_busy: Literal["reject", "enqueue", "cancel-previous"] | None = Field(
        None, description="What to do if the thread has an active run. `reject` (default): 409."
    )
    detached_ttl_s: Seconds | None = Field(None, description="End the run if nobody comes back for so long; 0: never.")
    run_limit_s: Seconds | None = Field(None, description="Longest time the run may take; 0: no limit.")
    keep_alive: bool | None = Field(
        None, description="Keep the sandbox for OUTLAST_KEEP_ALIVE_S if the run completes; absent: it is destroyed."
    )
    destroy_on_complete: bool | None = Field(None, description="The opposite of `keepAlive`; send one of them.")
    workspace: dict[str, str | None] | None = Field(
        None,
        description="What the thread's workspace begins with, if it is made now: `directory`, `archive` or `git` (with "
        "`ref`), a path or URL out of OUTLAST_WORKSPACE_SOURCES. Absent: nothing.",
    )
    tools: list[str] | None = Field(
        None, description="Names of the host tools that the agent may call, out of OUTLAST_TOOLS; all if absent."
    )
    file_events: Literal["off", "files", "diff"] | None = Field(
        None, description="What the log tells of files that the agent changes; OUTLAST_FILE_EVENTS if absent."
    )
    env: list[str] | dict[str, str] | None = Field(
        None, description="Names of environment variables for the agent, out of OUTLAST_AGENT_ENV; no values."
    )


class ChatBody(_In):
    """AG-UI RunAgentInput. `threadId`, and `messages` that end in text of the user (any with `resume`), are needed; the
    run id is here or in `X-Run-Id`."""

    thread_id: Id
    messages: list[Message]
    run_id: Id | None = None
    parent_run_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    context: list[dict[str, Any]] | None = None
    state: Any = None
    resume: list[Answer] | None = Field(None, description="Answers to what the thread's interrupted run asks.")
    forwarded_props: ForwardedProps | None = None


class CancelBody(_In):
    """Which run shall stop: the active one of `threadId`, or `runId`."""

    thread_id: Id | None = None
    run_id: Id | None = None


class ErrorFacts(_Out):
    """Why: `code` is stable, `message` says what to do."""

    code: str
    message: str


class ErrorBody(_Out):
    """Every error."""

    error: ErrorFacts


class RunRef(_Out):
    """A run by its id."""

    run_id: str


class ActiveRun(_Out):
    """The thread's active run, or null."""

    run_id: str | None


class ChangedFile(_Out):
    """A file or link that a run has changed; `bytes` is its size now."""

    path: str
    change: Literal["created", "modified", "deleted"]
    bytes: int


class Taken(_Out):
    """A takeover was begun: the driver of `fromEpoch` is being replaced."""

    run_id: str
    from_epoch: int


class Drained(_Out):
    """A node that is being drained: what is still `left` on it, and why; `gone` once Ray has ended it."""

    node_id: str
    deadline: int | None
    left: dict[str, str]
    gone: bool


class ReapedRun(_Out):
    """What the reaper found one run to be, or made of it."""

    run_id: str
    outcome: str
    status: str | None
    exit_code: int | None
    error: str | None


class Pruned(_Out):
    """How many logs and transcripts a sweep removed, or would, since they are not kept any more."""

    logs: int
    transcripts: int


class ReapReport(_Out):
    """One sweep: `outcomes` has the count of every outcome, `runs` a line for each run that was looked at."""

    at: int
    dry_run: bool
    considered: int
    outcomes: dict[str, int]
    runs: list[ReapedRun]
    pruned: Pruned
    failures: list[str]
    orphans: int
    kept: dict[str, str]


class RunPageBody(_Out):
    """Runs, newest first; `next` is the cursor of the following page, or null."""

    runs: list[dict[str, Any]]
    next: str | None


class PendingInterrupts(_Out):
    """What a run waits for."""

    run_id: str
    pending: list[dict[str, Any]]


class Hydrated(_Out):
    """What a page needs to show a thread and to join its active run (contract 4.6)."""

    messages: list[dict[str, Any]]
    active_run: RunRef | None
    interrupts: PendingInterrupts | None


class ThreadBody(_Out):
    """A thread: its messages, and its runs, oldest first."""

    thread_id: str
    messages: list[dict[str, Any]]
    runs: list[dict[str, Any]]


class Session(_Out):
    """A session that was begun; `expiresAt` is null where there are no tokens, and no cookie is needed."""

    owner: str
    expires_at: int | None


class Alive(_Out):
    """This process answers."""

    ok: bool


class Check(_Out):
    """One thing that must be right."""

    name: str
    ok: bool
    detail: str


class Actor(_Out):
    """One actor of the instance: the supervisor, a log shard, or the driver of a run."""

    name: str
    node_id: str | None
    pid: int | None
    alive: bool


class Readiness(_Out):
    """Whether runs can be started here now, and why not; and the instance's actors, for `outlast doctor`."""

    ready: bool
    checks: list[Check]
    actors: list[Actor]
