"""Frames are the stored bytes with an offset before them, however the log was cut into pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core import chunk
from serve_app.frames import NDJSON, SSE, Format, Piece, accepted

chunks = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers() | st.none(), max_size=3).map(
        chunk.encode
    ),
    min_size=1,
    max_size=30,
)


def pieces_of(data: list[bytes], cuts: list[int]) -> list[Piece]:
    bounds = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return [Piece(a, b, b"\n".join(data[a:b])) for a, b in pairwise(bounds)]


@given(chunks, st.lists(st.integers(0, 100), max_size=5), st.integers(0, 100))
def test_frames_do_not_depend_on_how_the_log_is_cut(data: list[bytes], cuts: list[int], start: int) -> None:
    start %= len(data)
    for format in (SSE, NDJSON):
        whole = format.frames(0, start, data[start:])
        cut = b"".join(
            piece.frames_from(max(start, piece.start), format) for piece in pieces_of(data, cuts) if piece.end > start
        )
        assert cut == whole


@given(chunks)
def test_both_formats_hold_every_chunk_byte_for_byte(data: list[bytes]) -> None:
    piece = Piece(0, len(data), b"\n".join(data))
    sse = piece.frames(SSE).split(b"\n\n")[:-1]
    lines = piece.frames(NDJSON).split(b"\n")[:-1]
    for position, (event, line, stored) in enumerate(zip(sse, lines, data, strict=True), 1):
        assert event == b"id: 0000000000000000_%016d\ndata: %b" % (position, stored)
        assert line == b'{"id":"0000000000000000_%016d","chunk":%b}' % (position, stored)
        assert json.loads(line)["chunk"] == json.loads(stored)


def test_the_generation_is_part_of_the_offset() -> None:
    assert Piece(4, 5, b"{}", generation=3).frames(SSE) == b"id: 0000000000000003_0000000000000005\ndata: {}\n\n"


def test_frames_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = Format.frames

    def counting(self: Format, *args: object) -> bytes:
        made.append(self.name)
        return make(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Format, "frames", counting)
    piece = Piece(0, 2, b"1\n2")
    assert piece.frames(SSE) is piece.frames(SSE)
    piece.frames(NDJSON)
    piece.frames(NDJSON)
    assert made == ["sse", "ndjson"]


def test_a_piece_that_does_not_hold_what_it_says_is_not_sent() -> None:
    with pytest.raises(ValueError, match="promised"):
        Piece(0, 3, b"1\n2").frames(SSE)


@pytest.mark.parametrize(
    ("data", "opening"),
    [
        ([chunk.run_accepted()], None),
        ([chunk.run_accepted(), chunk.run_waiting("workspace")], None),
        ([chunk.run_waiting("workspace"), chunk.run_started("r", "t")], 11),
        ([chunk.run_accepted(), chunk.run_started("r", "t"), chunk.run_finished("r", "t")], 11),
        ([chunk.custom("x", {"type": "RUN_STARTED"}), chunk.run_error("r", "m", "c")], 11),
    ],
)
def test_where_a_strict_client_s_stream_opens(data: list[bytes], opening: int | None) -> None:
    assert Piece(10, 10 + len(data), b"\n".join(data)).opening() == opening


def test_the_first_piece_is_what_a_creation_stores() -> None:
    piece = accepted(3)
    assert (piece.start, piece.end, piece.data, piece.generation) == (0, 1, chunk.run_accepted(), 3)
