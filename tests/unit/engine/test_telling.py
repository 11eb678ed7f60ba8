"""What a thread's runs have said, from transcripts and from logs, within bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from unit.engine.stage import RUN, Stage, started

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.ops import Append
from runtime.engine.telling import thread_runs
from runtime.testing.sim_loop import play


def test_of_a_log_beyond_the_bound_the_end_is_told_and_no_more_is_read() -> None:
    async def ask(call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    async def acts() -> None:
        stage = Stage()
        shard = await started(stage)
        for at in range(1, 101):
            event = {"type": "TEXT_MESSAGE_CONTENT", "messageId": f"m{at}", "delta": "x" * 400}
            one = Batch(run_id=RUN, seq=at, count=1, epoch=1, band=Band.LIVE, data=chunk.encode(event))
            await shard.submit(Append(batch=one))
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
