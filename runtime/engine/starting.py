"""Making one driver: choose a place, make the actor there, wait until it runs, or say what is missing.

A start holds one of STARTS_AT_ONCE turns, so that many takeovers at once do not drown a machine (P13); one that takes
long gives its turn back, and a cancel needs none. What cannot be placed is tried again under the decision that is
stored already: no attempt is counted, since no driver was made.

A name that is taken is freed by killing its holder only if the claim history names that very actor for an epoch that
is being replaced (P5). Whoever else holds it drives or is about to: then it is watched instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from runtime.core.record import Head
from runtime.engine.authority import repeat
from runtime.engine.fleet import Fleet, NameTaken, NotStarted, RunHandle, Watched, load
from runtime.engine.placing import Place, place, shortage
from runtime.engine.plugins import pick
from runtime.engine.reasons import TO_END
from runtime.engine.returning import end_keeping
from runtime.ports import Clock, SandboxProvider, ShardPort

log = logging.getLogger("outlast.supervisor")

STARTS_AT_ONCE = 8  # P13: takeovers start at a bounded rate
SLOW_START_S = 3.0  # a start that takes longer lets the next one begin
NAME_RETRY_S = 0.01
NAME_PATIENCE_S = 10.0
LOOK_S = 1.0
SILENT_AFTER = 2


class Starter:
    """Makes drivers for one supervisor."""

    def __init__(
        self,
        fleet: Fleet,
        providers: Mapping[str, SandboxProvider],
        clock: Clock,
        shard_of: Callable[[str], ShardPort],
        watched: Callable[[], Iterable[Watched]],
    ) -> None:
        self._fleet = fleet
        self._providers = providers
        self._clock = clock
        self._shard_of = shard_of
        self._watched = watched
        self._turns = Turns(STARTS_AT_ONCE)

    async def start(self, head: Head, watched: Watched) -> RunHandle:
        """Make the driver for the epoch after `head`'s; return it once it runs.

        Raises NotStarted (to be tried again), NameTaken (by a driver that is to be left alone), DriverDied."""
        where = await self._place(head, watched)
        if where.node_id is None and self._fleet.nodes():
            self._tell(head, watched, shortage(self._fleet.nodes(), load(self._watched()), where))
        async with self._turns.one(watched.hurry) as give_back:
            handle = watched.made = await self._create(head, watched, where)
            await self._begun(handle, where, give_back)
        watched.node_id = handle.node_id or watched.node_id
        watched.waits_for = ""
        return handle

    def _tell(self, head: Head, watched: Watched, what: str) -> None:
        if watched.waits_for != what:
            log.warning("run %s waits: %s", head.run_id, what)
        watched.waits_for = what

    # --- where ---

    async def home(self, head: Head) -> str | None:
        """Return the host that the run's sandbox is bound to: its key names it, or before there is one, the key of the
        thread's newest earlier run, where the workspace is (P18)."""
        return (await self._bound(head))[0]

    async def _bound(self, head: Head) -> tuple[str | None, list[tuple[SandboxProvider, Head]]]:
        """Return that host, and the thread's earlier runs whose sandboxes are kept, which holds the workspace."""
        shard = self._shard_of(head.run_id)
        stored = await repeat(lambda: shard.record(head.run_id))
        spec = None if stored is None else stored[1]
        provider = None if spec is None else pick(self._providers, spec.provider)
        if spec is None or provider is None or not provider.capabilities.one_host:
            return None, []
        if head.sandbox_key is not None:
            return provider.host(head.sandbox_key), []
        runs = await repeat(lambda: shard.list_thread(head.owner, head.thread_id))
        earlier = [one for one, its in runs if one.run_id != head.run_id and its.provider == spec.provider]
        kept = [(provider, one) for one in earlier if one.sandbox_kept_until is not None]
        keys = [one.sandbox_key for one in earlier if one.sandbox_key]
        return provider.host(keys[-1]) if keys else None, kept

    async def _place(self, head: Head, watched: Watched) -> Place:
        """Choose a node, and make sure that it answers now: Ray notices a lost one only after 15 to 65 s."""
        home, kept = await self._bound(head)
        watched.home, watched.home_known = home, True
        for provider, earlier in kept:
            await end_keeping(self._shard_of(earlier.run_id), provider, earlier)
        for _ in range(len(self._fleet.nodes()) + 1):
            counts = load(self._watched())
            cancels = watched.reason in TO_END
            where = place(self._fleet.nodes(), counts, home, watched.lost_node, takes_room=not cancels)
            if where is None:
                raise NotStarted("a node has not told yet which sandboxes it reaches")
            watched.node_id = where.node_id  # counted from now on
            if where.node_id is None or await self._fleet.answers(where.node_id):
                return where
        raise NotStarted("no node answers")

    # --- making ---

    async def _create(self, head: Head, watched: Watched, where: Place) -> RunHandle:
        deadline = self._clock.monotonic() + NAME_PATIENCE_S
        while True:
            try:
                return await self._fleet.create(head.run_id, head.driver_epoch, watched.reason, where)
            except NameTaken as taken:
                if not await self._replaced(head, taken.holder):
                    raise
                taken.holder.kill()
            if self._clock.monotonic() >= deadline:
                raise NotStarted(f"the name of run {head.run_id} stays taken")
            await asyncio.sleep(NAME_RETRY_S)

    async def _begun(self, handle: RunHandle, where: Place, give_back: Callable[[], None]) -> None:
        """Return once it runs. Raises NotStarted at the creation's deadline, or when its node falls silent before."""
        ready = asyncio.ensure_future(handle.ready())
        begun = self._clock.monotonic()
        missed = 0
        try:
            while not (await asyncio.wait((ready,), timeout=LOOK_S))[0]:
                if self._clock.monotonic() - begun >= SLOW_START_S:
                    give_back()
                if where.node_id is not None:
                    missed = 0 if await self._fleet.answers(where.node_id) else missed + 1
                if missed >= SILENT_AFTER:  # once may be a busy machine, and the driver may have claimed already
                    raise NotStarted(f"node {(where.node_id or '')[:8]} fell silent")
            await ready
        except NotStarted:
            handle.kill()
            raise
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)

    async def _replaced(self, head: Head, holder: RunHandle) -> bool:
        """Return whether the claim history names the holder for an epoch that this decision replaces (P5)."""
        stored = await repeat(lambda: self._shard_of(head.run_id).record(head.run_id))
        claims = () if stored is None else stored[0].claims
        return any(claim.claimant.actor_id == holder.actor_id and claim.epoch <= head.driver_epoch for claim in claims)


class Turns:
    """So many may be at it at once; a hurried one does not wait for its turn."""

    def __init__(self, at_once: int) -> None:
        self._free = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def one(self, hurry: asyncio.Event) -> AsyncIterator[Callable[[], None]]:
        """Hold a turn until the context ends, or what is yielded is called."""
        held = await self._taken(hurry)

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        try:
            yield give_back
        finally:
            give_back()

    async def _taken(self, hurry: asyncio.Event) -> bool:
        """Wait for a turn and return True, or for `hurry` and return False."""
        turn = asyncio.ensure_future(self._free.acquire())
        hurried = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait((turn, hurried), return_when=asyncio.FIRST_COMPLETED)
            return turn.done()
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free.release()
            raise
        finally:
            for task in (turn, hurried):
                task.cancel()
