"""The stretches of a log that memory does not hold: read from the store, and sealed into segments (P14).

Only committed chunks are ever sealed. A segment that cannot be kept costs nothing but time: the store has its bytes.
"""

from __future__ import annotations

import logging
from typing import Any

from runtime.core.batch import Batch
from runtime.core.ops import Claimed
from runtime.engine.clock import Threads
from runtime.engine.tails import NoSegments, Segments, Tail
from runtime.ports import Sealed, Store

log = logging.getLogger("outlast.shard")

READ_BYTES = 1 << 20  # of one reply from the store
PAGE_BYTES = 2 << 20  # of a claimed log: 20 ms to read and send, also if each chunk is a batch of its own


class Cold:
    """One shard's way to stored stretches. `seals` is False if there is nowhere to keep segments."""

    def __init__(self, store: Store, threads: Threads, segments: Segments) -> None:
        self.seals = not isinstance(segments, NoSegments)
        self._store = store
        self._threads = threads
        self._segments = segments

    async def read(self, run_id: str, after: int) -> list[Batch]:
        """Return the next stored batches past `after`, about READ_BYTES of them."""
        return await self._threads.read(lambda: self._store.read_batches(run_id, after, READ_BYTES))

    async def page(self, run_id: str, after: int) -> list[Batch]:
        """Return the next stored batches past `after`, about PAGE_BYTES of them: what one answer carries."""
        return await self._threads.read(lambda: self._store.read_batches(run_id, after, PAGE_BYTES))

    async def with_first_page(self, claimed: Claimed) -> Claimed:
        """Return the answer to a claim with the run's checkpoint and the first page after it; more comes by `page`,
        while the lease is renewed."""
        run_id = claimed.head.run_id
        checkpoint = await self._threads.read(lambda: self._store.read_checkpoint(run_id))
        first = await self.page(run_id, 0 if checkpoint is None else checkpoint.seq)
        return Claimed(head=claimed.head, spec=claimed.spec, batches=first, checkpoint=checkpoint)

    async def seal(self, tail: Tail, batches: list[Batch], generation: int) -> None:
        """Make a segment of what was read of the log of that generation (P10)."""
        ref = await self._put(b"\n".join(batch.data for batch in batches))
        if ref is not None and tail.generation == generation:
            tail.seal(Sealed(start=batches[0].seq, end=batches[-1].next_seq, ref=ref))

    async def seal_tail(self, tail: Tail) -> None:
        """Make segments of a tail's oldest stretches until it is short."""
        while (due := tail.to_seal()) is not None:
            start, end, data = due
            generation = tail.generation
            tail.sealing = True
            try:
                ref = await self._put(data)
            finally:
                tail.sealing = False
            if tail.generation != generation:
                continue  # it is no longer of this log (P10)
            if ref is None:
                tail.forget(end)
            else:
                tail.seal(Sealed(start=start, end=end, ref=ref))

    async def _put(self, data: bytes) -> Any:
        """Return the ref of a segment, or None."""
        try:
            return await self._threads.read(lambda: self._segments.put(data))
        except Exception as error:  # noqa: BLE001 - whatever the object store says
            log.warning("a segment could not be kept: %r", error)
            return None
