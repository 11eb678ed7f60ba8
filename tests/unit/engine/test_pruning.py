"""What is too old goes: a reader in the middle of it gets the rest or is told, and whoever dies in the middle of the
removal has a successor that ends it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from unit.engine.ended_yard import LOG_S, TRANSCRIPT_S, WORDS, ended, mark, one_more
from unit.engine.stage import RUN

from runtime.core.ops import OpenSupervisor
from runtime.core.record import Head, Kept
from runtime.core.transcript import Transcript
from runtime.engine import telling
from runtime.engine.pruning import Pruned
from runtime.engine.shard import Shard
from runtime.engine.tails import skip
from runtime.errors import InputInvalid, StoreError, StoreRefused
from runtime.ports import ReadReply, ShardPort
from runtime.settings import load
from runtime.testing.sim_loop import elapse, play


async def _rest(shard: Shard, after: int, log: list[bytes]) -> str:
    """Read on after `after` until the end, or until one is told; what comes must be what the log had there."""
    for _ in range(100):
        try:
            reply = await shard.read(RUN, after, 0, inline=after % 3 == 0)
        except StoreError:
            return "asked to come again"
        if reply.gone:
            return "gone"
        assert chunks(reply) == log[after : reply.next], "a gap, or another's"
        assert reply.next > after or reply.closed
        after = reply.next
        await elapse(0.0005)
        if reply.closed:
            assert after == len(log)
            return "the rest"
    raise AssertionError("it never ends")


def chunks(reply: ReadReply) -> list[bytes]:
    found: list[bytes] = []
    pieces = [(sealed.start, sealed.ref) for sealed in reply.segments]
    for start, data in [*pieces, *([(reply.tail_start, reply.tail)] if reply.tail_count else [])]:
        found += skip(data, reply.start + len(found) - start).split(b"\n")
    return found


def test_a_log_goes_when_its_time_is_over_and_its_transcript_later() -> None:
    async def acts() -> None:
        yard = await ended()
        stage = yard.acts.stage
        assert (await yard.reaper.sweep()).pruned == Pruned()
        await elapse(LOG_S - 1.0)
        assert (await yard.reaper.sweep()).pruned == Pruned()
        await elapse(2.0)
        before = stage.head()
        assert (await yard.reaper.sweep(dry_run=True)).pruned == Pruned(logs=1)
        assert (stage.head(), len(stage.log())) == (before, WORDS + 2)
        assert (await yard.reaper.sweep()).pruned == Pruned(logs=1)
        assert (stage.head().kept, stage.log()) == (Kept.TRANSCRIPT, [])
        assert stage.memory.read_transcript(RUN) is not None
        assert (await yard.reaper.sweep()).pruned == Pruned()
        await elapse(TRANSCRIPT_S - LOG_S)
        assert (await yard.reaper.sweep(dry_run=True)).pruned == Pruned(transcripts=1)
        assert (await yard.reaper.sweep()).pruned == Pruned(transcripts=1)
        assert (stage.head().kept, stage.memory.read_transcript(RUN)) == (Kept.RECORD, None)
        assert yard.pruner.counts == {"log": 1, "transcript": 1}
        await yard.close()

    play(1, acts())


@pytest.mark.parametrize(("retention", "kept"), [((0, 0), Kept.LOG), ((1, 0), Kept.TRANSCRIPT)])
def test_without_a_retention_it_is_kept_for_ever(retention: tuple[int, int], kept: Kept) -> None:
    async def acts() -> None:
        yard = await ended(retention)
        await elapse(500.0)
        await yard.reaper.sweep()
        assert yard.acts.stage.head().kept is kept
        await yard.close()

    play(1, acts())


@pytest.mark.parametrize(("logs", "transcripts"), [("100", "99"), ("0", "1"), ("", "86400")])
def test_transcripts_are_never_kept_shorter_than_logs(logs: str, transcripts: str) -> None:
    env = {"OUTLAST_LOG_RETENTION_S": logs, "OUTLAST_TRANSCRIPT_RETENTION_S": transcripts}
    with pytest.raises(InputInvalid, match=r"OUTLAST_TRANSCRIPT_RETENTION_S.*OUTLAST_LOG_RETENTION_S") as refusal:
        load({name: value for name, value in env.items() if value})
    assert (refusal.value.code, refusal.value.field) == ("setting_invalid", "TRANSCRIPT_RETENTION_S")
    assert load({"OUTLAST_LOG_RETENTION_S": "100", "OUTLAST_TRANSCRIPT_RETENTION_S": "100"}).log_retention_s == 100


@pytest.mark.parametrize("pieces", range(9))
def test_a_supervisor_that_dies_in_the_middle_has_a_successor_that_ends_it(pieces: int) -> None:
    """Marked, and so many pieces removed; with the last ones nothing is left, and that is not written down."""

    async def acts() -> None:
        yard = await ended((10_000, 0))
        shard, stage = yard.acts.shard, yard.acts.stage
        await shard.submit(mark(yard))
        for _ in range(pieces):
            await shard.drop_log(RUN)
        assert stage.head().kept is Kept.DROPPING
        again = await stage.open()
        assert (await yard.another(again).sweep()).pruned == Pruned(logs=1)
        assert (stage.head().kept, stage.log()) == (Kept.TRANSCRIPT, [])
        await again.close()
        await yard.close()

    play(1, acts())


def test_a_supervisor_that_was_replaced_removes_nothing() -> None:
    async def acts() -> None:
        yard = await ended()
        await elapse(LOG_S + 1.0)
        await yard.acts.shard.submit(OpenSupervisor(claimant="a newer one"))
        assert (await yard.reaper.sweep()).pruned == Pruned()
        assert yard.acts.supervisor.stale.is_set()
        assert (yard.acts.stage.head().kept, len(yard.acts.stage.log())) == (Kept.LOG, WORDS + 2)
        await yard.close()

    play(1, acts())


class Bytes:
    """An object store whose refs are the segments themselves."""

    def put(self, data: bytes) -> bytes:
        return data


async def _readers_while_it_goes(pieces: int, *, heard: bool) -> set[str]:
    """Read from every place while a log is removed: at the shard that removes it, or at one that was replaced by that
    and has not heard of anything."""
    yard = await ended()
    stage = yard.acts.stage
    log = stage.log()
    read = await stage.open(cast("Any", Bytes()))
    await read.read(RUN, 8, 0)  # some of it is sealed then
    removing = read if heard else await stage.open()
    readers = [asyncio.create_task(_rest(read, after, log)) for after in range(len(log))]
    await elapse(0.003 * stage.loop.rng.random())
    await removing.submit(mark(yard))
    for _ in range(pieces):
        await removing.drop_log(RUN)
        await elapse(0.003 * stage.loop.rng.random())
    found = set(await asyncio.gather(*readers))
    if heard:
        assert {await _rest(read, after, log) for after in range(len(log))} == {"gone"}
        assert read._tails[RUN].sealed == []
    await yard.close()
    return found


@pytest.mark.parametrize("pieces", [0, 1, 3, 9])
def test_a_reader_in_the_middle_gets_the_rest_or_is_told(pieces: int) -> None:
    ends = [play(seed, _readers_while_it_goes(pieces, heard=True)) for seed in range(1, 9)]
    assert {"the rest", "gone"} <= set().union(*ends) <= {"the rest", "gone", "asked to come again"}


@pytest.mark.parametrize("pieces", [0, 1, 3, 9])
def test_a_reader_of_a_shard_that_was_replaced_meets_no_gap(pieces: int) -> None:
    ends = [play(seed, _readers_while_it_goes(pieces, heard=False)) for seed in range(1, 9)]
    assert set().union(*ends) <= {"the rest", "asked to come again"}


def test_one_runs_trouble_holds_up_no_other() -> None:
    async def acts() -> None:
        yard = await ended()
        await one_more(yard)
        await elapse(LOG_S + 1.0)

        class Damaged:
            """A shard that cannot remove the log of the run that is first."""

            def __getattr__(self, name: str) -> Any:
                return getattr(yard.acts.shard, name)

            async def drop_log(self, run_id: str) -> int:
                if run_id == RUN:
                    raise StoreRefused("a row is damaged")
                return await yard.acts.shard.drop_log(run_id)

        report = await yard.another(Damaged()).sweep()
        assert report.pruned == Pruned(logs=1)
        assert [RUN in failure for failure in report.failures] == [True]
        assert [yard.acts.stage.head(run_id).kept for run_id in (RUN, "run-2")] == [Kept.DROPPING, Kept.TRANSCRIPT]
        assert (await yard.another().sweep()).pruned == Pruned(logs=1)
        await yard.close()

    play(1, acts())


def test_a_store_that_hangs_over_one_log_bounds_the_turn() -> None:
    async def acts() -> None:
        yard = await ended()
        await elapse(LOG_S + 1.0)

        class Hung:
            """A shard that never answers about a log's removal."""

            def __getattr__(self, name: str) -> Any:
                return getattr(yard.acts.shard, name)

            async def drop_log(self, run_id: str) -> int:
                await elapse(3600.0)
                return len(run_id)

        begun = yard.acts.stage.loop.time()
        assert (await yard.another(cast("ShardPort", Hung())).sweep()).pruned == Pruned()
        assert yard.acts.stage.loop.time() - begun < 10.0
        await yard.close()

    play(1, acts())


def test_a_log_that_is_folded_while_it_goes_tells_nothing_rather_than_its_beginning() -> None:
    async def acts() -> None:
        yard = await ended((LOG_S, LOG_S))
        await elapse(LOG_S + 1.0)
        stage, shard = yard.acts.stage, yard.acts.shard
        before = stage.head()

        class Late:
            """A shard whose log goes between two pages that are asked of it."""

            def __getattr__(self, name: str) -> Any:
                return getattr(shard, name)

            async def batches(self, run_id: str, after: int) -> Any:
                found = await shard.batches(run_id, after)
                await yard.reaper.sweep()
                return found[:1]

        async def ask(call: Any) -> Any:
            return await call()

        assert await telling._so_far(before, cast("ShardPort", Late()), ask, 1 << 20) == Transcript()
        head: Head = stage.head()
        assert await telling._so_far(head, cast("ShardPort", shard), ask, 1 << 20) == Transcript()
        await yard.close()

    play(1, acts())
