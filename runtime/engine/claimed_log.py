"""The stored log of a claim (P24): exactly the positions below the claim's own `next_seq`, read page by page.

The claim's answer brings the first page, which is the whole of a short log. The rest is asked for while the lease is
being renewed: however long the log, no answer takes long, and no event loop stands still.

With a checkpoint reading begins after it (P25). What is open there needs no trust in any journal: it follows from the
log, which is ours. Only if the journal turns out to be another one is the part before it read too (`whole_journal`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from runtime.core.batch import Band, Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.open_items import OpenItems
from runtime.core.ops import Claimed
from runtime.engine.authority import repeat
from runtime.errors import RunClaimLostError, StoreError
from runtime.ports import LogPort


def _nothing() -> None:
    pass


class ClaimedLog:
    """What a driver takes from its claim's log. Empty until `read`."""

    def __init__(self, log: LogPort, claimed: Claimed) -> None:
        self.open_items = OpenItems()
        self.journal: list[Batch] = []  # the batches of the journal band that were read
        self.keys: dict[str, int] = {}  # of the live chunks that were read: the position after each
        self.checkpoint: Checkpoint | None = None  # where reading began; None: at the start
        self._log = log
        self._claimed = claimed

    async def read(self, count: Callable[[], None] = _nothing) -> None:
        """Read it, and `count` each page. Raises StoreError if the store holds less than the record says,
        RunClaimLostError if that is since somebody newer drives a log whose end was lost (P10)."""
        claimed = self._claimed
        self.checkpoint = self._take(claimed.checkpoint)
        start = self.checkpoint.seq if self.checkpoint is not None else 0
        first = claimed.batches if start or claimed.checkpoint is None else []
        async for page in self._pages(start, claimed.head.next_seq, first):
            count()
            for batch in page:
                self.open_items.feed(batch.chunks())
                if batch.key is not None:
                    self.keys[batch.key] = batch.next_seq
                if batch.band is Band.JOURNAL:
                    self.journal.append(batch)
            await asyncio.sleep(0)

    async def whole_journal(self, count: Callable[[], None] = _nothing) -> list[Batch]:
        """Return the batches of the journal band from the start, also those that `read` has passed over."""
        before: list[Batch] = []
        end = self.checkpoint.seq if self.checkpoint is not None else 0
        async for page in self._pages(0, end):
            count()
            before += [batch for batch in page if batch.band is Band.JOURNAL]
        return before + self.journal

    async def _pages(self, start: int, end: int, first: list[Batch] | None = None) -> AsyncGenerator[list[Batch], None]:
        run_id, epoch = self._claimed.head.run_id, self._claimed.head.driver_epoch
        try:
            async for page in pages(self._log, run_id, start, end, first):
                yield page
        except StoreError:
            record = await repeat(lambda: self._log.record(run_id))
            if record is not None and record[0].driver_epoch != epoch:
                raise RunClaimLostError(run_id, epoch, record[0].driver_epoch) from None
            raise

    def _take(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Return the checkpoint if what it says of the log can be gone on with."""
        if checkpoint is None or checkpoint.seq > self._claimed.head.next_seq:
            return None  # a later epoch's, if this answer is an old one: we shall be refused
        try:
            self.open_items.restore(checkpoint.open_items)
        except Exception:  # noqa: BLE001 - whatever is in it: it is only a short cut
            return None
        return checkpoint


async def pages(
    log: LogPort, run_id: str, start: int, end: int, first: list[Batch] | None = None
) -> AsyncGenerator[list[Batch], None]:
    """Yield the positions [`start`, `end`) in order; `first` is their beginning, as far as it is known already.

    Raises StoreError if the store holds less."""
    batches, at = first or [], start
    while at < end:
        if not batches:
            batches = await repeat(lambda at=at: log.batches(run_id, at))  # type: ignore[misc]
        page = [batch for batch in batches if batch.seq < end]
        if not page:
            raise StoreError(f"The store has no chunk {at} of run {run_id!r} although its record says so.")
        yield page
        at, batches = page[-1].next_seq, []
