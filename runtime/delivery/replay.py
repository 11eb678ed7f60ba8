"""Drop from a replay what a log without bands holds already (I4, contract 6.3)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing

from runtime.core.align import MAX_SKIP, OutOfBandAligner, is_custom
from runtime.core.chunk import Event, decode_chunk
from runtime.delivery.durability import StreamDurability


async def aligned(
    log: StreamDurability,
    replay: AsyncIterable[Event],
    is_out_of_band: Callable[[Event], bool] = is_custom,
    max_skip: int = MAX_SKIP,
) -> AsyncGenerator[Event, None]:
    """Yield those events of `replay`, which starts where the run started, that `log` does not hold.

    The log is read once, before the replay is. What `is_out_of_band` knows, a replay need not produce again: at most
    `max_skip` such chunks in a row, any number at the end. Raises JournalReplayDivergedError or
    JournalReplayThreadIdMismatchError; nothing from the difference on is yielded."""
    aligner = OutOfBandAligner([decode_chunk(entry.chunk) for entry in await log.snapshot()], is_out_of_band, max_skip)
    async with aclosing(generator(replay)) as events:
        async for event in events:
            if aligner.feed(event):
                yield event
    aligner.finish()


async def generator(events: AsyncIterable[Event]) -> AsyncGenerator[Event, None]:
    """Yield `events`; closing this closes them, if they can be closed."""
    iterator = aiter(events)
    try:
        async for event in iterator:
            yield event
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()
