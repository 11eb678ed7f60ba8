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
from runtime.core.transcript import Transcript, encode, of_fold
from runtime.engine.clock import Threads
from runtime.errors import OutlastError
from runtime.ports import Store

log = logging.getLogger("outlast.shard")

PAGE_BYTES = 1 << 20  # read and folded in about 20 ms


async def with_transcript(op: Finish, store: Store, threads: Threads) -> Finish:
    """Return the finish with the transcript of the log that it closes. As it is, if it brings no chunk, or if the log
    does not reach to it (it will be refused). Raises StoreError.

    A transcript that cannot be made is no reason not to end the run: its messages are then folded from the log."""
    if op.batch.count == 0:
        return op
    folding = Fold()
    at = 0
    try:
        while at < op.batch.seq:
            after = await threads.read(partial(_feed_page, folding, store, op.run_id, at, op.batch.seq))
            if after == at:
                return op
            at = after
        stored = await threads.read(partial(_close, folding, op.batch))
    except OutlastError:
        raise
    except Exception:
        log.exception("run %s: its log has no transcript", op.run_id)
        return op
    return msgspec.structs.replace(op, transcript=stored)


async def told(page: Callable[[int], Awaitable[list[Batch]]], end: int) -> Transcript:
    """Return the transcript of a log's first `end` chunks, or of those that are still kept; `page(after)` reads it."""
    folding = Fold()
    at = 0
    while at < end:
        batches = [batch for batch in await page(at) if batch.seq < end]
        if not batches:
            break
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
