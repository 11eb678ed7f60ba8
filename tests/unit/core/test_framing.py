"""Framing: the same lines at the same positions, however the bytes are cut."""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime.core.framing import Framer, SkippedLine

# (bytes or skipped, end, torn)
Seen = tuple[bytes | SkippedLine, int, bool]


def frame(pieces: Iterable[bytes], start: int = 0, limit: int = 1 << 20) -> list[Seen]:
    """Return every line of `pieces`, with the torn one at the end if there is one."""
    framer = Framer(start, limit)
    seen: list[Seen] = []
    fed = start
    for framed in itertools.chain(map(framer.feed, pieces), (framer.finish() for _ in range(2))):
        assert len(framed.lines) == len(framed.ends)
        for line, end in zip(framed.lines, framed.ends, strict=True):
            what = framed.skipped.get(end, line)
            assert line == b"" or what is line
            seen.append((what, end, framed.torn))
        fed = framer.position
    assert framer.line_start == fed == (seen[-1][1] if seen else start)
    return seen


def expected(data: bytes, start: int, limit: int) -> list[Seen]:
    """Return the lines of `data` by another way: one newline after the other."""
    seen: list[Seen] = []
    at = 0
    while at < len(data):
        newline = data.find(b"\n", at)
        end = len(data) if newline < 0 else newline
        line = data[at:end] if end - at <= limit else SkippedLine(start + at, end - at)
        at = end if newline < 0 else newline + 1
        seen.append((line, start + at, newline < 0))
    return seen


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return `data` in pieces that end at `places`; empty pieces may be among them."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


journals = st.lists(
    st.one_of(
        st.just(b"\n"),
        st.binary(max_size=5),
        st.sampled_from([b"\r\n", b"\xff\xfe", "é\u2028\x85".encode(), b"\x0b\x0c\x1c", b"aaaaaaaaaaaaaaa", b"\n\n"]),
    ),
    max_size=12,
).map(b"".join)


@given(journals, st.lists(st.integers(0, 100), max_size=6), st.integers(0, 1 << 40), st.integers(1, 12))
@example(b"abc\ndef", [1, 2, 3, 4], 0, 3)
@example(b"abcd\nabc\nabcdefgh", [5, 9], 7, 3)
def test_lines_do_not_depend_on_how_the_bytes_are_cut(data: bytes, places: list[int], start: int, limit: int) -> None:
    assert frame(cut(data, places), start, limit) == expected(data, start, limit)


@given(journals, st.integers(1, 4))
def test_byte_by_byte_gives_the_same_lines_as_all_at_once(data: bytes, limit: int) -> None:
    single = [data[at : at + 1] for at in range(len(data))]
    assert frame(single, 0, limit) == frame([data], 0, limit)


@given(journals, st.integers(0, 50))
def test_a_reader_that_resumes_at_the_end_of_a_line_gets_the_rest(data: bytes, which: int) -> None:
    seen = frame([data])
    ends = [0, *(end for _line, end, torn in seen if not torn)]
    resume = ends[which % len(ends)]
    assert frame([data[resume:]], resume) == [each for each in seen if each[1] > resume]


def test_only_byte_0a_ends_a_line() -> None:
    line = b"a\rb\x0bc\x0cd\x85e\xe2\x80\xa8f\x1eg\x00h\r"
    assert frame([line + b"\n"]) == [(line, len(line) + 1, False)]


def test_176_a_bare_newline_yields_an_empty_line() -> None:
    assert frame([b"\n\n"]) == [(b"", 1, False), (b"", 2, False)]


def test_176_a_partial_last_line_is_withheld_until_the_end() -> None:
    framer = Framer(10, 100)
    assert framer.feed(b"a\nbc").lines == [b"a"]
    assert (framer.line_start, framer.position) == (12, 14)
    assert framer.feed(b"").lines == []
    assert framer.finish() == ([b"bc"], [14], {}, True)
    assert framer.finish().lines == []


def test_176_positions_count_bytes_not_characters() -> None:
    assert [end for _line, end, _torn in frame(["éa\n€\n".encode()])] == [4, 8]


def test_a_line_of_exactly_the_limit_is_kept_and_one_byte_more_is_skipped() -> None:
    assert frame([b"abc\nabcd\nab\n"], 100, 3) == [
        (b"abc", 104, False),
        (SkippedLine(104, 4), 109, False),
        (b"ab", 112, False),
    ]


def test_a_torn_line_over_the_limit_is_skipped_too() -> None:
    assert frame([b"ab\nabc", b"def"], 0, 3) == [(b"ab", 3, False), (SkippedLine(3, 6), 9, True)]


@pytest.mark.parametrize("piece", [1, 1000])
def test_a_line_over_the_limit_is_never_held(piece: int) -> None:
    framer, limit, size = Framer(0, 10_000), 10_000, 200_000
    data = b"x" * piece
    tracemalloc.start()
    try:
        for _ in range(size // piece):
            framer.feed(data)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit
    assert framer.feed(b"\nok\n") == ([b"", b"ok"], [size + 1, size + 4], {size + 1: SkippedLine(0, size)}, False)


def test_memory_for_a_long_line_in_small_pieces_is_near_its_length() -> None:
    framer, size = Framer(0, 1 << 20), 200_000
    tracemalloc.start()
    try:
        for _ in range(size):
            framer.feed(b"x")
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * size
    assert framer.feed(b"\n").lines == [b"x" * size]


def test_time_for_a_long_line_is_linear_in_its_length() -> None:
    def seconds(pieces: int) -> float:
        framer, data = Framer(0, 1 << 30), b"x" * 512
        begin = time.process_time()
        for _ in range(pieces):
            framer.feed(data)
        assert len(framer.feed(b"\n").lines[0]) == 512 * pieces
        return time.process_time() - begin

    short, long = min(seconds(2_000) for _ in range(3)), min(seconds(32_000) for _ in range(2))
    # 16 times the bytes; a way that copies what it holds at each piece takes 256 times as long.
    assert long < 80 * short
