"""What the supervisor asks of whoever makes run actors (`actors/fleet.py` over Ray), and what it knows of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runtime.core.record import ClaimReason, Head
from runtime.engine.concluding import DriveEnd
from runtime.engine.placing import Node, Place


class DriverDied(Exception):
    """The driver's process is gone."""


class NotStarted(Exception):
    """The driver was not made in time: there is no node for it, or the node is slow or lost. No attempt at driving was
    made, so none is counted; the same decision is tried again."""


class NameTaken(Exception):
    """Somebody holds the run's name."""

    def __init__(self, holder: RunHandle) -> None:
        super().__init__(holder.actor_id)
        self.holder = holder


class RunHandle(Protocol):
    """One run actor. Calls may raise DriverDied."""

    actor_id: str
    node_id: str | None  # where it runs; None if that is not known

    async def ready(self) -> None:
        """Return once it runs. Raises DriverDied, and NotStarted if it does not run within the creation's deadline."""

    async def ended(self) -> DriveEnd:
        """Park until its drive ends; raises DriverDied."""

    async def cancel(self) -> bool:
        """Tell it to ask its shard now for what is ordered; True says that a cancel is (its receipt, P21)."""

    def kill(self) -> None:
        """End it, best effort."""


class Fleet(Protocol):
    """Makes and finds run actors."""

    async def create(self, run_id: str, expected_epoch: int, reason: ClaimReason, place: Place) -> RunHandle:
        """Make the actor `run:<runId>`, once. Awaits nothing between making it and returning.

        Raises NameTaken, having killed nobody, and NotStarted."""

    async def find(self, run_id: str) -> RunHandle | None:
        """Return the living actor of the run, if there is one."""

    def nodes(self) -> Sequence[Node]:
        """Return the nodes as they were last seen; empty where placing is not ours."""

    async def answers(self, node_id: str) -> bool:
        """Ask that node now; `nodes` knows the answer afterwards."""


@dataclass(slots=True)
class Watched:
    """A run that somebody drives or is about to."""

    expected_epoch: int
    reason: ClaimReason
    handle: RunHandle | None = None
    made: RunHandle | None = None  # not ready yet; not a driver before it is
    replaces: RunHandle | None = None  # killed once the decision to replace it is stored
    lost_node: str | None = None  # where the driver before was: not there again if there is a choice (P17)
    node_id: str | None = None  # where it runs or is being made
    home: str | None = None  # the host that its sandbox is bound to
    home_known: bool = True  # else it has yet to be looked up, and may be any
    waits_for: str = ""  # why it could not be made yet, in words
    task: asyncio.Task[None] | None = None
    runs: asyncio.Event = field(default_factory=asyncio.Event)  # set once there is a handle
    hurry: asyncio.Event = field(default_factory=asyncio.Event)  # a cancel came: no backoff, no queue (P21)


@dataclass(slots=True)
class Tally:
    """What the metrics tell."""

    takeovers: int = 0
    takeover_seconds: float = 0.0
    exhausted: int = 0
    not_started: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def count(self, reason: ClaimReason, seconds: float, *, first: bool) -> None:
        """Count a driver that was made for `reason`, `seconds` after that was decided."""
        self.reasons[reason.value] = self.reasons.get(reason.value, 0) + 1
        if not first:
            self.takeovers += 1
            self.takeover_seconds += seconds


def node_of(head: Head, handle: RunHandle) -> str | None:
    """Return where a driver that was found runs, if it has claimed."""
    named = [claim.claimant for claim in head.claims if claim.claimant.actor_id == handle.actor_id]
    return named[-1].node_id if named else None


def load(watched: Iterable[Watched]) -> Counter[str]:
    """Return how many drivers each node has, those included that are being made."""
    return Counter(one.node_id for one in watched if one.node_id is not None)
