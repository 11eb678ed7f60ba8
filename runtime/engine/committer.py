"""Group commit: whatever gathers while one transaction runs is the next one. Chunk path 3/6.

Before: `engine/appending.py` sends a batch. After: `engine/tails.py` hands committed chunks to readers.

An answer is given only when its transaction is durable, refusals included, since a refusal also rests on rows that
must not vanish (I2). A commit that failed may have happened: the same operations are committed again, and their own
checks read back what is stored (P7), so the retry of a success finds itself. What else the lost answer would have told
is read back by `engine/doubt.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from runtime.core.generations import witnessed
from runtime.core.ops import Append, Finish, Op, Outcome
from runtime.engine.clock import Threads
from runtime.errors import OutlastError, ShardSuperseded, StoreError, StoreUnavailable
from runtime.ports import Clock, Store

log = logging.getLogger("outlast.shard")

# A transaction's bounds: longer ones delay the first answer more than they save. A batch is at most a few MB.
MAX_OPS = 256
MAX_BYTES = 8 << 20
# Three tries within about 0.3 s; then the callers are told, and repeat their own calls.
RETRY_DELAYS_S = (0.05, 0.25)

# A commit that took longer has held up renewals too: it is a store outage as far as leases go (P13).
STALL_S = 1.0

Applied = Callable[[Op, Outcome], None]


class Committer:
    """Owns the write path of one shard incarnation.

    `applied` is called in commit order, before the caller is answered, without an await in between: memory and
    answers can never be seen in another order than the store's. `failed` is called for each try that failed,
    `stalled` after one that took longer than STALL_S, and `recovered` after the first success that follows a failure:
    only then is it settled what became of the tries before, since a store lets none of them happen after it.
    `spared` is asked in the moment before a transaction whether an operation is to be answered without it.
    """

    def __init__(
        self,
        store: Store,
        shard: int,
        epoch: int,
        *,
        clock: Clock,
        threads: Threads,
        applied: Applied,
        failed: Callable[[OutlastError], None],
        stalled: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._shard = shard
        self._epoch = epoch
        self._clock = clock
        self._threads = threads
        self._applied = applied
        self._failed = failed
        self._stalled = stalled
        self.recovered: Callable[[], None] = lambda: None
        self.spared: Callable[[Op], Outcome | None] = lambda _op: None
        self._uncertain = False  # a try failed, and none has succeeded since
        self._pending: deque[tuple[Op, asyncio.Future[Outcome]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._latched: OutlastError | None = None
        self._confirmed = clock.monotonic()  # when the store last knew this incarnation as the newest

    async def submit(self, op: Op) -> Outcome:
        """Decide and store `op`; return when durable. Raises StoreError; ShardSuperseded for ever after the first."""
        if self._latched is not None:
            raise self._latched
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._pending.append((op, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name=f"commit log:{self._shard}")
        return await future

    @property
    def unconfirmed_s(self) -> float:
        """Return how long ago the store was last known, or asked, to know this incarnation as the newest."""
        return self._clock.monotonic() - self._confirmed

    async def confirm(self) -> None:
        """Ask the store whether this incarnation is still the newest.

        One that nobody writes through would never be told, and its readers would wait for ever (P11, I7)."""
        if self._latched is None:
            self._confirmed = self._clock.monotonic()
            try:
                await self._commit_once([])
            except ShardSuperseded as error:
                self._latched = error
            except StoreError:
                return  # it is asked again

    async def _drain(self) -> None:
        try:
            while self._pending:
                if group := self._take_group():
                    await self._commit_group(group)
        finally:
            self._task = None

    def _take_group(self) -> list[tuple[Op, asyncio.Future[Outcome]]]:
        group: list[tuple[Op, asyncio.Future[Outcome]]] = []
        size = 0
        while self._pending and len(group) < MAX_OPS and size < MAX_BYTES:
            op, future = self._pending.popleft()
            if (answer := self.spared(op)) is not None:
                if not future.done():
                    future.set_result(answer)
                continue
            group.append((op, future))
            size += len(op.batch.data) if isinstance(op, Append | Finish) else 0
            size += len(op.transcript or b"") if isinstance(op, Finish) else 0
        return group

    async def _commit_group(self, group: list[tuple[Op, asyncio.Future[Outcome]]]) -> None:
        ops = [op for op, _ in group]
        try:
            outcomes = await self._commit(ops)
            await self._raise_if_lost(ops, outcomes)
        except ShardSuperseded as error:
            self._latched = error
            _refuse([*group, *self._pending], error)
            self._pending.clear()
            return
        except OutlastError as error:
            _refuse(group, error)
            return
        for (op, future), outcome in zip(group, outcomes, strict=True):
            self._applied(op, outcome)
            if not future.done():
                future.set_result(outcome)

    async def _raise_if_lost(self, ops: list[Op], outcomes: list[Outcome]) -> None:
        """Raise ShardSuperseded, of everybody, if somebody was told what the store does not know any more (P10)."""
        found = [witnessed(op, outcome) for op, outcome in zip(ops, outcomes, strict=True)]
        ahead = [epoch for epoch in found if epoch is not None]
        if not ahead:
            return
        now_ms, above = self._clock.wall_ms(), max(ahead)
        generation = await self._threads.write(lambda: self._store.raise_generation(now_ms, above))
        log.warning(
            "log:%d: the store is as it was earlier: chunks that clients have seen are lost. Offsets of the logs that "
            "go on are of generation %d from now on, others are answered 410 offset_gone (P10).",
            self._shard,
            generation,
        )
        error = ShardSuperseded(self._shard, self._epoch, generation)
        self._failed(error)
        raise error

    async def _commit(self, ops: list[Op]) -> list[Outcome]:
        for delay_s in RETRY_DELAYS_S:
            try:
                return await self._commit_once(ops)
            except StoreUnavailable:
                await asyncio.sleep(delay_s)
        return await self._commit_once(ops)

    async def _commit_once(self, ops: list[Op]) -> list[Outcome]:
        now_ms = self._clock.wall_ms()
        sent = self._clock.monotonic()
        try:
            outcomes = await self._threads.write(lambda: self._store.commit(self._shard, self._epoch, ops, now_ms))
        except OutlastError as error:
            self._uncertain = True
            self._failed(error)
            raise
        except Exception as error:
            self._uncertain = True
            unknown = StoreUnavailable(f"The store failed: {error!r}")
            self._failed(unknown)
            raise unknown from error
        self._confirmed = max(self._confirmed, sent)
        if self._uncertain:
            self._uncertain = False
            self.recovered()
        if self._clock.monotonic() - sent > STALL_S:
            self._stalled()
        return outcomes


def _refuse(group: list[tuple[Op, asyncio.Future[Outcome]]], error: OutlastError) -> None:
    for _, future in group:
        if not future.done():
            future.set_exception(error)
