"""The stored log of a claim, page by page (P24): exactly the positions below the claim's own `next_seq`.

The claim's answer brings the first page, which is the whole of a short log. The rest is asked for while the lease is
being renewed: however long the log, no answer takes long, and no event loop stands still.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from runtime.core.batch import Batch
from runtime.core.ops import Claimed
from runtime.engine.authority import repeat
from runtime.errors import StoreError
from runtime.ports import LogPort


async def pages(log: LogPort, claimed: Claimed) -> AsyncGenerator[list[Batch], None]:
    """Yield the log in order. Raises StoreError if the store holds less than the record says."""
    run_id, end = claimed.head.run_id, claimed.head.next_seq
    batches, at = claimed.batches, 0
    while at < end:
        if not batches:
            batches = await repeat(lambda at=at: log.batches(run_id, at))  # type: ignore[misc]
        page = [batch for batch in batches if batch.seq < end]
        if not page:
            raise StoreError(f"The store has no chunk {at} of run {run_id!r} although its record says so.")
        yield page
        at, batches = page[-1].next_seq, []
