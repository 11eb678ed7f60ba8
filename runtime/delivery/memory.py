"""Delivery logs in this process's memory: for one process, for tests, for a first try (contract 3.3).

They outlive a client's connection, and nothing else: the process's end is theirs. One `MemoryStreams` holds them;
`log` gives handles. Within one process check and write are one step, so these logs fence: an epoch that was `claim`ed
is refused once a newer one is. A handle that never claimed is anonymous and never refused (`fences=False`: nobody is).

Bounds. An open log ends at `max_log_bytes`. Closed logs are dropped `ttl_ms` after their close, and the oldest of them
while there are more than `max_logs` in all; both are looked at when a log is made, so an idle process keeps what it
has. An open log is never dropped: somebody may come back for it.

An append to a closed log opens it again. Where closing is not fenced, the close may have been that of a driver which
had lost its claim; what its successor writes must reach those who come back.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Sequence
from urllib.parse import quote, unquote

from runtime.delivery.durability import START, TAIL, Entry
from runtime.delivery.errors import LogGone, NoFirstChunk
from runtime.errors import InputInvalid, OffsetGone, OutlastError, RunClaimLostError, SequenceConflictError
from runtime.ports import Clock

FIRST_CHUNK_DEADLINE_MS = 100
TTL_MS = 300_000
MAX_LOGS = 1024
MAX_LOG_BYTES = 1 << 30

_PREFIX = "memory:v1:"
_UNFIT = re.compile("[\r\n\ud800-\udfff]")  # the latter cannot be sent
_MAX_SEQ = 2**53 - 1  # what every client's numbers hold


class _Log:
    """One log. `seqs` grows; a chunk can be replaced in its place."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.chunks: list[bytes] = []
        self.bytes = 0
        self.epoch = 0  # the newest that was claimed
        self.closed_at_ms: int | None = None
        self.waiting = 0  # readers that wait for the first chunk
        self.changed = asyncio.Event()

    @property
    def tail(self) -> int:
        return self.seqs[-1] if self.seqs else 0

    @property
    def phantom(self) -> bool:
        """True if only readers know of it."""
        return not self.seqs and self.closed_at_ms is None and self.epoch == 0

    def put(self, seq: int, chunk: bytes) -> None:
        self.seqs.append(seq)
        self.chunks.append(chunk)
        self.bytes += len(chunk)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryStreams:
    """All logs of one process. Use it on one event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        first_chunk_deadline_ms: int = FIRST_CHUNK_DEADLINE_MS,
        ttl_ms: int = TTL_MS,
        max_logs: int = MAX_LOGS,
        max_log_bytes: int = MAX_LOG_BYTES,
        fences: bool = True,
    ) -> None:
        self.fences = fences
        self.first_chunk_deadline_ms = first_chunk_deadline_ms
        self.max_log_bytes = max_log_bytes
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._max_logs = max_logs
        self._logs: dict[str, _Log] = {}

    def __len__(self) -> int:
        """Return how many logs are held."""
        return len(self._logs)

    def log(self, run_id: str | None, offset: str | None = None) -> MemoryStreamDurability:
        """Return a handle on the run's log, which need not exist; `offset` is where its client wants to go on.

        An offset of these logs names its run itself and wins over `run_id`. Raises InputInvalid."""
        if offset is not None and offset not in (START, TAIL):
            run_id, _ = parse_offset(offset)
        if not run_id or _UNFIT.search(run_id):
            raise InputInvalid(
                "A run id must be a text without line ends, and not empty.", code="run_id_invalid", field="runId"
            )
        return MemoryStreamDurability(self, run_id, offset)

    def find(self, run_id: str) -> _Log | None:
        """Return the log, or None."""
        return self._logs.get(run_id)

    def make(self, run_id: str) -> _Log:
        """Return the log, made if it is not there."""
        log = self._logs.get(run_id)
        if log is None:
            self._evict()
            log = self._logs[run_id] = _Log()
        return log

    def forget_phantom(self, run_id: str, log: _Log) -> None:
        """Drop a log that only readers made, once none of them waits any more."""
        if log.phantom and not log.waiting and self._logs.get(run_id) is log:
            del self._logs[run_id]

    def now_ms(self) -> int:
        """Return ms on a clock that never goes back."""
        return int(self._clock.monotonic() * 1000)

    def _evict(self) -> None:
        closed = [(run_id, log.closed_at_ms) for run_id, log in self._logs.items() if log.closed_at_ms is not None]
        surplus = len(self._logs) + 1 - self._max_logs  # with the one that is about to be made
        oldest_ms = self.now_ms() - self._ttl_ms
        for index, (run_id, closed_at_ms) in enumerate(closed):
            if index < surplus or closed_at_ms < oldest_ms:
                del self._logs[run_id]


class MemoryStreamDurability:
    """One handle on one log of a `MemoryStreams`."""

    def __init__(self, streams: MemoryStreams, run_id: str, offset: str | None) -> None:
        self.run_id = run_id
        self._streams = streams
        self._offset = offset
        self._epoch: int | None = None

    @property
    def fences(self) -> bool:
        """Return whether these logs check the epoch with each write."""
        return self._streams.fences

    @property
    def resume_from(self) -> str | None:
        """Return the offset that the client came with."""
        return self._offset

    async def claim(self, epoch: int) -> None:
        """Write under `epoch`; older ones are refused from here on. Raises RunClaimLostError."""
        if not self.fences:
            return
        log = self._streams.make(self.run_id)
        self._epoch = epoch
        self._check(log)
        log.epoch = epoch

    async def append(self, chunks: Sequence[bytes]) -> list[str]:
        """Store `chunks`; see the port. Raises RunClaimLostError, OutlastError `log_limit`."""
        log = self._streams.make(self.run_id)
        self._check(log)
        self._check_size(log, sum(map(len, chunks)))
        first = log.tail + 1
        for seq, chunk in enumerate(chunks, first):
            log.put(seq, chunk)
        if chunks:
            log.closed_at_ms = None
            log.wake()
        return [format_offset(self.run_id, seq) for seq in range(first, first + len(chunks))]

    async def upsert(self, entries: Sequence[Entry]) -> None:
        """Store `entries` at offsets of the caller's choice: a new one after the tail, or one that is there, whose
        chunk is then replaced. All or nothing.

        Raises InputInvalid (an offset is malformed, of another run, or twice in `entries`), SequenceConflictError (one
        is neither there nor after the tail), and what `append` raises."""
        log = self._streams.find(self.run_id) or _Log()
        seqs = [self._own(entry.offset) for entry in entries]
        if len(set(seqs)) != len(seqs):
            raise InputInvalid("An offset is there twice.", code="offset_invalid", field="offset")
        known, tail = set(log.seqs), log.tail
        for seq in seqs:
            if seq not in known and seq <= tail:
                raise SequenceConflictError(self.run_id, seq, tail + 1)
            tail = max(tail, seq)
        self._check(log)
        self._check_size(log, sum(len(entry.chunk) for entry in entries))
        log = self._streams.make(self.run_id)
        for seq, entry in zip(seqs, entries, strict=True):
            if seq in known:
                at = bisect_left(log.seqs, seq)
                log.bytes += len(entry.chunk) - len(log.chunks[at])
                log.chunks[at] = entry.chunk
            else:
                log.closed_at_ms = None
                log.put(seq, entry.chunk)
        log.wake()

    async def read(self, offset: str) -> AsyncGenerator[Entry, None]:
        """Yield what lies after `offset`; see the port. Raises NoFirstChunk if an empty log stays empty."""
        log = await self._find_for(offset)
        at = len(log.seqs) if offset == TAIL else 0
        if offset not in (START, TAIL):
            seq = self._own(offset)
            at = bisect_right(log.seqs, seq)
            if seq > log.tail:
                raise OffsetGone(offset, format_offset(self.run_id, log.tail))
        if not log.seqs:
            await self._first_chunk(log)
        while True:
            while at < len(log.seqs):
                yield Entry(format_offset(self.run_id, log.seqs[at]), log.chunks[at])
                at += 1
            if log.closed_at_ms is not None:
                return
            await log.changed.wait()

    async def snapshot(self) -> list[Entry]:
        """Return everything stored now."""
        log = self._streams.find(self.run_id)
        if log is None:
            return []
        pairs = zip(log.seqs, log.chunks, strict=True)
        return [Entry(format_offset(self.run_id, seq), chunk) for seq, chunk in pairs]

    async def exists(self) -> bool:
        """Return whether the log is held."""
        log = self._streams.find(self.run_id)
        return log is not None and not log.phantom

    async def close(self) -> None:
        """Let readers go. An absent log is made, closed. Raises RunClaimLostError."""
        log = self._streams.make(self.run_id)
        self._check(log)
        if log.closed_at_ms is None:
            log.closed_at_ms = self._streams.now_ms()
            log.wake()

    async def _find_for(self, offset: str) -> _Log:
        log = self._streams.find(self.run_id)
        if offset in (START, TAIL):
            return log or self._streams.make(self.run_id)
        self._own(offset)
        if log is None or (not log.seqs and log.closed_at_ms is None):
            raise LogGone(self.run_id)
        return log

    async def _first_chunk(self, log: _Log) -> None:
        """Return when `log` has a chunk or is closed. Raises NoFirstChunk at the deadline."""
        deadline_ms = self._streams.first_chunk_deadline_ms
        log.waiting += 1
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                while not log.seqs and log.closed_at_ms is None:
                    await log.changed.wait()
        except TimeoutError:
            raise NoFirstChunk(self.run_id, deadline_ms) from None
        finally:
            log.waiting -= 1
            self._streams.forget_phantom(self.run_id, log)

    def _check(self, log: _Log) -> None:
        if self._epoch is not None and self._epoch < log.epoch:
            raise RunClaimLostError(self.run_id, self._epoch, log.epoch)

    def _check_size(self, log: _Log, more: int) -> None:
        limit = self._streams.max_log_bytes
        if log.bytes + more > limit:
            raise OutlastError(f"The log of run {self.run_id!r} is at its bound of {limit} bytes.", code="log_limit")

    def _own(self, offset: str) -> int:
        run_id, seq = parse_offset(offset)
        if run_id != self.run_id:
            raise InputInvalid(
                f"The offset is one of run {run_id!r}, not of {self.run_id!r}.", code="offset_invalid", field="offset"
            )
        return seq


def format_offset(run_id: str, seq: int) -> str:
    """Return the offset of a client that has seen chunk `seq`, counted from 1."""
    return f"{_PREFIX}{quote(run_id, safe=_UNESCAPED)}:{seq}"


# What a browser's encodeURIComponent leaves as it is, besides letters and digits.
_UNESCAPED = "-_.!~*'()"


def parse_offset(text: str) -> tuple[str, int]:
    """Return (run id, seq) of an offset. Raises InputInvalid `offset_invalid`."""
    body = text.removeprefix(_PREFIX)
    quoted, colon, digits = body.rpartition(":")
    seq = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MAX_SEQ)) else 0
    try:
        run_id = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        run_id = ""
    if body == text or not colon or not run_id or not 0 < seq <= _MAX_SEQ or format_offset(run_id, seq) != text:
        raise InputInvalid(
            "offset must be -1, now, or one that this log sent (memory:v1:RUN:NUMBER).",
            code="offset_invalid",
            field="offset",
        )
    return run_id, seq
