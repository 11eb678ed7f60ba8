"""Which hosts each node reaches: asked of the node itself, and again until it has told all.

A node may be up before its Docker engine is. What one provider could not say is asked again, for as long as the node
lives and while we know less than all; what was told once stays true.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

AGAIN_S = 5.0  # a node that did not answer
MORE_S = 45.0  # one that answered, and could not tell all
WITHIN_S = 30.0  # a node that has not told by then is taken to reach nothing that is bound to a host


class Reached(NamedTuple):
    """What a node told. `whole`: every provider there could say it."""

    hosts: frozenset[str]
    whole: bool


@dataclass(slots=True)
class _Asked:
    since: float
    told: Reached | None = None
    next: float = 0.0
    asking: asyncio.Task[None] | None = None


class Reach:
    """What every node told. Use it on one event loop."""

    def __init__(
        self, ask: Callable[[str], Awaitable[Reached | None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._nodes: dict[str, _Asked] = {}

    def tell(self, node_id: str, reached: Reached) -> None:
        """Take note of what is known without asking."""
        now = self._clock()
        self._nodes[node_id] = _Asked(now, reached, now + MORE_S)

    def of(self, node_id: str) -> frozenset[str] | None:
        """Return the hosts that a node reaches; None if it has not told, and may yet."""
        asked = self._nodes.get(node_id)
        if asked is None or asked.told is not None:
            return None if asked is None or asked.told is None else asked.told.hosts
        return frozenset() if self._clock() - asked.since > WITHIN_S else None

    def seen(self, node_id: str, *, answers: bool) -> None:
        """A node is there; ask it, if it answers and there is more to know."""
        asked = self._nodes.setdefault(node_id, _Asked(self._clock()))
        whole = asked.told is not None and asked.told.whole
        if answers and not whole and asked.asking is None and self._clock() >= asked.next:
            asked.asking = asyncio.create_task(self._hear(node_id, asked))

    def forget(self, node_id: str) -> None:
        """The node is gone."""
        self._nodes.pop(node_id, None)

    async def _hear(self, node_id: str, asked: _Asked) -> None:
        try:
            told = await self._ask(node_id)
            if told is not None:
                before = frozenset[str]() if asked.told is None else asked.told.hosts
                asked.told = Reached(before | told.hosts, told.whole)
        finally:
            asked.next = self._clock() + (AGAIN_S if asked.told is None else MORE_S)
            asked.asking = None
