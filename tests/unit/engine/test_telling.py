"""What a thread's runs have said, from transcripts and from logs, within bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from unit.engine.stage import RUN, Stage, claim, create, finish, started

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.ops import Append, Attach, Finish, OpenSupervisor, SupervisorOpened
from runtime.core.reap_ops import Forget
from runtime.core.record import Head, Kept
from runtime.core.transcript import Transcript
from runtime.engine.telling import thread_runs
from runtime.engine.transcribing import Transcripts
from runtime.testing.sim_loop import play


async def ask(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def said(at: int, length: int) -> Append:
    event = {"type": "TEXT_MESSAGE_CONTENT", "messageId": f"m{at}", "delta": "x" * length}
    return Append(batch=Batch(run_id=RUN, seq=at, count=1, epoch=1, band=Band.LIVE, data=chunk.encode(event)))


def test_of_a_log_beyond_the_bound_the_end_is_told_and_no_more_is_read() -> None:
    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        for at in range(1, 101):
            await shard.submit(said(at, 400))
        record = stage.memory.read_run(RUN)
        assert record is not None
        (whole,) = await thread_runs([record], lambda _run: shard, ask, 1 << 20)
        assert [message["id"] for message in whole.said.messages] == [f"m{at}" for at in range(1, 101)]
        (end,) = await thread_runs([record], lambda _run: shard, ask, 10_000)
        ids = [message["id"] for message in end.said.messages]
        assert ids == [f"m{at}" for at in range(101 - len(ids), 101)]
        assert 15 < len(ids) < 30
        assert end.said.messages[0]["parts"][0]["content"] == "[left out: the beginning of a run so long]"

    play(1, acts())


def test_a_shard_that_was_replaced_tells_no_half_of_a_log_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(_self: Transcripts, op: Finish, _head: Head | None) -> Finish:
        return op

    monkeypatch.setattr(Transcripts, "into", none)

    async def acts() -> None:
        stage = Stage()
        old = await stage.open()
        await old.submit(create())
        await old.submit(Attach(run_id=RUN))
        await old.submit(claim())
        for at in range(1, 13):
            await old.submit(said(at, 40))
        await old.submit(finish(13))
        record = await old.record(RUN)
        assert record is not None
        (whole,) = await thread_runs([record], lambda _run: old, ask, 1 << 20)
        assert len(whole.said.messages) == 12
        new = await stage.open()
        opened = await new.submit(OpenSupervisor(claimant="supervisor"))
        assert isinstance(opened, SupervisorOpened)
        await new.submit(Forget(run_id=RUN, supervisor_epoch=opened.epoch, ended_before=1 << 50, retention_ms=0))
        assert stage.head().kept is Kept.DROPPING
        left = 13
        while left:
            left = await new.drop_log(RUN)
            (half,) = await thread_runs([record], lambda _run: old, ask, 1 << 20)
            assert half.said == Transcript()

    play(1, acts())
