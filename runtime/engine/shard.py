"""One log shard: the serialised owner of the record, claim and log of each of its runs.

It decides nothing itself. Every change goes through `Committer` to the store's transaction and the machine; what this
class adds is memory around it: tails that readers are served from, leases, viewers, and the list of runs that need
the supervisor. All of it can be lost at any moment: a new incarnation (P11) starts empty and is right.

Everything here runs on one event loop; no method reads shared state, awaits, and then acts on what it read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from runtime.core.batch import Batch
from runtime.core.ops import (
    Append,
    Appended,
    Assigned,
    Attach,
    Claimed,
    Create,
    Created,
    Done,
    Exhausted,
    Finish,
    Finished,
    Joined,
    Op,
    Outcome,
    RequestCancel,
    UnknownRun,
)
from runtime.core.record import CancelReason, Head, OnDisconnect, Refused, RunSpec
from runtime.core.refusing import to_error
from runtime.engine.chores import Chores
from runtime.engine.clock import Threads
from runtime.engine.cold import Cold
from runtime.engine.committer import Committer
from runtime.engine.doubt import Doubt
from runtime.engine.leases import Leases
from runtime.engine.neighbours import Neighbours
from runtime.engine.questions import Questions
from runtime.engine.story import RENEWAL, Story
from runtime.engine.tails import NoSegments, Segments, Tail
from runtime.engine.transcribing import Transcripts
from runtime.engine.viewers import Viewers
from runtime.engine.watchlist import Watchlist
from runtime.errors import OutlastError, ShardSuperseded, StoreError
from runtime.ports import Clock, Due, Pulse, ReadReply, Store
from runtime.settings import Settings

log = logging.getLogger("outlast.shard")

MAX_PARK_S = 25.0  # P11: no read parks longer
CONFIRM_S = 2.0  # how long a shard goes on without hearing from the store that it is the newest
MAX_IDLE_TAILS = 256  # of closed logs that nobody waits on, each with up to a segment of bytes; more are dropped


class Shard(Questions):
    """Implements `ports.ShardPort` in this process. Make it with `open`, end it with `close`."""

    def __init__(
        self,
        store: Store,
        shard: int,
        epoch: int,
        *,
        settings: Settings,
        clock: Clock,
        threads: Threads,
        segments: Segments | None = None,
    ) -> None:
        super().__init__(store, shard, threads)
        self.epoch = epoch
        self._settings = settings
        self._clock = clock
        self._cold = Cold(store, threads, segments or NoSegments())
        self._transcripts = Transcripts(store, threads)
        self._tails: dict[str, Tail] = {}
        self._leases = Leases(clock, settings.lease_ttl_s, settings.hang_s, settings.start_ttl_s)
        self._viewers = Viewers(clock)
        self._watchlist = Watchlist(clock, self._leases, self._viewers)
        self._doubt = Doubt(self._reread)
        self._committer = Committer(
            store,
            shard,
            epoch,
            clock=clock,
            threads=threads,
            applied=self._applied,
            failed=self._failed,
            stalled=self._leases.refresh_all,
        )
        self._committer.recovered = self._doubt.arise
        self._committer.spared = self._watchlist.spares
        self._neighbours = Neighbours(store, shard, settings.shards, clock=clock, threads=threads)
        self._superseded: OutlastError | None = None
        self._chores = Chores(f"log:{shard}")
        self.story = Story(clock)
        self._counts = {"appends": 0, "reads": 0, "segment_reads": 0, "chunks": 0}

    @classmethod
    async def open(
        cls,
        store: Store,
        shard: int,
        opener: str,
        *,
        settings: Settings,
        clock: Clock,
        threads: Threads,
        segments: Segments | None = None,
    ) -> Shard:
        """Take the shard in the store (P11) and give every unfinished run a fresh lease (P13)."""
        epoch = await threads.write(lambda: store.open_shard(shard, opener))
        self = cls(store, shard, epoch, settings=settings, clock=clock, threads=threads, segments=segments)
        for head in await threads.read(lambda: store.list_unfinished(shard)):
            self._tail(head.run_id).adopt(head)
            self._watchlist.adopt(head)
        self._chores.spawn(self._sweep(), "sweep")
        return self

    async def close(self) -> None:
        """Stop the sweep and release every reader; the store is the caller's."""
        await asyncio.gather(self._chores.close(), self._doubt.close(), self._transcripts.close())
        for tail in self._tails.values():
            tail.wake()

    # --- writing ---

    async def submit(self, op: Op) -> Outcome:
        """Decide and store one operation; answered when durable. Raises StoreError, ShardSuperseded."""
        if isinstance(op, Finish):
            op = await self._transcripts.into(op, (await self._known(op.run_id)).head)
        outcome = await self._committer.submit(op)
        if isinstance(outcome, Claimed):
            outcome = await self._cold.with_first_page(outcome)
        return outcome

    async def pulse(self, run_id: str, epoch: int, tick: int) -> Pulse:
        """Renew the lease of `epoch` (P13) and tell the driver what it must know."""
        head = (await self._known(run_id)).head
        if head is None:
            raise to_error(UnknownRun(run_id=run_id))
        if head.driver_epoch != epoch:
            self.story.refuse(run_id, epoch, head.driver_epoch, RENEWAL)
            return Pulse(superseded_by=head.driver_epoch)
        self._leases.renew(run_id, epoch, tick)
        return Pulse.of(head, epoch)

    def _applied(self, op: Op, outcome: Outcome) -> None:
        """Bring memory up to what the store now says; called in commit order, never awaiting."""
        self.story.hear(op, outcome)
        match outcome:
            case Appended(seq=seq, head=head, repeat=repeat) if isinstance(op, Append):
                self._counts["appends"] += 1
                self._counts["chunks"] += 0 if repeat else op.batch.count
                if seq == op.batch.seq:  # a repeated key may be answered with another place
                    self._extend(op.batch, head)
                self._leases.renew(head.run_id, head.driver_epoch, None)
            case Finished(head=head, unqueued=unqueued):
                if isinstance(op, Finish) and op.batch.count:
                    self._extend(op.batch, head)
                self._adopt(head)
                if unqueued is not None and self._neighbours.owns(unqueued.run_id):
                    self._adopt(unqueued)
            case Created(head=head, cancelled_previous=previous, resumed=resumed):
                if isinstance(op, Create):
                    self._tail(head.run_id).spec = op.spec
                self._adopt(head)
                if resumed is not None and self._neighbours.owns(resumed.run_id):
                    self._adopt(resumed)
                if previous is not None:
                    self._doubt.arise()  # the answer has the other run's name only
            case Claimed(head=head, spec=spec):
                self._tail(head.run_id).spec = spec
                self._adopt(head)
            case Joined(head=head) | Done(head=head) | Assigned(head=head) | Exhausted(head=head):
                self._adopt(head)

    def _adopt(self, head: Head) -> None:
        tail = self._tail(head.run_id)
        tail.adopt(head)
        assert tail.head is not None
        self._watchlist.adopt(tail.head)  # the newest that is known: what was read may be older than what was written

    def _extend(self, batch: Batch, head: Head) -> None:
        tail = self._tail(head.run_id)
        if head.generation >= tail.generation:
            tail.add(batch)
        tail.adopt(head)
        if head.cancel_requested:
            self._watchlist.adopt(head)  # a neighbour's transaction may have cancelled it
        if tail.to_seal() is not None:
            self._chores.spawn(self._cold.seal_tail(tail), f"seal {head.run_id}")

    def _failed(self, error: OutlastError) -> None:
        self._leases.refresh_all()
        log.warning("log:%d could not commit: %s", self._shard, error)
        if isinstance(error, ShardSuperseded):
            self._superseded = error
            self._watchlist.fail(error)
            for tail in self._tails.values():
                tail.fail(error)
        else:
            self._watchlist.detach_again()
            self._doubt.arise()

    async def _reread(self) -> None:
        """Bring memory up to the store: every run that is not terminal there or was not terminal here (P7)."""
        heads = await self._threads.read(lambda: self._store.list_unfinished(self._shard))
        for head in heads:
            self._adopt(head)
        for run_id in self._watchlist.others({head.run_id for head in heads}):
            stored = await self._threads.read(lambda run_id=run_id: self._store.read_run(run_id))  # type: ignore[misc]
            if stored is not None:
                self._adopt(stored[0])

    # --- reading ---

    async def read(self, run_id: str, after: int, wait_s: float, inline: bool = False) -> ReadReply:
        """Return what lies past `after`, parking up to `wait_s` if nothing does. `next < after`: no such place."""
        self._counts["reads"] += 1
        tail = await self._known(run_id)
        if tail.head is not None and after > tail.head.next_seq:
            tail = await self._look_up(run_id, tail)  # a reader may have it from the store, or from a later incarnation
        head = tail.head
        if head is None or head.log_gone:
            return tail.nothing(self.epoch, after)
        if after == head.next_seq and not head.closed and wait_s > 0:
            await tail.wait(min(wait_s, MAX_PARK_S))
        if inline and tail.head is not None and after < tail.head.next_seq:
            tail.drop_sealed(after)
            return await self._read_cold(tail, after, seal=False)
        reply = tail.reply(self.epoch, after)
        if reply is None:
            return await self._read_cold(tail, after, seal=True)
        self._counts["segment_reads"] += len(reply.segments)
        return reply

    async def _read_cold(self, tail: Tail, after: int, *, seal: bool) -> ReadReply:
        generation = tail.generation
        batches = await self._cold.read(tail.run_id, after)
        if tail.generation != generation:
            raise StoreError(f"The log of run {tail.run_id!r} has become another one; read again.")  # P10
        if not batches:
            raise StoreError(f"The store has no chunk {after} of run {tail.run_id!r} although its record says so.")
        if seal and self._cold.seals:
            self._chores.spawn(self._cold.seal(tail, batches, generation), f"seal {tail.run_id}")
        return tail.inline_reply(self.epoch, after, batches)

    # --- memory ---

    def _tail(self, run_id: str) -> Tail:
        tail = self._tails.get(run_id)
        if tail is None:
            self._evict()
            tail = self._tails[run_id] = Tail(run_id)
        tail.used = self._clock.monotonic()
        return tail

    def _evict(self) -> None:
        if len(self._tails) - self._watchlist.unfinished < 2 * MAX_IDLE_TAILS:
            return
        idle = [tail for tail in self._tails.values() if not tail.watched and (tail.head is None or tail.head.closed)]
        idle.sort(key=lambda tail: tail.used)
        for tail in idle[: len(idle) - MAX_IDLE_TAILS]:
            del self._tails[tail.run_id]

    async def _known(self, run_id: str) -> Tail:
        """Return the run's tail with its head and spec; the head is None for an unknown run.

        Raises ShardSuperseded for ever after the first."""
        await self._doubt.settled()
        if self._superseded is not None:
            raise self._superseded
        known = self._tails.get(run_id)
        if known is not None and known.head is not None and known.spec is not None:
            known.used = self._clock.monotonic()
            return known
        return await self._look_up(run_id, known or Tail(run_id))

    async def _look_up(self, run_id: str, known: Tail) -> Tail:
        """Return the run's tail as new as the store; `known` as it is if there is no such run."""
        stored = await self._threads.read(lambda: self._store.read_run(run_id))
        if stored is None:
            return known
        tail = self._tail(run_id)
        tail.spec = stored[1]
        self._adopt(stored[0])
        return tail

    # --- viewers ---

    async def attach(self, run_id: str, viewer: str, number: int) -> bool:
        """Count a viewer and clear `detachedSince` (P20); False for an unknown run."""
        head = (await self._known(run_id)).head
        if head is None:
            return False
        self._viewers.add(viewer, number, run_id)
        if head.detached_since is not None and not head.status.terminal:
            await self.submit(Attach(run_id=run_id))
        return True

    async def set_viewers(self, viewer: str, number: int, counts: Mapping[str, int]) -> None:
        """Take a replica's whole set; a set that names a run clears its `detachedSince` (P20). A sender that we do not
        refuse once we are superseded would never tell our successor."""
        if self._superseded is not None:
            raise self._superseded
        if not self._viewers.replace(viewer, number, counts):
            return
        for run_id in counts:
            tail = self._tails.get(run_id)
            head = tail.head if tail is not None else None
            if head is not None and head.detached_since is not None and not head.status.terminal:
                await self.submit(Attach(run_id=run_id))

    # --- what the supervisor asks ---

    async def due(self, wait_s: float) -> list[Due]:
        """Return the runs that need the supervisor now; with none, park up to `wait_s`."""
        return await self._watchlist.due(min(wait_s, MAX_PARK_S))

    async def _sweep(self) -> None:
        """Look at leases and viewers a few times per TTL, and at our own epoch, for as long as we are the newest."""
        period_s = min(0.25, self._settings.lease_ttl_s / 4)
        while self._superseded is None:
            await asyncio.sleep(period_s)
            if self._committer.unconfirmed_s >= CONFIRM_S:
                self._chores.spawn(self._committer.confirm(), "confirm")
            if self._doubt.open:
                self._leases.refresh_all()  # nobody can renew while the store is not answering (P13)
            if self._neighbours.look_due():
                self._chores.spawn(self._look_at_neighbours(), "look")
            self._watchlist.sweep(late_after_s=period_s + self._settings.lease_ttl_s / 2)
            for op in self._watchlist.detached():
                self._chores.spawn(self._quietly(op), "detach")
            for head in self._watchlist.unwatched(self._settings.disconnect_grace_s):
                self._chores.spawn(self._cancel_unwatched(head), "disconnect")

    async def _look_at_neighbours(self) -> None:
        """Learn what other shards' transactions changed of our runs (P12)."""
        known = {run_id: tail.version for run_id in self._watchlist.others(()) if (tail := self._tails.get(run_id))}
        for head in await self._neighbours.changed(known):
            self._adopt(head)

    async def _cancel_unwatched(self, head: Head) -> None:
        """Act on `onDisconnect: cancel` once nobody has watched for the grace (I6, P20)."""
        try:
            spec = (await self._known(head.run_id)).spec
        except OutlastError as error:
            log.debug("log:%d: %s", self._shard, error)
            return
        if spec is None or spec.on_disconnect is not OnDisconnect.CANCEL:
            self._watchlist.never_cancels(head.run_id)
            return
        await self._quietly(
            RequestCancel(
                run_id=head.run_id, reason=CancelReason.DISCONNECT, only_if_detached_since=head.detached_since
            )
        )

    async def _quietly(self, op: Op) -> None:
        try:
            await self.submit(op)
        except OutlastError as error:
            log.debug("log:%d: %s", self._shard, error)

    # --- plain questions ---

    async def record(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """Return the record as stored."""
        tail = await self._known(run_id)
        if self._neighbours.may_have_moved(tail.head):
            tail = await self._look_up(run_id, tail)
        return None if tail.head is None or tail.spec is None else (tail.head, tail.spec)

    async def batches(self, run_id: str, after: int) -> list[Batch]:
        """Return the next stored batches past `after`, a page of them."""
        return await self._cold.page(run_id, after)

    async def refusals(self, run_id: str) -> list[Refused]:
        """Return what was refused to superseded drivers of the run since this incarnation opened."""
        return self.story.refusals(run_id)

    async def stats(self) -> dict[str, Any]:
        """Return counters and facts for `/metrics`, `/readyz` and `doctor`."""
        store = await self._threads.read(self._store.check)
        unfinished = self._watchlist.unfinished
        return {
            **self._counts,
            **self.story.stats(),
            "epoch": self.epoch,
            "runs": unfinished,
            "viewers": self._viewers.total(),
            "store": dict(store),
        }
