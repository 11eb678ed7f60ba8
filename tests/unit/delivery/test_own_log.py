"""Outlast's own log through the port: fenced in its transaction, ended with its terminal chunk (I1, I5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from unit.delivery.hosts import played, sleep
from unit.engine.stage import RUN, Stage, claim, create

from runtime.core.chunk import Event, decode_chunk, encode
from runtime.core.ops import Claimed, Note, OpenSupervisor, RequestCancel
from runtime.core.reap_ops import Account, PruneLog
from runtime.core.record import CancelReason, RunError, Status
from runtime.delivery.durability import START, StreamDurability
from runtime.delivery.errors import LogGone, RunDriverPipeOutsideClaimError
from runtime.delivery.own_log import ClaimedOwnLog, OwnLog
from runtime.engine.authority import Authority
from runtime.engine.shard import Shard
from runtime.errors import LogClosedError, OffsetGone, OutlastError, RunClaimLostError
from runtime.testing.delivery_kit import Reading, chunk, drain

STARTED = encode({"type": "RUN_STARTED", "runId": RUN, "threadId": "thread-1"})
FINISHED = encode({"type": "RUN_FINISHED", "runId": RUN, "threadId": "thread-1"})
FAILED = encode({"type": "RUN_ERROR", "message": "over quota", "code": "quota"})
OPENED = encode({"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"})


async def claimed(stage: Stage, shard: Shard, expected: int = 0, **bounds: Any) -> ClaimedOwnLog:
    answer = await shard.submit(claim(expected, f"driver-{expected}"))
    assert isinstance(answer, Claimed)
    return ClaimedOwnLog(Authority(shard, answer.head, stage.loop, lease_ttl_s=3.0), **bounds)


async def opened() -> tuple[Stage, Shard]:
    stage = Stage()
    shard = await stage.open()
    await shard.submit(create())
    return stage, shard


async def stored(log: StreamDurability) -> list[Event]:
    return [decode_chunk(entry.chunk) for entry in await log.snapshot()]


def test_a_reader_writes_nothing() -> None:
    async def case() -> None:
        _, shard = await opened()
        log = OwnLog(shard, RUN)
        for write in (log.claim(1), log.append([STARTED]), log.close()):
            with pytest.raises(RunDriverPipeOutsideClaimError):
                await write
        assert len(await log.snapshot()) == 1
        assert not log.resume_from

    played(case())


def test_a_terminal_chunk_is_the_finish_and_what_is_open_is_closed_before_it() -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard)
        await log.append([STARTED])
        offsets = await log.append([OPENED, FINISHED])
        assert [offset[-2:] for offset in offsets] == ["03", "05"]
        assert [event["type"] for event in await stored(log)] == [
            "CUSTOM",
            "RUN_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ]
        head = stage.head()
        assert (head.status, head.closed, head.error) == (Status.COMPLETED, True, None)
        assert await drain(OwnLog(shard, RUN), offsets[0]) == (await log.snapshot())[3:]
        with pytest.raises(LogClosedError):
            await log.append([STARTED])
        await log.close()
        assert stage.head() == head

    played(case())


def test_a_run_error_fails_the_run_with_its_message_and_code() -> None:
    async def case() -> None:
        stage, shard = await opened()
        await (await claimed(stage, shard)).append([FAILED])
        head = stage.head()
        assert (head.status, head.error) == (Status.FAILED, RunError(message="over quota", code="quota"))

    played(case())


def test_a_terminal_chunk_in_the_middle_ends_nothing() -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard)
        await log.append([STARTED, FINISHED, STARTED])
        assert not stage.head().closed
        await log.append([chunk("more")])

    played(case())


def test_a_close_without_a_terminal_chunk_ends_the_run_as_one_that_gave_no_result() -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard)
        reading = Reading(OwnLog(shard, RUN), START)
        await log.append([STARTED])
        await log.close()
        assert decode_chunk((await reading.ended())[-1])["code"] == "agent_no_result"
        head = stage.head()
        assert (head.status, head.closed) == (Status.FAILED, True)

    played(case())


def test_a_cancelled_run_ends_by_its_close_as_aborted() -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard)
        await shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        with pytest.raises(OutlastError) as caught:
            await log.append([STARTED, FINISHED])
        assert caught.value.code == "aborted"
        await log.close()
        head = stage.head()
        assert (head.status, head.error and head.error.code) == (Status.ABORTED, "aborted")

    played(case())


@pytest.mark.parametrize("what", ["append", "finish", "close"])
def test_closing_is_fenced_like_every_write(what: str) -> None:
    async def case() -> None:
        stage, shard = await opened()
        old = await claimed(stage, shard)
        await old.append([STARTED])
        new = await claimed(stage, shard, 1)
        before = stage.log()
        with pytest.raises(RunClaimLostError) as caught:
            await (old.close() if what == "close" else old.append([chunk("late") if what == "append" else FINISHED]))
        assert (caught.value.held_epoch, caught.value.current_epoch) == (1, 2)
        assert stage.log() == before
        await new.append([FINISHED])
        assert stage.head().status is Status.COMPLETED

    played(case())


def test_an_epoch_that_is_not_the_authoritys_claims_nothing() -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard)
        await log.claim(1)
        with pytest.raises(RunClaimLostError):
            await log.claim(2)

    played(case())


@pytest.mark.parametrize("seed", range(8))
def test_answers_that_are_lost_double_nothing(seed: int) -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard)
        trouble = stage.trouble
        trouble.before = trouble.after = trouble.reading = 0.2
        texts = [chunk(str(n)) for n in range(12)]
        offsets = [offset for text in texts for offset in await log.append([text])]
        await log.append([FINISHED])
        trouble.before = trouble.after = trouble.reading = 0.0
        entries = await OwnLog(shard, RUN).snapshot()
        assert [entry.chunk for entry in entries][1:13] == texts
        assert [entry.offset for entry in entries][1:13] == offsets

    played(case(), seed)


@pytest.mark.parametrize("seed", range(8))
def test_an_append_whose_caller_left_keeps_its_place(seed: int) -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard)
        for n in range(6):
            task = asyncio.get_running_loop().create_task(log.append([chunk(f"left {n}")]))
            await sleep(0.0003 * n)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await log.append([FINISHED])
        kept = [event["name"] for event in await stored(log) if event["type"] == "CUSTOM"][1:]
        assert kept == sorted(kept)
        assert len(set(kept)) == len(kept)
        assert stage.head().status is Status.COMPLETED

    played(case(), seed)


def test_the_bound_of_a_log_is_told() -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard, max_log_bytes=1000)
        with pytest.raises(OutlastError) as caught:
            await log.append([chunk("x" * 1000)])
        assert caught.value.code == "log_limit"
        await log.append([FAILED])

    played(case())


def test_a_log_that_is_not_kept_any_more_is_gone_and_no_snapshot_is_half_of_it() -> None:
    async def case() -> None:
        stage, shard = await opened()
        log = await claimed(stage, shard)
        offsets = await log.append([STARTED, FINISHED])
        await shard.submit(OpenSupervisor(claimant="supervisor"))
        await shard.submit(Note(run_id=RUN, epoch=1, destroy_pending=False))
        await shard.submit(Account(run_id=RUN, supervisor_epoch=1))
        await shard.submit(PruneLog(run_id=RUN, supervisor_epoch=1, ended_before=1 << 50, retention_ms=0))
        await shard.drop_log(RUN)
        reader = OwnLog(shard, RUN)
        for offset in (START, offsets[0], offsets[-1]):
            with pytest.raises(LogGone):
                await drain(reader, offset)
        with pytest.raises(LogGone):
            await reader.snapshot()

    played(case())


def test_an_offset_of_another_generation_is_gone() -> None:
    async def case() -> None:
        _, shard = await opened()
        with pytest.raises(OffsetGone):
            await drain(OwnLog(shard, RUN), f"{1:016d}_{1:016d}")

    played(case())
