"""A spool of calls as drivers see it, and a driver's serving of it without the drive around."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from unit.engine.stage import RUN, claim
from waiting import until

from runtime.core import chunk
from runtime.core.ops import Claimed
from runtime.engine.appending import Appender, Progress
from runtime.engine.authority import Authority
from runtime.engine.claimed_log import ClaimedLog
from runtime.engine.host_calls import HostCalls, Lent
from runtime.engine.shard import Shard
from runtime.errors import SandboxUnreachable
from runtime.ports import Clock
from runtime.stores.memory import MemoryStore
from runtime.testing.sim_loop import elapse

CALL = "0" * 32


@dataclass
class Spool:
    """A sandbox's calls and answers, as drivers see them. `reachable` False: its host is away."""

    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, list[bytes]] = field(default_factory=dict)  # all that were written: the first one counts
    reachable: bool = True
    breaks: list[Exception] = field(default_factory=list)  # what whoever asks next is told, each once
    asked: list[int] = field(default_factory=list)  # how many calls whoever asked for more had in hand

    def tool_server(self) -> tuple[str, ...]:
        return ()

    async def offer_tools(self, name: str, data: bytes) -> None:
        raise AssertionError(f"nothing is launched here: {name}, {data!r}")

    def put(self, name: str, id: str = CALL, **arguments: Any) -> None:
        self.waiting[id] = {"id": id, "tool": name, "arguments": arguments}

    async def calls(self, known: Collection[str], wait_s: float) -> list[dict[str, Any]]:
        assert wait_s > 1.0
        self.asked.append(len(known))
        if self.breaks:
            raise self.breaks.pop()
        for _ in range(4):  # sooner than a sandbox would
            self._reach()
            found = [call for id, call in self.waiting.items() if id not in known and id not in self.answers]
            if found:
                return found
            await elapse(0.05)
        return []

    async def answer_call(self, call_id: str, data: bytes) -> None:
        self._reach()
        self.answers.setdefault(call_id, []).append(data)

    def _reach(self) -> None:
        if not self.reachable:
            raise SandboxUnreachable("away")

    def said(self, id: str = CALL) -> tuple[str, bool]:
        answer = chunk.decode(self.answers[id][0])
        return answer["content"][0]["text"], answer["isError"]

    async def answered(self, id: str = CALL) -> None:
        await until(lambda: id in self.answers, "the answer")


async def claimed_by(shard: Shard, expected: int) -> Claimed:
    """Claim the run for the driver after epoch `expected`."""
    claimed = await shard.submit(claim(expected, f"driver-{expected}"))
    assert isinstance(claimed, Claimed)
    return claimed


async def serve(
    shard: Shard, clock: Clock, claimed: Claimed, lent: Lent, spool: Spool, *, from_checkpoint: bool = False
) -> None:
    """Serve calls under the claim's epoch, as a drive does, until cancelled. `from_checkpoint`: keys before it are not
    read."""
    log = ClaimedLog(shard, claimed)
    await log.read()
    authority = Authority(shard, claimed.head, clock, 3.0)
    keys = {} if from_checkpoint else log.keys
    appender = Appender(authority, Progress(next_seq=claimed.head.next_seq, keys=keys), log.open_items, 0)
    appending = asyncio.create_task(appender.run())
    try:
        await HostCalls(lent, {}, claimed.head, authority, appender, spool).serve()
    finally:
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)


def events(store: MemoryStore, name: str) -> list[Any]:
    """Return the values of the log's events of a name."""
    found = [chunk.decode_chunk(data) for one in store.read_batches(RUN, 0, 1 << 40) for data in one.chunks()]
    return [event["value"] for event in found if event.get("name") == name]
