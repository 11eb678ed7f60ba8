"""Sees to it that every run that needs a driver has one (I7).

Three ways lead to a decision, and each alone is enough:

    told      `start`, `ensure`, `cancel`, `takeover`: somebody knows now
    seen      the parked call on a driver fails: its process is gone (milliseconds)
    found     a shard's `due`: a lease ran out, nobody claimed, a cancel had no effect (seconds)

Every decision about a run is one store write under this supervisor's epoch (`Assign`, P6), with the run's epoch that
it rests on; then a run actor is made that claims exactly the next one (P1). So two supervisors, or two decisions,
lead to at most one claim. Names and `kill` are best effort (P5); nothing here relies on them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from runtime.core.ops import Assign, Assigned, Exhausted, OpenSupervisor, SupervisorOpened, SupervisorStale
from runtime.core.record import Claimant, ClaimReason, Head
from runtime.engine.authority import repeat
from runtime.engine.ending import end_run
from runtime.engine.finishing import aborted, failed
from runtime.engine.fleet import DriverDied, Fleet, NameTaken, NotStarted, RunHandle, Tally, Watched, node_of
from runtime.engine.forever import forever
from runtime.engine.moving import Mover
from runtime.engine.reasons import TO_END, end_reason, true_reason, why_again, why_late
from runtime.engine.starting import Starter
from runtime.errors import OutlastError, RunEnded, RunNotFound
from runtime.ports import Clock, Due, SandboxProvider, ShardPort
from runtime.settings import Settings

log = logging.getLogger("outlast.supervisor")

DUE_WAIT_S = 2.0
PLACES_LOOK_S = 0.5
RECEIPT_S = 1.0  # P21: a driver that does not confirm a cancel within this is replaced
BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 10.0


class Supervisor:
    """Implements the deciding half of `ports.SupervisorPort`."""

    def __init__(
        self,
        shards: Mapping[int, ShardPort],
        fleet: Fleet,
        providers: Mapping[str, SandboxProvider],
        claimant: Claimant,
        *,
        settings: Settings,
        clock: Clock,
        shard_of: Callable[[str], ShardPort],
    ) -> None:
        self.epoch = 0
        self.tally = Tally()
        self.stale = asyncio.Event()  # set once a newer supervisor decides
        self.knows_all = asyncio.Event()  # set once every unfinished run is watched, as far as it needs a driver
        self.leaving = False  # no driver is made any more: `serve` ends
        self._shards = shards
        self._fleet = fleet
        self._providers = providers
        self._claimant = claimant
        self._settings = settings
        self._clock = clock
        self._shard = shard_of
        self._watched: dict[str, Watched] = {}
        self._between: dict[str, Watched] = {}  # their drive has ended, and what comes next is not decided yet
        self._starter = Starter(fleet, providers, clock, shard_of, self._watched.values)
        self._mover = Mover(fleet, self._watched, shard_of, self._starter.home, self._replace)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._decisions = 0

    # --- life ---

    async def open(self) -> None:
        """Take the supervisor's epoch (P6), then look after every unfinished run of the store."""
        first = self._shards[min(self._shards)]
        opened = await repeat(lambda: first.submit(OpenSupervisor(claimant=self._claimant.claimant)))
        assert isinstance(opened, SupervisorOpened)
        self.epoch = opened.epoch
        self._keep(asyncio.create_task(self._know_all()))
        for shard in self._shards.values():
            self._keep(asyncio.create_task(self._watch_shard(shard)))
        self._keep(asyncio.create_task(forever("the places of drivers", self._watch_places)))

    async def close(self) -> None:
        """Stop deciding. Drivers go on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _know_all(self) -> None:
        await asyncio.gather(*(self._adopt_all(shard) for shard in self._shards.values()))
        self.knows_all.set()

    async def _adopt_all(self, shard: ShardPort) -> None:
        """Watch the drivers that live, replace those that do not: after a restart of us, or of everything."""
        heads = [head for head in await repeat(shard.unfinished) if head.needs_driver]
        # All at once: one that hangs holds up no other.
        looks = [asyncio.create_task(self._look_after(head.run_id, ClaimReason.RESTART)) for head in heads]
        for look in looks:
            self._keep(look)
        await asyncio.gather(*looks, return_exceptions=True)

    async def _watch_shard(self, shard: ShardPort) -> None:
        while not self.stale.is_set():
            try:
                for due in await shard.due(DUE_WAIT_S):
                    self._see(due)
            except OutlastError as error:
                log.debug("a shard does not answer: %s", error)
                await asyncio.sleep(0.2)
            except Exception:
                log.exception("a shard's answer could not be dealt with")
                await asyncio.sleep(0.2)

    async def _watch_places(self) -> None:
        if not self.stale.is_set():
            await self._mover.turn()
        await asyncio.sleep(PLACES_LOOK_S)

    # --- told ---

    async def start(self, run_id: str) -> None:
        """Give a new or un-queued run its driver."""
        head = await self._head(run_id)
        if head is not None and head.needs_driver and run_id not in self._watched:
            self._replace(head, ClaimReason.START if not head.driver_epoch else ClaimReason.RESTART)

    async def ensure(self, run_id: str) -> None:
        """A viewer came: someone must drive (I7)."""
        await self._look_after(run_id, ClaimReason.ATTACH)

    async def cancel(self, run_id: str) -> None:
        """A cancel is recorded: see that it happens (P21)."""
        head = await self._head(run_id)
        if head is None or head.status.terminal:
            return
        watched = self._watched.get(run_id)
        if watched is not None and watched.handle is None and (not watched.waits_for or watched.reason in TO_END):
            watched.hurry.set()  # it is being made, and will read the cancel in its claim's answer
            return
        if watched is not None and watched.handle is not None:
            if await self._receipt(watched.handle) or self._watched.get(run_id) is not watched:
                return  # or somebody else has waited for the receipt too, and has replaced it by now
            head = await self._head(run_id) or head
        if head.needs_driver:
            self._replace(head, end_reason(head))
        else:
            await self._end(head, end_reason(head))

    async def takeover(self, run_id: str) -> int:
        """Replace the driver; return the epoch replaced. Raises RunNotFound, RunEnded."""
        head = await self._head(run_id)
        if head is None:
            raise RunNotFound(run_id)
        if not head.needs_driver:
            raise RunEnded(run_id, head.status.value)
        self._replace(head, ClaimReason.OPERATOR)
        return head.driver_epoch

    # --- found ---

    def _see(self, due: Due) -> None:
        head = due.head
        watched = self._watched.get(head.run_id)
        match due.why:
            case "cancel":
                self._keep(asyncio.create_task(self.cancel(head.run_id)))
            case "unqueued":
                self._keep(asyncio.create_task(self.start(head.run_id)))
            case "lease_expired" | "never_claimed":
                if watched is not None and watched.handle is None:
                    return  # a successor is being made; its own deadline bounds that
                # Before we know all that there was when we came, it may have been lost with the supervisor before us.
                lost = ClaimReason.LEASE_EXPIRED if self.knows_all.is_set() else ClaimReason.RESTART
                self._replace(head, why_late(head, watched, lost) if head.driver_epoch else ClaimReason.START)

    # --- deciding ---

    async def _look_after(self, run_id: str, reason: ClaimReason, but_not: RunHandle | None = None) -> None:
        """See that somebody drives: whoever lives is watched, `but_not` excepted; else a driver is made."""
        head = None if run_id in self._watched else await self._head(run_id)
        if head is None or not head.needs_driver or run_id in self._watched:
            return
        handle = await self._fleet.find(run_id)
        home = await self._starter.home(head) if handle is not None else None
        if run_id in self._watched:
            return
        if handle is None or (but_not is not None and handle.actor_id == but_not.actor_id):
            self._replace(head, reason if head.driver_epoch else ClaimReason.START)
        else:
            found = Watched(head.driver_epoch, reason, handle, node_id=node_of(head, handle), home=home)
            self._watch(run_id, found)

    def _replace(self, head: Head, reason: ClaimReason) -> None:
        """Make a driver for the next epoch after `head`'s, instead of whoever is watched."""
        if self.stale.is_set() or self.leaving:
            return
        watched = Watched(head.driver_epoch, true_reason(head, reason), home_known=False)
        old = self._watched.get(head.run_id)
        watched.lost_node = head.claims[-1].claimant.node_id if head.claims else None
        if reason in TO_END:
            watched.hurry.set()  # a person waits (P21)
        if old is not None:
            watched.replaces = old.handle or old.made or old.replaces
            if old.task is not None:
                old.task.cancel()
        self._watched[head.run_id] = watched
        watched.task = asyncio.create_task(self._make(head, watched))
        self._keep(watched.task)

    async def _make(self, head: Head, watched: Watched) -> None:
        """Assign, create, watch: one driver's life as we see it. Nobody is killed before the decision is stored."""
        begun = self._clock.monotonic()
        try:
            handle = await self._made(head, watched)
        except NameTaken as taken:  # by one that drives, or is about to: if it does not, its lease says so
            if self._watched.get(head.run_id) is watched:
                self._watch(head.run_id, Watched(head.driver_epoch, watched.reason, taken.holder, home=watched.home))
            return
        except DriverDied as error:
            log.warning("run %s: its driver could not be made: %s", head.run_id, error)
            await self._lost(head.run_id, watched)
            return
        except Exception:
            self._let_go(head.run_id, watched)  # the lease of the run will bring it back (I7)
            raise
        if handle is None:
            self._let_go(head.run_id, watched)
            return
        watched.handle = handle
        watched.runs.set()
        self.tally.count(watched.reason, self._clock.monotonic() - begun, first=not head.driver_epoch)
        await self._attend(head.run_id, watched)

    async def _made(self, head: Head, watched: Watched) -> RunHandle | None:
        """Return the driver once it runs; None if it was not ours to make.

        What cannot be started is tried again, as long as the decision stands: asking for it again says so."""
        self._decisions += 1
        assignment = f"{self.epoch}.{self._decisions}"
        delay_s = BACKOFF_FIRST_S
        while not self.leaving and (assigned := await self._assign(head, assignment)) is not None:
            if watched.replaces is not None:
                watched.replaces.kill()
                watched.replaces = None
            if assigned.attempt > 1 and delay_s == BACKOFF_FIRST_S:
                await _first(watched.hurry, min(BACKOFF_FIRST_S * 2 ** (assigned.attempt - 2), BACKOFF_MOST_S))
            try:
                return await self._starter.start(head, watched)
            except NotStarted as error:
                self.tally.not_started += 1
                watched.made, watched.node_id = None, None
                watched.waits_for = watched.waits_for or str(error)
                log.warning("run %s: its driver was not started and is tried again: %s", head.run_id, error)
            await (asyncio.sleep(delay_s) if watched.hurry.is_set() else _first(watched.hurry, delay_s))
            delay_s = min(delay_s * 2, BACKOFF_MOST_S)
        return None

    async def _assign(self, head: Head, assignment: str) -> Assigned | None:
        op = Assign(
            run_id=head.run_id,
            expected_epoch=head.driver_epoch,
            supervisor_epoch=self.epoch,
            max_attempts=self._settings.takeover_attempts,
            assignment=assignment,
        )
        outcome = await repeat(lambda: self._shard(head.run_id).submit(op))
        match outcome:
            case Assigned():
                return outcome
            case Exhausted(head=newest):
                self.tally.exhausted += 1
                attempts = self._settings.takeover_attempts
                message = f"{attempts} drivers in a row ended without progress. See the claims of the run."
                await self._end(newest, ClaimReason.DRIVER_LOST, code="takeover_exhausted", message=message)
            case SupervisorStale():
                self.stale.set()
            case _:
                log.debug("run %s: not assigned: %s", head.run_id, outcome)
        return None

    async def _end(self, head: Head, reason: ClaimReason, code: str = "", message: str = "") -> None:
        ending = failed(code, message) if code else aborted(head.cancel_reason)
        try:
            finished = await end_run(
                self._shard(head.run_id),
                self._providers,
                self._claimant,
                head,
                reason,
                ending,
                clock=self._clock,
                lease_ttl_s=self._settings.lease_ttl_s,
            )
        except OutlastError as error:
            log.info("run %s: not ended by us: %s", head.run_id, error)
            return
        if finished is not None and finished.unqueued is not None:
            await self.start(finished.unqueued.run_id)

    # --- watching ---

    def _watch(self, run_id: str, watched: Watched) -> None:
        self._watched[run_id] = watched
        watched.runs.set()
        watched.task = asyncio.create_task(self._attend(run_id, watched))
        self._keep(watched.task)

    async def _attend(self, run_id: str, watched: Watched) -> None:
        assert watched.handle is not None
        try:
            end = await watched.handle.ended()
        except DriverDied:
            await self._lost(run_id, watched)
            return
        except Exception:
            self._let_go(run_id, watched)
            raise
        self._between[run_id] = watched
        try:
            self._let_go(run_id, watched)
            if end.next_run is not None:
                await self.start(end.next_run)
            reason = ClaimReason.DRAIN if end.kind == "handed_over" else ClaimReason.DRIVER_LOST
            await self._look_after(run_id, reason, but_not=watched.handle)
        finally:
            if self._between.get(run_id) is watched:
                del self._between[run_id]

    async def _lost(self, run_id: str, watched: Watched) -> None:
        if self._watched.get(run_id) is not watched:
            return
        head = await self._head(run_id)
        self._let_go(run_id, watched)
        if head is not None and head.needs_driver and run_id not in self._watched:
            self._replace(head, why_again(head, watched))

    def _let_go(self, run_id: str, watched: Watched) -> None:
        if self._watched.get(run_id) is watched:
            del self._watched[run_id]

    async def _receipt(self, handle: RunHandle) -> bool:
        try:
            async with asyncio.timeout(RECEIPT_S):
                return await handle.cancel()
        except (TimeoutError, DriverDied):
            return False

    # --- small steps ---

    async def _head(self, run_id: str) -> Head | None:
        stored = await repeat(lambda: self._shard(run_id).record(run_id))
        return None if stored is None else stored[0]

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a supervisor task failed", exc_info=error)

    async def claim_of(self, run_id: str) -> Claimant | None:
        """Return who holds the run's newest claim."""
        head = await self._head(run_id)
        return head.claims[-1].claimant if head is not None and head.claims else None

    @property
    def driving(self) -> dict[str, RunHandle]:
        """Return run id -> the driver that runs."""
        return {run: watched.handle for run, watched in self._watched.items() if watched.handle is not None}

    @property
    def watching(self) -> Mapping[str, Watched]:
        """Return what is watched, by run."""
        return self._watched

    def needing(self) -> list[Watched] | None:
        """Return what may need the node that it is on or whose host it is bound to; None before all are known."""
        return [*self._watched.values(), *self._between.values()] if self.knows_all.is_set() else None


async def _first(event: asyncio.Event, seconds: float) -> None:
    """Wait for `event`, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
