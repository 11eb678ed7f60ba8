"""Make a run's transcript: read its log once, page by page, and fold it (P9).

A shard does it when a finish comes, since it has the store at hand, whoever ends the run: its driver, one that has just
taken over, or the supervisor. Memory holds one page and the fold, which is bounded; the work is done on an OS thread,
a page at a time. The log below a finish's own place cannot change any more, so what was read before the transaction is
what it closes, or the finish is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from runtime.core.batch import Batch
from runtime.core.fold import Fold
from runtime.core.ops import Finish
from runtime.core.record import Head
from runtime.core.transcript import Transcript, encode, of_fold
from runtime.engine.clock import Threads
from runtime.errors import OutlastError, StoreRefused
from runtime.ports import Store

log = logging.getLogger("outlast.shard")

PAGE_BYTES = 1 << 20  # read and folded in about 20 ms
MOST_AT_ONCE = 2  # each takes its turns of the one interpreter, beside the loop that answers everybody


class Transcripts:
    """Makes the transcripts of one shard's runs. A finish that is repeated while its log is read waits for the same."""

    def __init__(self, store: Store, threads: Threads) -> None:
        self._store = store
        self._threads = threads
        self._made: dict[str, tuple[Batch, asyncio.Task[bytes | None]]] = {}  # by run, what is under way
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def into(self, op: Finish, head: Head | None) -> Finish:
        """Return the finish with the transcript of the log that it closes. As it is, if by `head` it will be refused
        or is a repeat, or if it brings no chunk. Raises StoreError, OwnershipLost.

        A transcript that cannot be made is no reason not to end the run: its messages are then folded from the log."""
        if head is None or head.closed or not op.batch.count:
            return op
        if (head.driver_epoch, head.next_seq) != (op.batch.epoch, op.batch.seq):
            return op
        under_way = self._made.get(op.run_id)
        if under_way is None or under_way[0] != op.batch:
            under_way = op.batch, asyncio.create_task(self._make(op.batch), name=f"transcript {op.run_id}")
            self._made[op.run_id] = under_way
        stored = await asyncio.shield(under_way[1])
        return op if stored is None else msgspec.structs.replace(op, transcript=stored)

    async def _make(self, last: Batch) -> bytes | None:
        folding = Fold()
        at = 0
        try:
            async with self._turns:
                while at < last.seq:
                    page = partial(_feed_page, folding, self._store, last.run_id, at, last.seq)
                    after = await self._threads.read(page)
                    if after == at:
                        return None
                    at = after
                return await self._threads.read(partial(_close, folding, last))
        except StoreRefused as error:  # a damaged row: it stays so
            log.warning("run %s: its log has no transcript: %s", last.run_id, error)
            return None
        except OutlastError:
            raise
        except Exception:
            log.exception("run %s: its log has no transcript", last.run_id)
            return None
        finally:
            if self._made.get(last.run_id, (None,))[0] is last:
                del self._made[last.run_id]

    async def close(self) -> None:
        """Stop what is under way."""
        tasks = [task for _, task in self._made.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def told(page: Callable[[int], Awaitable[list[Batch]]], begin: int, end: int) -> Transcript | None:
    """Return the transcript of a log from about position `begin` up to `end`; None if it ends before that: it is not
    kept any more, and its beginning alone would look like all of it.

    `page(after)` reads the next batches."""
    folding = Fold()
    if begin:
        folding.begin_late()
    at = begin
    while at < end:
        batches = [batch for batch in await page(at) if batch.seq < end]
        if not batches:
            return None
        await asyncio.to_thread(_feed, folding, batches)
        at = batches[-1].next_seq
    return await asyncio.to_thread(of_fold, folding)


def _feed_page(folding: Fold, store: Store, run_id: str, after: int, end: int) -> int:
    batches = [batch for batch in store.read_batches(run_id, after, PAGE_BYTES) if batch.seq < end]
    _feed(folding, batches)
    return batches[-1].next_seq if batches else after


def _feed(folding: Fold, batches: list[Batch]) -> None:
    for batch in batches:
        folding.feed(batch.chunks())


def _close(folding: Fold, last: Batch) -> bytes:
    folding.feed(last.chunks())
    return encode(of_fold(folding))
