"""A run is read to its end by the translator that it began with, or ends with a clear code."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from unit.engine.stage import RUN, THREAD, Stage, create, spec

from runtime.core import chunk
from runtime.core.record import ClaimEnd, Launch, RunSpec, Status
from runtime.engine.plugins import translator_of
from runtime.errors import JournalUnavailable
from runtime.ports import Harness, Translator
from runtime.testing.sim_agent import Script, SimHarness, SimTranslator, translate
from runtime.testing.sim_loop import elapse, play

LINES = Script(
    pieces=[(0.1, b"start m\n")] + [(0.5, b"say m line %d\n" % at) for at in range(40)] + [(0.1, b"result\n")]
)


class LoudTranslator(SimTranslator):
    """What version 2 makes of the same lines differs in every chunk."""

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        return super().feed(line.upper().replace(b"SAY", b"say").replace(b"RESULT", b"result"), torn)


class Versioned(SimHarness):
    """The made-up harness with a new translator, and those that it keeps."""

    translator_version = 2

    def __init__(self, kept: Collection[int]) -> None:
        self.translator_versions = kept

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        make = {1: SimTranslator, 2: LoudTranslator}[spec.translator_version]
        return make(run_id, str(spec.input.get("threadId", "")))


class Unversioned(SimHarness):
    """A harness that goes on and forgets, without a word about versions."""

    translator_version = 2

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        return LoudTranslator(run_id, str(spec.input.get("threadId", "")))


async def _taken_over(stage: Stage, successor: Harness) -> None:
    """Play a run whose driver had translator 1 and is lost in the middle, and whose next one has `successor`."""
    shard = await stage.open()
    await shard.submit(create())
    driving = asyncio.create_task(stage.drive(shard))
    await elapse(5.0)
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    assert 5 < stage.head().next_seq < 40
    stage.harness = successor
    await stage.drive(shard, 1, "successor")


async def _undisturbed() -> list[bytes]:
    stage = Stage(LINES)
    shard = await stage.open()
    await shard.submit(create())
    await stage.drive(shard)
    return stage.log()


def test_a_run_of_an_older_translator_goes_on_with_it_byte_for_byte() -> None:
    async def acts() -> None:
        whole = await _undisturbed()
        stage = Stage(LINES)
        await _taken_over(stage, Versioned((1, 2)))
        assert stage.head().status is Status.COMPLETED
        assert stage.log() == whole
        assert [claim.chunks > 0 for claim in stage.head().claims] == [True, True]

    play(1, acts())


@pytest.mark.parametrize("successor", [Versioned((2,)), Unversioned()])
def test_a_run_whose_translator_is_gone_ends_with_what_is_stored_and_its_sandbox_is_destroyed(
    successor: Harness,
) -> None:
    async def acts() -> None:
        whole = await _undisturbed()
        stage = Stage(LINES)
        await _taken_over(stage, successor)
        head = stage.head()
        assert (head.status, head.closed, head.claims[-1].end) == (Status.FAILED, True, ClaimEnd.FINISHED)
        assert head.error is not None
        assert head.error.code == "journal_unavailable"
        assert "began with translator 1 of the harness 'sim', which has 2 here" in head.error.message
        assert not stage.world.boxes
        assert not head.destroy_pending
        stored = head.next_seq - 2  # the closer of the open message, and the terminal chunk, are this driver's
        assert stage.log()[:stored] == whole[:stored]
        assert [chunk.chunk_type(data) for data in stage.log()[stored:]] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
        assert head.claims[-1].chunks == 2

    play(1, acts())


def test_a_run_whose_translator_is_gone_before_its_agent_began_launches_none() -> None:
    async def acts() -> None:
        stage = Stage(LINES)
        stage.harness = Versioned((2,))
        shard = await stage.open()
        await shard.submit(create())
        await stage.drive(shard)
        assert stage.head().error is not None
        assert (stage.head().launch, stage.world.started.get(RUN, 0)) == (Launch.NONE, 0)

    play(1, acts())


def test_the_kept_translator_is_the_one_that_a_run_began_with() -> None:
    old, new = (_fed(Versioned((1, 2)), version) for version in (1, 2))
    assert old == translate(RUN, THREAD, LINES.output)
    assert old != new
    with pytest.raises(JournalUnavailable, match="translator 3 of the harness 'sim', which has 1, 2 here"):
        _fed(Versioned((1, 2)), 3)


def _fed(harness: Harness, version: int) -> list[bytes]:
    began = RunSpec(harness="sim", translator_version=version, provider="sim", input=spec().input)
    translator = translator_of(harness, RUN, began)
    return [made for line in LINES.output.splitlines() for made in translator.feed(line)]
