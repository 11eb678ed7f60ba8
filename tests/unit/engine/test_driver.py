"""A drive from its claim to its end."""

from __future__ import annotations

from unit.engine.stage import RUN, THREAD, Stage, create, rng

from runtime.core.batch import Band
from runtime.testing.sim_agent import translate, write_script
from runtime.testing.sim_loop import play


def journal_band(stage: Stage) -> list[bytes]:
    batches = stage.memory.read_batches(RUN, 0, 1 << 40)
    return [chunk for batch in batches if batch.band is Band.JOURNAL for chunk in batch.chunks()]


def test_a_run_ends_with_every_line_once() -> None:
    async def acts() -> None:
        script = write_script(rng(7), lines=300, seconds=10.0)
        stage = Stage(script)
        shard = await stage.open()
        await shard.submit(create())
        end = await stage.drive(shard)
        assert end.kind == "finished"
        assert stage.head().status is end.status
        assert journal_band(stage) == translate(RUN, THREAD, script.output)
        assert stage.world.started[RUN] == 1
        assert not stage.world.boxes

    play(1, acts())
