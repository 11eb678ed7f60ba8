"""What comes from outside: posts that are repeated, viewers that come and go, cancels, and effects with a key.

A viewer goes on from the newest offset it was given, or starts again from any older one (I3). It resolves segments and
asks inline for those that are lost, as the gateway does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import TypeVar

from runtime.core.ids import shard_of
from runtime.core.ops import Create, Created, Joined, RequestCancel, RequestHandover
from runtime.core.record import CancelReason
from runtime.engine.authority import repeat
from runtime.errors import LogClosedError, OutlastError, StoreError, StoreUnavailable
from runtime.ports import ReadReply
from runtime.testing.sim_check import Checker
from runtime.testing.sim_fleet import SimFleet
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_net import Net, NoAnswer, Process
from runtime.testing.sim_shards import SimShardClient, SimShards
from runtime.testing.sim_supervisors import SimSupervisors
from runtime.testing.sim_verdict import Emitted, Session

T = TypeVar("T")


class Outside:
    """Everybody outside of one deployment."""

    def __init__(
        self,
        loop: SimLoop,
        net: Net,
        shards: SimShards,
        supervisors: SimSupervisors,
        fleet: SimFleet,
        checker: Checker,
    ) -> None:
        self.sessions: list[Session] = []
        self.emitted: Emitted = {}
        self.leaves_at: dict[str, float] = {}  # runs whose viewers leave for good, and when
        self.viewers: list[Process] = []
        self._watching: set[str] = set()
        self._loop = loop
        self._net = net
        self._shards = shards
        self._supervisors = supervisors
        self._fleet = fleet
        self._checker = checker

    @property
    def watching(self) -> int:
        """Return how many viewers have not seen the end of their log, and want to."""
        return len(self._watching)

    def _shard(self, run_id: str) -> SimShardClient:
        return SimShardClient(self._shards, shard_of(run_id, self._shards.count))

    # --- posts and intents ---

    async def post(self, create: Create) -> bool:
        """Start a run, or join it; tell the supervisor as the gateway does. False: refused."""
        outcome = await repeat(lambda: self._shard(create.run_id).submit(create))
        match outcome:
            case Created(head=head, cancelled_previous=previous, resumed=resumed):
                if previous is not None:
                    await self._supervisors.tell(lambda supervisor: supervisor.cancel(previous))
                if resumed is not None:
                    await self._asking(lambda: self._shard(resumed.run_id).record(resumed.run_id))
                if head.needs_driver:
                    await self._supervisors.tell(lambda supervisor: supervisor.start(head.run_id))
            case Joined(head=head):
                if head.needs_driver:
                    await self._supervisors.tell(lambda supervisor: supervisor.ensure(head.run_id))
            case _:
                self._checker.write(f"post of {create.run_id} refused: {type(outcome).__name__}")
                return False
        return True

    async def cancel(self, run_id: str) -> None:
        """Press Stop."""
        op = RequestCancel(run_id=run_id, reason=CancelReason.USER)
        await repeat(lambda: self._shard(run_id).submit(op))
        await self._supervisors.tell(lambda supervisor: supervisor.cancel(run_id))

    async def hand_over(self, run_id: str) -> None:
        """Ask the present driver to hand over."""
        await repeat(lambda: self._shard(run_id).submit(RequestHandover(run_id=run_id)))

    async def take_over(self, run_id: str) -> None:
        """Have a person replace the driver."""
        await self._supervisors.tell(lambda supervisor: supervisor.takeover(run_id))

    async def emit(self, run_id: str, key: str) -> None:
        """Cause an effect twice, whoever drives; both must be told the same place (P8)."""
        for _ in range(2):
            handle = await self._fleet.find(run_id)
            if handle is None:
                continue
            try:
                position = await handle.emit("effect", key, key)
            except (NoAnswer, LogClosedError, OutlastError):
                continue
            self.emitted.setdefault((run_id, key), set()).add(position)

    # --- viewers ---

    def view(self, run_id: str) -> None:
        """Send somebody who watches the run to its end, or until everybody leaves it for good."""
        leaves_at = self.leaves_at.get(run_id)
        if leaves_at is not None and leaves_at <= self._loop.time():
            return
        process = Process(self._loop, f"viewer {len(self.viewers) + 1}")
        self.viewers.append(process)
        self._watching.add(process.name)
        process.start(self._watch(process.name, run_id))
        if leaves_at is not None:
            self._loop.call_later(leaves_at - self._loop.time(), self._leave, process, context=Context())

    def _leave(self, process: Process) -> None:
        process.kill()
        self._watching.discard(process.name)
        self._checker.left(process.name)

    async def _watch(self, name: str, run_id: str) -> None:
        shard = self._shard(run_id)
        counting = asyncio.create_task(self._count(name, run_id, shard))
        offsets = [0]
        session = Session(name, run_id, 0)
        while not (session.closed or session.gone):
            start = offsets[-1] if self._loop.rng.randrange(3) else self._loop.rng.choice(offsets)
            session = Session(name, run_id, start, generation=session.generation if start else None)
            self.sessions.append(session)
            await self._asking(lambda: self._supervisors.tell(lambda supervisor: supervisor.ensure(run_id)))
            await self._connection(shard, session, offsets)
        counting.cancel()
        self._watching.discard(name)

    def open(self) -> None:
        """Start a replica that has no viewers, and says so: somebody counts, also where nobody watches (P20)."""
        replica = Process(self._loop, "replica")
        replica.start(self._count_nobody(replica.name))

    async def _count_nobody(self, name: str) -> None:
        shards = [SimShardClient(self._shards, shard) for shard in range(self._shards.count)]
        number = 0
        while True:
            number += 1
            for shard in shards:
                await self._asking(partial(shard.set_viewers, name, number, {}))
            await asyncio.sleep(1.0)

    async def _count(self, name: str, run_id: str, shard: SimShardClient) -> None:
        number = 0
        while True:
            number += 1
            try:
                if number == 1:
                    await shard.attach(run_id, name, number)
                else:
                    await shard.set_viewers(name, number, {run_id: 1})
            except StoreError:
                pass
            await asyncio.sleep(1.0)

    async def _connection(self, shard: SimShardClient, session: Session, offsets: list[int]) -> None:
        """Read until the log ends, or until the connection is lost."""
        reads = 1 + int(self._loop.rng.expovariate(1 / 12))
        at = session.start
        generation = session.generation
        inline = False
        while reads and not (session.closed or session.gone):
            reads -= 1
            given_up = self._checker.pruning.told.get(session.run_id)
            try:
                reply = await shard.read(session.run_id, at, 5.0, inline)
            except StoreUnavailable:
                await asyncio.sleep(0.2)
                continue
            except StoreError:
                reads += 1
                await asyncio.sleep(0.2)
                continue
            if not reply.known:
                session.closed = session.run_id not in self._checker.runs  # it was there: it is lost (P10)
                await asyncio.sleep(0.5)
                continue
            if generation is not None and reply.generation != generation:
                self._checker.write(f"{session.viewer}: the offset {at} of {generation} is gone: {reply.generation}")
                offsets[:] = [0]
                return
            generation = session.generation = reply.generation
            if reply.gone:
                session.gone = session.run_id in self._checker.pruning.ever
                if not session.gone:
                    self._checker.breach("retention", f"{session.run_id}: told as gone, and nobody gave it up")
                continue
            if given_up is not None and reply.shard_epoch >= given_up:
                self._checker.breach("retention", f"{session.run_id}: served at {at} after it was given up")
            if reply.next < at:
                name = "P10" if session.run_id in self._checker.loss.runs else "I3"
                self._checker.breach(name, f"{session.run_id}: offset {at}, once given, is beyond the log's end")
                return
            got = self._resolve(shard, reply, at)
            inline = got is None
            if got is not None:
                session.chunks += got
                for position, data in enumerate(got, at + 1):
                    self._checker.loss.given(session.run_id, reply.generation, position, data)
                session.closed = reply.closed
                offsets.extend(range(at + 1, reply.next + 1))
                at = reply.next

    def _resolve(self, shard: SimShardClient, reply: ReadReply, at: int) -> list[bytes] | None:
        """Return the chunks of a reply from `at` on; None if a segment of it is lost."""
        chunks: list[bytes] = []
        for sealed in reply.segments:
            data = shard.segment(sealed.ref)
            if data is None:
                return None
            held = data.split(b"\n")
            if len(held) != sealed.end - sealed.start:
                self._checker.breach("I3", f"a segment of {sealed.end - sealed.start} chunks holds {len(held)}")
            chunks += held[at + len(chunks) - sealed.start :]
        tail = reply.tail.split(b"\n") if reply.tail_count else []
        if at + len(chunks) + len(tail) != reply.next or len(tail) != reply.tail_count:
            self._checker.breach("I3", f"a reply from {at} to {reply.next} holds {len(chunks)} and {len(tail)} chunks")
        return chunks + tail

    async def _asking(self, call: Callable[[], Awaitable[T]]) -> None:
        try:
            await call()
        except OutlastError:
            return
