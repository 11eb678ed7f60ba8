"""The in-memory log: offsets, the first chunk's deadline, eviction, upsert (contract 3.3), on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.delivery.durability import START, TAIL, Entry
from runtime.delivery.errors import LogGone, NoFirstChunk
from runtime.delivery.memory import (
    FIRST_CHUNK_DEADLINE_MS,
    MAX_LOGS,
    TTL_MS,
    MemoryStreamDurability,
    MemoryStreams,
    format_offset,
    parse_offset,
)
from runtime.errors import InputInvalid, OutlastError, RunClaimLostError, SequenceConflictError
from runtime.testing.delivery_kit import Reading, chunk, drain, turn
from runtime.testing.sim_loop import SimLoop, play

RUN = "run-1"


def streams(**bounds: Any) -> MemoryStreams:
    """Make it inside a played coroutine."""
    return MemoryStreams(cast("SimLoop", asyncio.get_running_loop()), **bounds)


async def filled(all_logs: MemoryStreams, run_id: str, *, closed: bool = True) -> MemoryStreamDurability:
    log = all_logs.log(run_id)
    await log.append([chunk("a")])
    if closed:
        await log.close()
    return log


def played(work: Coroutine[Any, Any, None]) -> None:
    play(3, work)


# --- offsets


def test_an_offset_names_its_run_and_counts_from_1() -> None:
    assert format_offset("run-1", 1) == "memory:v1:run-1:1"
    assert format_offset("a:b/c d", 12) == "memory:v1:a%3Ab%2Fc%20d:12"
    assert parse_offset("memory:v1:a%3Ab%2Fc%20d:12") == ("a:b/c d", 12)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.integers(1, 2**53 - 1))
def test_every_offset_reads_back(run_id: str, seq: int) -> None:
    assert parse_offset(format_offset(run_id, seq)) == (run_id, seq)


@pytest.mark.parametrize(
    "text",
    [
        "memory:v1:r",
        "memory:v1::1",
        "memory:v1:r:0",
        "memory:v1:r:-1",
        "memory:v1:r:01",
        "memory:v1:r:1 ",
        "memory:v1:r:٣",
        f"memory:v1:r:{2**53}",
        "memory:v1:r:" + "9" * 5000,
        "memory:v1:%zz:1",
        "memory:v1:%ff:1",
        "memory:v2:r:1",
        "0000000000000000_0000000000000001",
    ],
)
def test_anything_else_is_no_offset(text: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        parse_offset(text)
    assert caught.value.code == "offset_invalid"


def test_the_run_in_a_concrete_offset_wins() -> None:
    async def case() -> None:
        every = streams()
        assert every.log("other", format_offset(RUN, 3)).run_id == RUN
        assert every.log(None, format_offset(RUN, 3)).run_id == RUN
        assert every.log("other", START).run_id == "other"
        assert every.log("other", TAIL).resume_from == TAIL

    played(case())


@pytest.mark.parametrize("run_id", [None, "", "a\nb", "a\rb", "\ud800"])
def test_a_run_id_that_no_header_carries_is_refused_at_once(run_id: str | None) -> None:
    async def case() -> None:
        with pytest.raises(InputInvalid, match="run id"):
            streams().log(run_id)

    played(case())


def test_an_offset_of_another_run_is_refused() -> None:
    async def case() -> None:
        every = streams()
        log = await filled(every, RUN)
        with pytest.raises(InputInvalid, match="of run 'other'"):
            await drain(log, format_offset("other", 1))

    played(case())


# --- the first chunk


@pytest.mark.parametrize("offset", [START, TAIL])
def test_an_empty_log_is_waited_for_and_then_given_up_and_forgotten(offset: str) -> None:
    async def case() -> None:
        every, loop = streams(), asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(NoFirstChunk) as caught:
            await drain(every.log(RUN), offset)
        assert round((loop.time() - began) * 1000) == FIRST_CHUNK_DEADLINE_MS == caught.value.deadline_ms == 100
        assert len(every) == 0

    played(case())


def test_a_first_chunk_within_the_deadline_is_read_and_then_there_is_no_deadline() -> None:
    async def case() -> None:
        every = streams()
        reading = Reading(every.log(RUN), START)
        await asyncio.sleep(0)
        log = every.log(RUN)
        await log.append([chunk("a")])
        await reading.has(chunk("a"))
        asyncio.get_running_loop().call_later(3600, lambda: asyncio.create_task(log.append([chunk("b")])))
        asyncio.get_running_loop().call_later(3601, lambda: asyncio.create_task(log.close()))
        await reading.task
        assert reading.seen == [chunk("a"), chunk("b")]

    played(case())


def test_a_reader_that_gives_up_leaves_the_log_to_those_who_still_wait() -> None:
    async def case() -> None:
        every = streams()
        first = Reading(every.log(RUN), START)
        await turn()
        asyncio.get_running_loop().call_later(0.05, lambda: None)
        late: list[Reading] = []
        loop = asyncio.get_running_loop()
        loop.call_later(0.09, lambda: late.append(Reading(every.log(RUN), START)))
        with pytest.raises(NoFirstChunk):
            await first.task
        await every.log(RUN).append([chunk("a")])
        await late[0].has(chunk("a"))
        await every.log(RUN).close()
        assert await late[0].ended() == [chunk("a")]

    played(case())


def test_a_reader_that_leaves_before_the_first_chunk_leaves_no_log() -> None:
    async def case() -> None:
        every = streams()
        reading = Reading(every.log(RUN), START)
        await turn()
        reading.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading.task
        assert len(every) == 0

    played(case())


def test_an_empty_log_that_is_closed_ends_at_once() -> None:
    async def case() -> None:
        log = streams().log(RUN)
        await log.close()
        assert await drain(log) == []

    played(case())


def test_a_concrete_offset_in_an_absent_or_empty_log_is_gone_and_makes_none() -> None:
    async def case() -> None:
        every = streams()
        with pytest.raises(LogGone):
            await drain(every.log(RUN), format_offset(RUN, 1))
        assert len(every) == 0
        await every.log(RUN).claim(1)  # there, open and empty
        with pytest.raises(LogGone):
            await drain(every.log(RUN), format_offset(RUN, 1))

    played(case())


# --- bounds


def test_a_closed_log_is_dropped_five_minutes_after_its_close_when_another_is_made() -> None:
    async def case() -> None:
        every, loop = streams(), asyncio.get_running_loop()
        old = await filled(every, "old")
        await filled(every, "open", closed=False)
        await loop.create_task(_later(TTL_MS / 1000))
        await filled(every, "at the bound")
        assert await old.exists()
        await loop.create_task(_later(0.002))
        assert await old.exists()
        await filled(every, "past it")
        assert not await old.exists()
        assert await every.log("open").exists()
        with pytest.raises(LogGone):
            await drain(every.log("old"), format_offset("old", 1))

    played(case())


async def _later(seconds: float) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, done.set)
    await done.wait()


def test_beyond_the_count_the_oldest_closed_logs_are_dropped_and_no_open_one() -> None:
    async def case() -> None:
        every = streams()
        assert MAX_LOGS == 1024
        await filled(every, "open", closed=False)
        for n in range(MAX_LOGS - 1):
            await filled(every, f"run-{n}")
        assert len(every) == MAX_LOGS
        await filled(every, "one more", closed=False)
        assert len(every) == MAX_LOGS
        assert [await every.log(name).exists() for name in ("open", "run-0", "run-1")] == [True, False, True]

    played(case())


def test_open_logs_are_never_dropped_however_many() -> None:
    async def case() -> None:
        every = streams(max_logs=3)
        for n in range(6):
            await filled(every, f"run-{n}", closed=False)
        assert len(every) == 6

    played(case())


def test_a_reader_of_a_dropped_log_has_it_to_its_end() -> None:
    async def case() -> None:
        every = streams(max_logs=1)
        log = await filled(every, RUN)
        entries = log.read(START)
        assert (await anext(entries)).chunk == chunk("a")
        await filled(every, "other")
        assert not await log.exists()
        assert [entry async for entry in entries] == []

    played(case())


def test_a_log_ends_at_its_bound_of_bytes_and_keeps_what_it_has() -> None:
    async def case() -> None:
        log = streams(max_log_bytes=100).log(RUN)
        await log.append([b"x" * 60])
        with pytest.raises(OutlastError) as caught:
            await log.append([b"y" * 20, b"z" * 21])
        assert caught.value.code == "log_limit"
        assert [entry.chunk for entry in await log.snapshot()] == [b"x" * 60]
        await log.append([b"y" * 40])

    played(case())


# --- after a close


def test_an_append_to_a_closed_log_is_stored_and_read_by_those_who_come_back() -> None:
    async def case() -> None:
        every = streams(fences=False)
        log = await filled(every, RUN)
        (first,) = await drain(log)
        await log.append([chunk("b")])
        reading = Reading(every.log(RUN), first.offset)
        await reading.has(chunk("b"))
        await log.append([chunk("c")])
        await reading.has(chunk("b"), chunk("c"))
        await log.close()
        assert await reading.ended() == [chunk("b"), chunk("c")]

    played(case())


def test_an_anonymous_writer_is_not_fenced() -> None:
    async def case() -> None:
        every = streams()
        await every.log(RUN).claim(5)
        await every.log(RUN).append([chunk("anonymous")])
        assert len(await every.log(RUN).snapshot()) == 1

    played(case())


# --- upsert


def test_an_upsert_puts_new_chunks_after_the_tail_and_replaces_old_ones() -> None:
    async def case() -> None:
        log = streams().log(RUN)
        await log.append([chunk("a"), chunk("b")])
        entries = [(2, "B"), (5, "e"), (9, "i")]
        await log.upsert([Entry(format_offset(RUN, seq), chunk(text)) for seq, text in entries])
        stored = [(parse_offset(entry.offset)[1], entry.chunk) for entry in await log.snapshot()]
        assert stored == [(1, chunk("a")), (2, chunk("B")), (5, chunk("e")), (9, chunk("i"))]
        assert await log.append([chunk("j")]) == [format_offset(RUN, 10)]
        await log.close()
        assert [entry.chunk for entry in await drain(log, format_offset(RUN, 5))] == [chunk("i"), chunk("j")]

    played(case())


@pytest.mark.parametrize(
    ("seqs", "error"),
    [
        ([3, 3], InputInvalid),
        ([4, 3], SequenceConflictError),
        ([6, 5], SequenceConflictError),
    ],
)
def test_an_upsert_is_all_or_nothing(seqs: list[int], error: type[Exception]) -> None:
    async def case() -> None:
        log = streams().log(RUN)
        await log.upsert([Entry(format_offset(RUN, 2), chunk("b"))])
        before = await log.snapshot()
        with pytest.raises(error):
            await log.upsert([Entry(format_offset(RUN, seq), chunk(str(seq))) for seq in [2, *seqs]])
        assert await log.snapshot() == before

    played(case())


def test_an_upsert_at_an_offset_of_another_run_makes_nothing() -> None:
    async def case() -> None:
        every = streams()
        with pytest.raises(InputInvalid):
            await every.log(RUN).upsert([Entry(format_offset("other", 1), chunk("a"))])
        assert len(every) == 0

    played(case())


def test_an_upsert_is_fenced_like_an_append() -> None:
    async def case() -> None:
        every = streams()
        old = every.log(RUN)
        await old.claim(1)
        await every.log(RUN).claim(2)
        with pytest.raises(RunClaimLostError):
            await old.upsert([Entry(format_offset(RUN, 1), chunk("late"))])
        assert await every.log(RUN).snapshot() == []

    played(case())
