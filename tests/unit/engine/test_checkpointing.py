"""A takeover from a checkpoint is one from byte 0, only shorter; and one that is in doubt is one from byte 0 (P25)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest
from unit.engine.stage import RUN, THREAD, Stage, create, rng

from runtime.core.batch import Band
from runtime.core.checkpoint import LOOKBACK_BYTES, MAX_STATE_BYTES, Checkpoint, lookback_digest
from runtime.core.ops import Append, Appended
from runtime.core.record import ClaimReason, RunSpec, Status
from runtime.engine.checkpointing import Marker, Pace
from runtime.engine.concluding import DriveEnd
from runtime.engine.shard import Shard
from runtime.ports import Translator
from runtime.testing.sim_agent import Script, SimHarness, SimTranslator, translate, write_script
from runtime.testing.sim_loop import elapse, play
from runtime.testing.sim_sandbox import SimSandbox

NEVER = Pace(chunks=1 << 60, journal_bytes=1 << 60)
OFTEN = Pace(chunks=3)
TAKEOVERS = 8


async def killed(stage: Stage, shard: Shard, expected: int, seconds: float) -> DriveEnd | None:
    """Drive for a while, then be killed; return the end if it came first."""
    driving = asyncio.create_task(stage.drive(shard, expected, f"driver {expected}"))
    await asyncio.wait((driving,), timeout=seconds)
    if driving.done():
        return driving.result()
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    return None


def band(stage: Stage) -> list[bytes]:
    batches = stage.memory.read_batches(RUN, 0, 1 << 40)
    return [data for one in batches if one.band is Band.JOURNAL for data in one.chunks()]


def checkpoints(stage: Stage) -> list[Checkpoint]:
    """Return those that were stored, in order."""
    return [
        op.checkpoint
        for ops, outcomes in stage.commits
        for op, outcome in zip(ops, outcomes, strict=True)
        if isinstance(op, Append) and op.checkpoint and isinstance(outcome, Appended) and not outcome.repeat
    ]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places in the journal from which somebody followed."""
    found: list[int] = []
    follow = SimSandbox.follow

    def noted(self: SimSandbox, start: int) -> AsyncGenerator[bytes, None]:
        found.append(start)
        return follow(self, start)

    monkeypatch.setattr(SimSandbox, "follow", noted)
    return found


def log_of(seed: int, pace: Pace, taken_over: bool = True) -> tuple[list[bytes], list[Checkpoint]]:
    async def acts() -> tuple[list[bytes], list[Checkpoint]]:
        chance = rng(seed)
        stage = Stage(write_script(chance, lines=120, seconds=15.0))
        stage.pace = pace
        shard = await stage.open()
        await shard.submit(create())
        end, epoch = None, 0
        while end is None:
            end = await killed(stage, shard, epoch, chance.random() * 4.0 if taken_over and epoch < TAKEOVERS else 1e6)
            epoch += 1
        assert end.kind == "finished"
        assert band(stage) == translate(RUN, THREAD, bytes(stage.world.journals[RUN]))
        return stage.log(), checkpoints(stage)

    return play(seed, acts())


@pytest.mark.parametrize("seed", range(15))
def test_the_log_is_the_same_with_checkpoints_and_without(seed: int) -> None:
    undisturbed, none = log_of(seed, NEVER, taken_over=False)
    assert none == []
    for pace in (NEVER, Pace(chunks=1), Pace(chunks=25), Pace(journal_bytes=200)):
        log, taken = log_of(seed, pace)
        assert log == undisturbed
        assert bool(taken) == (pace is not NEVER) or len(log) < 60


STEADY = Script(pieces=[(0.2, b"start m%d\nsay m%d line\nend m%d\n" % (at, at, at)) for at in range(200)])


async def begun(stage: Stage, seconds: float = 20.0) -> tuple[Shard, Checkpoint]:
    """Return a shard and the newest checkpoint of a run whose first driver was killed after a while."""
    stage.pace = Pace(chunks=50)
    shard = await stage.open()
    await shard.submit(create())
    assert await killed(stage, shard, 0, seconds) is None
    newest = stage.memory.read_checkpoint(RUN)
    assert newest is not None
    assert newest.seq > 100
    return shard, newest


def test_a_successor_begins_at_the_checkpoint(starts: list[int]) -> None:
    async def acts() -> None:
        stage = Stage(STEADY)
        shard, newest = await begun(stage)
        await killed(stage, shard, 1, 5.0)
        assert starts == [0, newest.position]
        later = stage.memory.read_checkpoint(RUN)
        assert later is not None
        assert (later.epoch, later.seq > newest.seq, later.position > newest.position) == (2, True, True)
        await stage.drive(shard, 2, "last")
        assert band(stage) == translate(RUN, THREAD, STEADY.output)

    play(1, acts())


Change = Callable[[Checkpoint], dict[str, Any]]
DOUBTS: dict[str, Change] = {
    "another journal": lambda _: {"journal_id": "journal 7"},
    "other bytes before it": lambda _: {"lookback": bytes(32)},
    "a shorter journal": lambda one: {"position": one.position + (1 << 20)},
    "another translator": lambda _: {"translator_version": 2},
    "another harness": lambda _: {"harness": "shell"},
    "a state that is not taken": lambda one: {"translator": one.translator[:-1]},
    "open items that are none": lambda _: {"open_items": b"[]"},
    "a place that the log has not reached": lambda one: {"seq": one.seq + 100_000},
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_every_doubt_leads_to_byte_0(doubt: str, starts: list[int]) -> None:
    async def acts() -> None:
        stage = Stage(STEADY)
        shard, newest = await begun(stage)
        stage.memory._tables.checkpoints[RUN] = msgspec.structs.replace(newest, **DOUBTS[doubt](newest))
        await stage.drive(shard, 1, "successor")
        assert starts == [0, 0]
        assert band(stage) == translate(RUN, THREAD, STEADY.output)
        assert stage.head().status is Status.FAILED  # the script says no result
        opened = sum(b"TEXT_MESSAGE_START" in data for data in stage.log())
        assert opened == sum(b"TEXT_MESSAGE_END" in data for data in stage.log()) == 200

    play(1, acts())


def test_what_a_checkpoint_skips_is_not_compared_and_what_follows_is() -> None:
    async def acts(place: Callable[[Checkpoint], int]) -> str | None:
        stage = Stage(STEADY)
        shard, newest = await begun(stage)
        box = next(iter(stage.world.boxes.values()))
        assert newest.position < LOOKBACK_BYTES
        box.journal[place(newest)] ^= 1
        stage.memory._tables.checkpoints[RUN] = msgspec.structs.replace(newest, lookback=_digest(box, newest))
        await stage.drive(shard, 1, "successor")
        error = stage.head().error
        return error.code if error else None

    assert play(1, acts(lambda _: 20)) == "agent_exit"
    assert play(1, acts(lambda one: one.position + 8)) == "journal_diverged"


def _digest(box: Any, newest: Checkpoint) -> bytes:
    return lookback_digest(bytes(box.journal[: newest.position]))


def test_a_takeover_reads_what_came_after_the_checkpoint_and_no_more(
    starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []
    stretch = SimSandbox.read_journal

    async def noted(self: SimSandbox, start: int, size: int) -> bytes:
        read.append((start, size))
        return await stretch(self, start, size)

    monkeypatch.setattr(SimSandbox, "read_journal", noted)

    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.1, b"say m %s\n" % (b"x" * 900)) for _ in range(1000)]))
        shard, newest = await begun(stage, 93.0)
        stored: list[int] = []
        batches = stage.memory.read_batches

        def asked(run_id: str, after: int, max_bytes: int) -> list[Any]:
            found = batches(run_id, after, max_bytes)
            stored.extend(batch.seq for batch in found)
            return found

        monkeypatch.setattr(stage.memory, "read_batches", asked)
        length = stage.head().next_seq
        await killed(stage, shard, 1, 1.0)
        assert length > 800
        assert read == [(newest.position - LOOKBACK_BYTES, LOOKBACK_BYTES)]
        assert starts == [0, newest.position]
        assert stored
        assert min(stored) >= newest.seq
        assert len(stored) <= length - newest.seq < 60

    play(1, acts())


def test_what_was_open_at_the_checkpoint_is_closed_at_the_end() -> None:
    async def acts() -> None:
        pieces = [(0.1, b"start early\n"), *[(0.1, b"line\n")] * 300]
        stage = Stage(Script(pieces=pieces))
        shard, newest = await begun(stage)
        assert newest.seq > 10
        await stage.drive(shard, 1, "successor")
        closers = [data for data in stage.log() if b"TEXT_MESSAGE_END" in data]
        assert closers == [b'{"messageId":"early","type":"TEXT_MESSAGE_END"}']

    play(1, acts())


def test_an_effect_from_before_the_checkpoint_happens_once() -> None:
    async def acts() -> None:
        stage = Stage(STEADY)
        stage.pace = Pace(chunks=20)
        shard = await stage.open()
        await shard.submit(create())
        first = stage.driver(shard, "first")
        driving = asyncio.create_task(first.drive(0, ClaimReason.START))
        await elapse(1.0)
        place = await first.emit("effect", 1, "key-1")
        await elapse(10.0)
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        newest = stage.memory.read_checkpoint(RUN)
        assert newest is not None
        assert newest.seq > place
        second = stage.driver(shard, "second")
        driving = asyncio.create_task(second.drive(1, ClaimReason.START))
        await elapse(1.0)
        assert await second.emit("effect", 1, "key-1") == place
        assert await second.emit("effect", 2, "key-2") > place
        await driving
        assert sum(b'"effect"' in data for data in stage.log()) == 2

    play(1, acts())


class Forgetful(SimHarness):
    """A user's plugin: its translators cannot be put aside."""

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        inner = super().translator(run_id, spec)
        return Plain(inner)


class Plain:
    def __init__(self, inner: Translator) -> None:
        self._inner = inner

    @property
    def has_result(self) -> bool:
        return self._inner.has_result

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        return self._inner.feed(line, torn)

    def finish(self, exit: Any, stderr: bytes) -> Any:
        return self._inner.finish(exit, stderr)


def test_a_translator_that_cannot_be_put_aside_has_no_checkpoints_and_drives_as_ever(starts: list[int]) -> None:
    async def acts() -> None:
        stage = Stage(STEADY)
        stage.pace = OFTEN
        stage.harness = Forgetful()
        shard = await stage.open()
        await shard.submit(create())
        await killed(stage, shard, 0, 20.0)
        await stage.drive(shard, 1, "successor")
        assert checkpoints(stage) == []
        assert starts == [0, 0]
        assert band(stage) == translate(RUN, THREAD, STEADY.output)

    play(1, acts())


def test_a_state_beyond_the_bound_or_a_translator_that_fails_costs_only_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_self: SimTranslator) -> bytes:
        raise RuntimeError("cannot")

    async def acts(state: Callable[[SimTranslator], bytes]) -> None:
        monkeypatch.setattr(SimTranslator, "state", state)
        stage = Stage(STEADY)
        stage.pace = OFTEN
        shard = await stage.open()
        await shard.submit(create())
        await stage.drive(shard)
        assert checkpoints(stage) == []
        assert band(stage) == translate(RUN, THREAD, STEADY.output)

    for seed, state in enumerate((fails, lambda _self: bytes(MAX_STATE_BYTES + 1))):
        play(seed, acts(state))


def test_no_checkpoint_is_of_half_a_line() -> None:
    async def acts() -> None:
        stage = Stage(write_script(rng(5), lines=300, seconds=10.0))
        stage.pace = Pace(chunks=1)
        shard = await stage.open()
        await shard.submit(create())
        await stage.drive(shard)
        journal = bytes(stage.world.journals[RUN])
        taken = checkpoints(stage)
        assert len(taken) > 10
        for one in taken:
            assert journal[one.position - 1 : one.position] == b"\n"
            assert one.journal_chunks == len(translate(RUN, THREAD, journal[: one.position]))

    play(5, acts())


@pytest.mark.parametrize("size", [1, 7, 1000, 60_000, 128 << 10])
def test_the_lookback_is_of_the_bytes_before_the_line_however_they_came(size: int) -> None:
    journal = b"".join(b"%d %s\n" % (at, b"y" * (at * 37 % 5000)) for at in range(400))[: 100 * size + 1000]
    marker = Marker(Pace(chunks=1), SimTranslator(RUN, THREAD), "j", "sim", 1)
    made = 0
    for at in range(0, len(journal), size):
        marker.read(journal[at : at + size])
        end = journal.rfind(b"\n", 0, at + size) + 1
        mark = marker.mark(end, made + 1) if end else None
        if mark is not None:
            made += 1
            assert mark.position == end
            assert mark.lookback == lookback_digest(journal[:end])
    assert made > 1 or len(journal) < 2000
