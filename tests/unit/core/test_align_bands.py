"""Alignment with bands (P24): a replay meets exactly the journal's chunks, wherever live ones lie between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core import chunk
from runtime.core.align import BandAligner
from runtime.core.batch import Band, Batch
from runtime.core.fingerprint import fingerprint
from runtime.errors import JournalReplayDivergedError, JournalReplayThreadIdMismatchError


def text(n: int, **more: Any) -> bytes:
    return chunk.encode({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": f"d{n}", **more})


def live(n: int) -> bytes:
    return chunk.custom("sandbox.file", {"n": n})


def log(*batches: tuple[Band, list[bytes]]) -> list[Batch]:
    """Return stored batches, one after the other from position 0."""
    stored, seq = [], 0
    for band, chunks in batches:
        data = b"\n".join(chunks)
        stored.append(Batch(run_id="r", seq=seq, count=len(chunks), epoch=1, band=band, data=data))
        seq += len(chunks)
    return stored


def journal(*sizes: int) -> list[Batch]:
    """Return a log of journal batches of these sizes that hold text(0), text(1), ..."""
    numbers = itertools.count()
    return log(*((Band.JOURNAL, [text(next(numbers)) for _ in range(size)]) for size in sizes))


def cut(chunks: list[bytes], at: list[int]) -> Iterator[list[bytes]]:
    """Yield `chunks` in pieces that begin at the places `at`."""
    edges = sorted({0, len(chunks), *(place % (len(chunks) + 1) for place in at)})
    for start, end in itertools.pairwise(edges):
        yield chunks[start:end]


logs = st.lists(st.tuples(st.sampled_from(Band), st.integers(0, 4)), max_size=8)


@given(logs, st.integers(0, 5), st.lists(st.integers(0, 40), max_size=6))
def test_a_replay_of_the_own_log_yields_only_what_follows_it(
    shape: list[tuple[Band, int]], new: int, at: list[int]
) -> None:
    numbers = itertools.count()
    batches = [
        (band, [text(n) if band == Band.JOURNAL else live(n) for n in itertools.islice(numbers, size)])
        for band, size in shape
    ]
    old = [each for band, chunks in batches for each in chunks if band == Band.JOURNAL]
    fresh = [text(1000 + n) for n in range(new)]
    aligner = BandAligner(log(*batches))
    assert aligner.total == aligner.remaining == len(old)
    got = []
    for piece in cut(old + fresh, at):
        kept = aligner.feed(piece)
        assert kept == piece[len(piece) - len(kept) :]
        got += kept
    aligner.finish()
    assert got == fresh
    assert aligner.done
    assert aligner.matched == len(old)
    assert aligner.remaining == 0


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_any_cut_of_a_replay_ends_at_the_same_difference(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    wrong = data.draw(st.integers(0, total - 1))
    replay = [text(n) for n in range(total + 3)]
    replay[wrong] = text(7777)
    aligner = BandAligner(journal(*sizes))
    pieces = list(cut(replay, data.draw(st.lists(st.integers(0, 40), max_size=6))))
    got: list[bytes] = []
    with pytest.raises(JournalReplayDivergedError) as caught:
        got.extend(each for piece in pieces for each in aligner.feed(piece))
    assert got == []
    assert caught.value.index == wrong
    assert caught.value.stored == fingerprint(chunk.decode_chunk(text(wrong)))
    assert caught.value.replayed == fingerprint(chunk.decode_chunk(text(7777)))
    assert aligner.matched == wrong
    assert not aligner.done


def test_nothing_is_handed_out_after_a_difference() -> None:
    aligner = BandAligner(journal(2))
    for call in (lambda: aligner.feed([text(0), text(5), text(6)]), lambda: aligner.feed([text(1)]), aligner.finish):
        with pytest.raises(JournalReplayDivergedError) as caught:
            call()
        assert caught.value.index == 1


def test_an_empty_log_hands_out_everything() -> None:
    aligner = BandAligner([])
    assert aligner.done
    assert aligner.feed([text(0), text(1)]) == [text(0), text(1)]
    aligner.finish()


def test_a_log_of_live_chunks_hands_out_everything() -> None:
    aligner = BandAligner(log((Band.LIVE, [chunk.run_accepted(), live(1)])))
    assert aligner.done
    assert aligner.feed([text(0)]) == [text(0)]


def test_two_hundred_live_chunks_in_a_row_do_no_harm() -> None:
    batches = [(Band.JOURNAL, [text(0)]), *[(Band.LIVE, [live(n)]) for n in range(200)], (Band.JOURNAL, [text(1)])]
    aligner = BandAligner(log(*batches))
    assert aligner.feed([text(0), text(1), text(2)]) == [text(2)]


def test_a_custom_chunk_of_the_journal_must_come_again() -> None:
    stored = log((Band.JOURNAL, [live(1), text(1)]))
    assert BandAligner(stored).feed([live(1), text(1)]) == []
    with pytest.raises(JournalReplayDivergedError):
        BandAligner(stored).feed([text(1)])


def test_chunks_that_differ_in_bytes_alone_match() -> None:
    stored = log((Band.JOURNAL, [text(n, timestamp=n, model="a") for n in range(3)]))
    aligner = BandAligner(stored)
    assert aligner.feed([text(n, timestamp=50 + n) for n in range(4)]) == [text(3, timestamp=53)]
    aligner.finish()


def test_positions_in_errors_are_positions_in_the_log() -> None:
    aligner = BandAligner(log((Band.LIVE, [live(1), live(2)]), (Band.JOURNAL, [text(0), text(1)])))
    aligner.feed([text(0)])
    with pytest.raises(JournalReplayDivergedError) as caught:
        aligner.feed([text(9)])
    assert caught.value.index == 3


@pytest.mark.parametrize("replayed", [0, 1, 2, 3, 4])
def test_a_replay_that_ends_early_is_told_by_remaining_and_refused_by_finish(replayed: int) -> None:
    aligner = BandAligner(journal(2, 3))
    assert aligner.feed([text(n) for n in range(replayed)]) == []
    assert aligner.remaining == 5 - replayed
    for _ in range(2):
        with pytest.raises(JournalReplayDivergedError, match=f"ended with {5 - replayed} stored") as caught:
            aligner.finish()
        assert caught.value.index == replayed
        assert caught.value.stored == fingerprint(chunk.decode_chunk(text(replayed)))


def test_a_run_of_another_thread_is_told_from_another_story() -> None:
    aligner = BandAligner(log((Band.JOURNAL, [chunk.run_started("r", "t1")])))
    with pytest.raises(JournalReplayThreadIdMismatchError) as caught:
        aligner.feed([chunk.run_started("r", "t2")])
    assert (caught.value.stored_thread_id, caught.value.replayed_thread_id) == ("t1", "t2")


def test_an_error_shows_long_chunks_where_they_differ() -> None:
    old, new = "x" * 5_000_000 + "old" + "y" * 9000, "x" * 5_000_000 + "new"
    aligner = BandAligner(log((Band.JOURNAL, [text(0, delta=old)])))
    with pytest.raises(JournalReplayDivergedError) as caught:
        aligner.feed([text(0, delta=new)])
    assert "old" in caught.value.stored
    assert "new" in caught.value.replayed
    assert len(str(caught.value)) < 5000


def test_batches_without_chunks_are_passed_over() -> None:
    aligner = BandAligner(log((Band.JOURNAL, []), (Band.JOURNAL, [text(0)]), (Band.JOURNAL, [])))
    assert aligner.feed([text(0), text(1)]) == [text(1)]
