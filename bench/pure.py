"""What two steps of a driver cost by themselves, without Ray, HTTP or a disk: translation and alignment.

`translate`: from the journal's bytes to chunks in the appender's hands, by the production follower in pieces of
128 KiB as the sandbox yields them: frame, translate, align against an empty log, and mark where to go on (P25). The
median of the trials.

`align`: 100,000 stored chunks in batches of 4,096, and the same chunks replayed in lists as long as a piece of the
journal gives, through the production aligner; from the batches' bytes to its end, the median. Byte-equal, or with
`fingerprint` stored chunks that differ from the replayed ones in a field that fingerprints leave out.

Seconds are this process's CPU time: one OS thread that waits for nothing, and others may use the cores meanwhile.

The input is a generated session of about 100,000 lines: texts, thinking, tool calls and their results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import cast

from rows import Figure, Figures, quantile

from runtime.core.align import BandAligner
from runtime.core.batch import Band, Batch
from runtime.core.chunk import decode_chunk, encode
from runtime.core.record import RunSpec
from runtime.engine.appending import Appender
from runtime.engine.checkpointing import Mark, Marker, Pace
from runtime.engine.clock import SystemClock
from runtime.engine.following import Follower, Limits
from runtime.engine.resuming import Start
from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.ports import Resumable, Sandbox
from runtime.testing.stream_json import stream_json

LINES, QUICK_LINES, SEED = 100_000, 20_000, 11
CHUNKS = 100_000
TRIALS, QUICK_TRIALS = 7, 3
PIECE_BYTES = 128 << 10
BATCH_CHUNKS = 4096
REPLAY_CHUNKS = 300
SPEC = RunSpec(harness="claude-code", translator_version=1, provider="local", input={"threadId": "thread-1"})


class _Journal:
    """A sandbox that is nothing but a journal."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        for at in range(start, len(self._data), PIECE_BYTES):
            yield self._data[at : at + PIECE_BYTES]


class _Collector:
    """An appender that keeps what it is given."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def put_journal(self, chunks: list[bytes], ends: list[int], _mark: Mark | None = None) -> None:
        assert len(chunks) == len(ends)
        self.chunks += chunks

    async def room(self) -> None:
        pass

    def raise_if_ended(self) -> None:
        pass


async def translate(quick: bool) -> Figures:
    """Measure translation."""
    lines = list(stream_json(QUICK_LINES if quick else LINES, seed=SEED))
    journal = b"".join(line + b"\n" for line in lines)
    found = []
    for _ in range(QUICK_TRIALS if quick else TRIALS):
        begun = time.process_time()
        await _follow(journal)
        found.append(len(lines) / (time.process_time() - begun))
    return {"translate_lines_per_s": Figure(quantile(found, 0.5), len(found))}


async def _follow(journal: bytes) -> list[bytes]:
    collector = _Collector()
    limits = Limits(
        clock=SystemClock(), run_s=None, run_limit_s=0, idle_s=None, unreachable_s=1.0, max_line_bytes=64 << 20
    )
    harness = ClaudeCodeHarness()
    translator = harness.translator("run-1", SPEC)
    assert isinstance(translator, Resumable)
    follower = Follower(
        cast("Sandbox", _Journal(journal)),
        Start(translator, "journal"),
        BandAligner([]),
        cast("Appender", collector),
        lambda: None,
        limits,
        Marker(Pace(), translator, "journal", harness.name, harness.translator_version),
    )
    await follower.follow()
    return collector.chunks


async def align(quick: bool) -> Figures:
    """Measure alignment, both ways."""
    chunks: list[bytes] = []
    seed = SEED
    while len(chunks) < CHUNKS:
        chunks += await _follow(b"".join(line + b"\n" for line in stream_json(LINES, seed=seed)))
        seed += 1
    del chunks[CHUNKS:]
    dated = [encode({**decode_chunk(data), "timestamp": 1_700_000_000_000}) for data in chunks]
    trials = QUICK_TRIALS if quick else TRIALS
    return {
        "align_chunks_per_s": _aligned(chunks, chunks, trials),
        "align_fingerprint_chunks_per_s": _aligned(dated, chunks, trials),
    }


def _aligned(stored: Sequence[bytes], replayed: list[bytes], trials: int) -> Figure:
    batches = [_batch(at, stored[at : at + BATCH_CHUNKS]) for at in range(0, len(stored), BATCH_CHUNKS)]
    replay = [
        [bytes(bytearray(data)) for data in replayed[at : at + REPLAY_CHUNKS]]
        for at in range(0, len(replayed), REPLAY_CHUNKS)
    ]
    found = []
    for _ in range(trials):
        begun = time.process_time()
        aligner = BandAligner(batches)
        new = [data for chunks in replay for data in aligner.feed(chunks)]
        aligner.finish()
        found.append(len(stored) / (time.process_time() - begun))
        assert not new
    return Figure(quantile(found, 0.5), len(found))


def _batch(seq: int, chunks: Sequence[bytes]) -> Batch:
    return Batch(run_id="run-1", seq=seq, count=len(chunks), epoch=1, band=Band.JOURNAL, data=b"\n".join(chunks))


def main(quick: bool) -> Figures:
    """Measure all of this module; for a look without an instance."""
    return asyncio.run(translate(quick)) | asyncio.run(align(quick))
