"""The conformance kit of `delivery.durability.StreamDurability`: any delivery log passes it, or is none.

    class TestMine(StreamDurabilityKit):
        def logs(self) -> LogsUnderTest:
            return MyLogs()

`logs` is called once in a test, inside its event loop, and gives fresh storage. `play` runs a test's coroutine:
override it to run on virtual time. Nothing here waits for a time to pass.
"""

# ruff: noqa: D102, PLR2004 - a test's name states the fact, and expected numbers are literal on purpose

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import pytest

from runtime.core.chunk import encode
from runtime.delivery.durability import START, TAIL, Entry, StreamDurability
from runtime.delivery.errors import LogGone
from runtime.errors import InputInvalid, LogClosedError, OffsetGone, RunClaimLostError, RunNotFound

T = TypeVar("T")

RUN = "run-1"
# What an SSE client sends back unchanged: no line end, no NUL, no blank at either end.
_SSE_ID = re.compile(r"[^\x00\r\n]+")
_TURNS = 50  # of the loop; whatever can happen without waiting for time has happened by then


class LogsUnderTest(Protocol):
    """One deployment's logs."""

    async def writer(self, run_id: str) -> StreamDurability:
        """Return a handle that may write, making the run if it must be made; a second call supersedes the first."""

    def reader(self, run_id: str, offset: str | None = None) -> StreamDurability:
        """Return a handle such as another host would have."""

    def beyond(self, run_id: str) -> str:
        """Return a well-formed offset far past anything that this run has."""

    def raw(self, run_id: str) -> list[bytes]:
        """Return the stored chunks by other means than the port's."""


def chunk(text: str, kind: str = "CUSTOM") -> bytes:
    """Return a chunk that no other text has."""
    return encode({"type": kind, "name": text, "value": text})


async def drain(log: StreamDurability, offset: str = START) -> list[Entry]:
    """Return what a read yields until it ends by itself."""
    return [entry async for entry in log.read(offset)]


class Reading:
    """A read that goes on beside the test."""

    def __init__(self, log: StreamDurability, offset: str) -> None:
        self.seen: list[bytes] = []
        self.task = asyncio.create_task(self._read(log, offset))

    async def _read(self, log: StreamDurability, offset: str) -> None:
        async for entry in log.read(offset):
            self.seen.append(entry.chunk)

    async def has(self, *expected: bytes) -> None:
        """Return once exactly these were seen."""
        async with asyncio.timeout(30):
            while self.seen != list(expected):
                assert self.seen == list(expected)[: len(self.seen)]
                assert not self.task.done()
                await asyncio.sleep(0.001)

    async def ended(self) -> list[bytes]:
        """Return everything seen, once the read has ended."""
        async with asyncio.timeout(30):
            await self.task
        return self.seen


async def turn() -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class StreamDurabilityKit:
    """All cases; see the module's docstring."""

    terminal_closes = False  # whether a terminal chunk ends the log by itself

    def logs(self) -> LogsUnderTest:
        """Return fresh logs."""
        raise NotImplementedError("a subclass of StreamDurabilityKit has a method logs")

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one test."""
        return asyncio.run(work)

    # --- writing

    def test_each_chunk_gets_an_offset_of_its_own_that_fits_an_sse_id(self) -> None:
        async def case() -> None:
            log = await self.logs().writer(RUN)
            offsets = [*await log.append([chunk("a"), chunk("b")]), *await log.append([chunk("c")])]
            assert len(set(offsets)) == 3
            for offset in offsets:
                assert _SSE_ID.fullmatch(offset)
                assert offset == offset.strip()
                assert offset not in (START, TAIL)

        self.play(case())

    def test_an_append_of_nothing_stores_nothing(self) -> None:
        async def case() -> None:
            log = await self.logs().writer(RUN)
            before = await log.snapshot()
            assert await log.append([]) == []
            assert await log.snapshot() == before

        self.play(case())

    def test_what_is_stored_is_what_was_appended_byte_for_byte(self) -> None:
        async def case() -> None:
            logs = self.logs()
            log = await logs.writer(RUN)
            before = len(await log.snapshot())
            chunks = [chunk(text) for text in ("é😀", "a\n\r\0b", "x" * 300_000, '"\\')]
            await log.append(chunks)
            assert logs.raw(RUN)[before:] == chunks
            assert [entry.chunk for entry in (await log.snapshot())[before:]] == chunks

        self.play(case())

    def test_concurrent_appends_are_all_stored_each_in_one_piece(self) -> None:
        async def case() -> None:
            log = await self.logs().writer(RUN)
            pairs = [[chunk(f"{n}a"), chunk(f"{n}b")] for n in range(8)]
            offsets = await asyncio.gather(*(log.append(pair) for pair in pairs))
            place = {entry: at for at, entry in enumerate(await log.snapshot())}
            for pair, pair_offsets in zip(pairs, offsets, strict=True):
                first, second = (place[Entry(*entry)] for entry in zip(pair_offsets, pair, strict=True))
                assert second == first + 1

        self.play(case())

    def test_what_it_says_of_fencing_is_true(self) -> None:
        async def case() -> None:
            logs = self.logs()
            old = await logs.writer(RUN)
            await old.append([chunk("old")])
            new = await logs.writer(RUN)
            await new.append([chunk("new")])
            before = await new.snapshot()
            if not old.fences:
                await old.append([chunk("late")])
                assert len(await new.snapshot()) == len(before) + 1
                return
            with pytest.raises(RunClaimLostError):
                await old.append([chunk("late")])
            with pytest.raises(RunClaimLostError):
                await old.close()
            assert await new.snapshot() == before
            reading = Reading(logs.reader(RUN), before[-1].offset)
            await new.append([chunk("still open")])
            await reading.has(chunk("still open"))
            await new.close()
            await reading.ended()

        self.play(case())

    # --- snapshots

    def test_a_snapshot_of_an_open_log_returns_everything_with_the_appends_offsets(self) -> None:
        async def case() -> None:
            logs = self.logs()
            log = await logs.writer(RUN)
            before = await log.snapshot()
            offsets = await log.append([chunk("a"), chunk("b")])
            expected = [*before, Entry(offsets[0], chunk("a")), Entry(offsets[1], chunk("b"))]
            snapshot = await logs.reader(RUN).snapshot()
            assert snapshot == expected
            snapshot.clear()
            assert await logs.reader(RUN).snapshot() == expected

        self.play(case())

    def test_a_snapshot_of_an_unknown_log_is_empty_and_makes_none(self) -> None:
        async def case() -> None:
            log = self.logs().reader("never")
            assert await log.snapshot() == []
            assert not await log.exists()

        self.play(case())

    def test_a_log_exists_once_it_was_written(self) -> None:
        async def case() -> None:
            logs = self.logs()
            await (await logs.writer(RUN)).append([chunk("a")])
            assert await logs.reader(RUN).exists()

        self.play(case())

    # --- reading

    def test_a_read_from_any_offset_yields_exactly_what_follows(self) -> None:
        async def case() -> None:
            logs = self.logs()
            log = await logs.writer(RUN)
            for size in (1, 3, 2):
                await log.append([chunk(f"{size}-{n}") for n in range(size)])
            await log.close()
            everything = await log.snapshot()
            assert await drain(logs.reader(RUN)) == everything
            for at, entry in enumerate(everything, 1):
                assert await drain(logs.reader(RUN), entry.offset) == everything[at:]

        self.play(case())

    def test_a_read_goes_on_with_what_comes_until_the_close(self) -> None:
        async def case() -> None:
            logs = self.logs()
            log = await logs.writer(RUN)
            last = (await log.append([chunk("a")]))[0]
            readings = [Reading(logs.reader(RUN), last) for _ in range(3)]
            for text in "bcd":
                await log.append([chunk(text)])
            for reading in readings:
                await reading.has(chunk("b"), chunk("c"), chunk("d"))
            await log.close()
            for reading in readings:
                assert (await reading.ended())[:3] == [chunk("b"), chunk("c"), chunk("d")]

        self.play(case())

    def test_now_is_the_tail(self) -> None:
        async def case() -> None:
            logs = self.logs()
            log = await logs.writer(RUN)
            await log.append([chunk("before")])
            reading = Reading(logs.reader(RUN), TAIL)
            await turn()
            while not reading.seen:  # a read of `now` finds its place when it begins, and nobody says when
                await log.append([chunk("after")])
                await asyncio.sleep(0.001)
            assert set(reading.seen) == {chunk("after")}
            await log.close()
            await reading.ended()

        self.play(case())

    def test_a_reader_may_leave_at_any_time(self) -> None:
        async def case() -> None:
            logs = self.logs()
            log = await logs.writer(RUN)
            await log.append([chunk("a"), chunk("b")])
            async with aclosing(logs.reader(RUN).read(START)) as entries:
                first = await anext(entries)
            parked = Reading(logs.reader(RUN), TAIL)
            await turn()
            parked.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await parked.task
            await log.close()
            assert [first, *await drain(logs.reader(RUN), first.offset)] == await log.snapshot()

        self.play(case())

    @pytest.mark.parametrize("offset", ["", "x", "-2", "NOW", "0", "memory:v1:", "1_1"])
    def test_a_malformed_offset_is_the_readers_fault(self, offset: str) -> None:
        async def case() -> None:
            logs = self.logs()
            await (await logs.writer(RUN)).append([chunk("a")])
            with pytest.raises(InputInvalid) as caught:
                await drain(logs.reader(RUN), offset)
            assert caught.value.code == "offset_invalid"

        self.play(case())

    def test_an_offset_past_the_tail_is_gone_and_never_waited_for(self) -> None:
        async def case() -> None:
            logs = self.logs()
            await (await logs.writer(RUN)).append([chunk("a")])
            with pytest.raises(OffsetGone):
                await drain(logs.reader(RUN), logs.beyond(RUN))

        self.play(case())

    def test_an_offset_in_an_unknown_log_is_refused_and_makes_none(self) -> None:
        async def case() -> None:
            logs = self.logs()
            log = logs.reader("never")
            with pytest.raises((LogGone, RunNotFound)):
                await drain(log, logs.beyond("never"))
            assert not await log.exists()

        self.play(case())

    def test_a_handle_tells_the_offset_that_it_was_made_with(self) -> None:
        async def case() -> None:
            logs = self.logs()
            (offset,) = await (await logs.writer(RUN)).append([chunk("a")])
            assert logs.reader(RUN).resume_from is None
            assert logs.reader(RUN, offset).resume_from == offset

        self.play(case())

    # --- the end

    def test_a_close_may_be_repeated(self) -> None:
        async def case() -> None:
            log = await self.logs().writer(RUN)
            await log.append([chunk("a")])
            await log.close()
            ended = await log.snapshot()
            await log.close()
            assert await log.snapshot() == ended
            assert await drain(log) == ended

        self.play(case())

    def test_a_terminal_chunk_ends_the_log_where_it_says_so_and_only_there(self) -> None:
        async def case() -> None:
            logs = self.logs()
            log = await logs.writer(RUN)
            reading = Reading(logs.reader(RUN), START)
            started, ended = chunk("s", "RUN_STARTED"), chunk("e", "RUN_FINISHED")
            await log.append([started, ended])
            if self.terminal_closes:
                with pytest.raises(LogClosedError):
                    await log.append([chunk("after")])
                assert (await reading.ended())[-2:] == [started, ended]
                return
            await log.append([chunk("after")])
            await reading.has(started, ended, chunk("after"))
            await log.close()
            await reading.ended()

        self.play(case())
