"""What a driver works with, given to it by a composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.core.record import Head
from runtime.engine.checkpointing import Pace
from runtime.engine.host_calls import NO_TOOLS, Lent
from runtime.ports import Clock, Harness, LogPort, SandboxProvider

# Returns the thread's earlier messages (AG-UI), oldest first, without those of the run itself.
History = Callable[[Head], Awaitable[Sequence[Mapping[str, Any]]]]


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
