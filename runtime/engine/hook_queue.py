"""What a shard tells hooks of: heard as it is stored, sent by a task of its own.

Only a list in memory stands between a run and its hooks: `hear` appends to it or counts what does not fit, and never
waits. So a hook that is slow, or a process of hooks that is gone, costs events and no time, and what is heard here is
told at most once. How a run ends is not heard here: that comes from the store (`engine/notices.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

import msgspec

from runtime.core.batch import Batch
from runtime.core.ops import Append, Appended, Attach, Claimed, Detach, Done, Finish, Finished, Op, Outcome
from runtime.core.record import Head, RunSpec, Struct
from runtime.engine.forever import forever
from runtime.hooks import RunFacts

log = logging.getLogger("outlast.hooks")

MOST_EVENTS = 10_000
MOST_BYTES = 32 << 20
GROUP_EVENTS = 256
GROUP_BYTES = 4 << 20
STARTED = 4096  # runs whose start was told; a claim that is repeated is no second one
AFTER_ERROR_S = 1.0


class HookEvent(Struct, frozen=True, kw_only=True):
    """One thing that happened. Of `chunk`: the chunks of one append, and where they are."""

    name: str
    key: str  # of the run over all owners
    run: RunFacts
    generation: int = 0
    batch: Batch | None = None


class _Heard(Struct, frozen=True, kw_only=True):
    name: str
    head: Head
    batch: Batch | None = None

    @property
    def size(self) -> int:
        return len(self.batch.data) if self.batch is not None else 0


class HookQueue:
    """Hears of every answer of one shard; `send` brings events to the hooks and returns which hooks there are."""

    def __init__(
        self,
        record: Callable[[str], Awaitable[tuple[Head, RunSpec] | None]],
        send: Callable[[list[HookEvent]], Awaitable[frozenset[str]]],
    ) -> None:
        self.dropped = 0
        self._record = record
        self._send = send
        self._wanted: frozenset[str] | None = None  # not known yet: all
        self._waiting: deque[_Heard] = deque()
        self._bytes = 0
        self._some = asyncio.Event()
        self._started: OrderedDict[str, None] = OrderedDict()

    def hear(self, op: Op, outcome: Outcome) -> None:
        """Take note of one operation's answer. Never raises, never waits."""
        match op, outcome:
            case _, Claimed(head=head) if len(head.claims) == 1 and head.run_id not in self._started:
                self._started[head.run_id] = None
                if len(self._started) > STARTED:
                    self._started.popitem(last=False)
                self._add(_Heard(name="start", head=head))
            case Attach(), Done(head=head, changed=True):
                self._add(_Heard(name="attach", head=head))
            case Detach(), Done(head=head, changed=True):
                self._add(_Heard(name="detach", head=head))
            case Append(batch=batch), Appended(head=head, repeat=False):
                self._add(_Heard(name="chunk", head=head, batch=batch))
            case Finish(batch=batch), Finished(head=head, repeat=False) if batch.count:
                self._add(_Heard(name="chunk", head=head, batch=batch))

    def _add(self, heard: _Heard) -> None:
        if self._wanted is not None and heard.name not in self._wanted:
            return
        if len(self._waiting) >= MOST_EVENTS or self._bytes + heard.size > MOST_BYTES:
            self._drop(1)
            return
        self._waiting.append(heard)
        self._bytes += heard.size
        self._some.set()

    def _drop(self, count: int) -> None:
        if not self.dropped:
            log.warning("hooks are too slow, or not there: events are dropped from now on, and counted")
        self.dropped += count

    async def run(self) -> None:
        """Send for ever."""
        await forever("hooks", self.turn)

    async def turn(self) -> None:
        """Send what has gathered, or wait for something. A group that nobody confirms is not sent again."""
        if self._wanted is None:
            await self._ask([])
            return
        await self._some.wait()
        group = self._take()
        events = [event for heard in group if heard.name in self._wanted and (event := await self._event(heard))]
        if events:
            await self._ask(events)

    def _take(self) -> list[_Heard]:
        group: list[_Heard] = []
        size = 0
        while self._waiting and len(group) < GROUP_EVENTS and size < GROUP_BYTES:
            group.append(self._waiting.popleft())
            size += group[-1].size
        self._bytes -= size
        if not self._waiting:
            self._some.clear()
        return group

    async def _event(self, heard: _Heard) -> HookEvent | None:
        head = heard.head
        try:
            stored = await self._record(head.run_id)
        except Exception as error:  # noqa: BLE001 - the shard is in trouble, or superseded
            log.debug("run %s: no hook %s: %s", head.run_id, heard.name, error)
            stored = None
        if stored is None:
            self._drop(1)
            return None
        facts = RunFacts.of(head, stored[1])
        batch = None if heard.batch is None else msgspec.structs.replace(heard.batch, ends=b"")
        return HookEvent(name=heard.name, key=head.run_id, run=facts, generation=head.generation, batch=batch)

    async def _ask(self, events: list[HookEvent]) -> None:
        try:
            self._wanted = await self._send(events)
        except Exception as error:  # noqa: BLE001 - no trouble of hooks is one of the shard's
            self._drop(len(events))
            log.debug("hooks do not answer: %r", error)
            await asyncio.sleep(AFTER_ERROR_S)
