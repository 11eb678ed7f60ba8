"""The port of a delivery log: what the rest of the package asks of any log that can be read again (contract 3.2).

A log holds one run's chunks in order, each as canonical JSON (`core/chunk.py`), each at an offset. An offset is opaque
text, unique in its log, fit for an SSE `id:` line, and good on every host that can reach the log. `-1` is the start and
`now` the tail, everywhere.

A `StreamDurability` is one host's handle on one log. It is made for a run, perhaps with the offset that a client came
back with; many handles on one log are the normal case.

What a client of a log server (Durable Streams) needs to fit in here, and why the port has the shape it has:

    claim(epoch)    the epoch becomes the producer's epoch. A server fences an older one from the first accepted write
                    of a newer, so `claim` writes a claim record, whose body must be unique: a success that says
                    "duplicate" means that another holds this epoch. Only after it may the log be read (write, then
                    read), or an older driver's last acknowledged write is missed
    append          one request, repeated with the same producer sequence until it is answered: never a second number
    fences          True only if the server refuses anonymous writers of that log too
    snapshot        pages up to the server's "up to date", never a live read
    close           the producer's own close, refused to an older epoch
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

START = "-1"
TAIL = "now"


class Entry(NamedTuple):
    """A stored chunk, and the offset of a client that has seen it."""

    offset: str
    chunk: bytes


class StreamDurability(Protocol):
    """One handle on the log of one run. Coroutines of one event loop.

    Any method that does I/O may raise StoreError on the log's account: an append or close then happened or did not."""

    run_id: str

    @property
    def fences(self) -> bool:
        """Return whether `append` and `close` check the epoch of `claim` in the step that writes.

        If so, no older epoch's write can come after a newer claim, and a successor does not wait for quiet."""

    @property
    def resume_from(self) -> str | None:
        """Return the offset that this handle's client came with; None for a fresh producer."""

    async def claim(self, epoch: int) -> None:
        """Write under `epoch` from here on. A log that `fences` refuses every older epoch when this returns; any other
        takes note, or does nothing. Raises RunClaimLostError if a newer epoch has the log."""

    async def append(self, chunks: Sequence[bytes]) -> list[str]:
        """Store `chunks` in order, as durably as this log can; return the offset of each when they are stored.

        Raises RunClaimLostError (nothing was stored; only where the log fences), LogClosedError where a log ends with
        its terminal chunk, OutlastError `log_limit` at the log's bound, and RunDriverPipeOutsideClaimError where a
        log takes no writer without a claim: all on the writer's account."""

    def read(self, offset: str) -> AsyncGenerator[Entry, None]:
        """Yield what lies strictly after `offset`, in order, and then what comes, until the log is closed.

        A terminal chunk does not end it. Close the generator to stop. Raises, on the reader's account, when iterated:
        InputInvalid `offset_invalid` (malformed, or of another run), OffsetGone (past the tail), LogGone or
        RunNotFound (no such log)."""

    async def snapshot(self) -> list[Entry]:
        """Return everything stored at this moment, by whatever host. Never waits for a writer, so that it returns while
        the log is open; empty for an unknown log, and creates none."""

    async def exists(self) -> bool:
        """Return whether somebody made this log; creates none."""

    async def close(self) -> None:
        """State that nothing follows, and let readers go. Idempotent.

        Fenced like an append where the log `fences` (raises RunClaimLostError), and not fenced at all elsewhere."""
