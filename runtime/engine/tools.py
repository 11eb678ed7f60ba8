"""What a driver works with, given to it by a composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runtime.core.record import Head
from runtime.engine.checkpointing import Pace
from runtime.engine.host_calls import NO_TOOLS, Lent
from runtime.ports import Clock, Harness, LogPort, SandboxProvider


class Past(NamedTuple):
    """What a run's thread was before it: `messages` (AG-UI), oldest first; the `session` that the last run of the same
    harness has left, if no other came after it; and what the run `asked` that this one answers (P23)."""

    messages: Sequence[Mapping[str, Any]] = ()
    session: str | None = None
    asked: Sequence[Mapping[str, Any]] = ()


History = Callable[[Head], Awaitable[Past]]


@dataclass(frozen=True, slots=True)
class Tools:
    """What a driver works with; made by a composition root, the same for every run of a process."""

    log: LogPort
    clock: Clock
    providers: Mapping[str, SandboxProvider]
    harnesses: Mapping[str, Harness]
    agent_env: Mapping[str, str]
    history: History
    lease_ttl_s: float
    sandbox_return_s: float
    home: str | None = None  # the host that has the thread's workspace, if the run is bound to one (P18)
    file_events: str = "off"  # what is told of a workspace's files, unless the run says: off, files, diff
    pace: Pace = field(default_factory=Pace)  # of checkpoints
    lent: Lent = NO_TOOLS
