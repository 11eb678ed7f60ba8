"""The canonical form: one value, one text, whichever way wrote it and however deep the caller's stack is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from unit.core.event_values import any_number, any_object, any_text, events, integers, objects, plain_text

from runtime.core import chunk

GOLDEN = Path(__file__).parents[2] / "golden" / "chunks.ndjson"


def joined(value: Any) -> Any:
    """Return `value` as it comes back: surrogate pairs are characters, tuples are lists."""
    if isinstance(value, str):
        return chunk.join_surrogates(value)
    if isinstance(value, dict):
        return {chunk.join_surrogates(key): joined(item) for key, item in value.items()}
    if isinstance(value, list):
        return [joined(item) for item in value]
    return value


def exact(value: Any) -> str:
    """Return a text that tells 1 from 1.0 and 0.0 from -0.0, which == does not, and forgets the order of keys."""
    return json.dumps(value, sort_keys=True)


@given(objects(plain_text, integers))
def test_the_bytes_are_those_of_sorted_compact_utf8_json(event: dict[str, Any]) -> None:
    expected = json.dumps(event, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    assert chunk.encode(event) == expected.encode()


@given(objects(plain_text, any_number))
@example({"x": [1e16, 1e-7, 1e-5, -0.0, 1.0, 1e22, 5e-324, 2**64, -(2**63) - 1, 0.1, 1e15]})
def test_both_ways_give_the_same_bytes(event: dict[str, Any]) -> None:
    assert chunk._write(event) == chunk.encode(event)


@given(any_object, any_number)
def test_a_lone_surrogate_elsewhere_changes_no_byte_of_a_number(event: dict[str, Any], number: float) -> None:
    alone = chunk.encode({"n": number})
    assert chunk.encode({"n": number, "s": "\ud800"}) == alone[:-1] + b',"s":"\\ud800"}'
    assert json.loads(chunk.encode({**event, "s": "\ud800"})) is not None


@given(any_object)
def test_decode_returns_what_was_encoded(event: dict[str, Any]) -> None:
    data = chunk.encode(event)
    assert exact(chunk.decode_chunk(data)) == exact(joined(event))
    assert exact(chunk.decode(data)) == exact(joined(event))
    assert exact(json.loads(data)) == exact(joined(event))


@given(any_object)
def test_encoding_again_gives_the_same_bytes(event: dict[str, Any]) -> None:
    data = chunk.encode(event)
    assert chunk.encode(chunk.decode_chunk(data)) == data


@given(any_object)
def test_the_order_of_keys_does_not_show(event: dict[str, Any]) -> None:
    assert chunk.encode(dict(reversed(event.items()))) == chunk.encode(event)


@given(any_object)
def test_a_chunk_has_no_newline_and_is_utf8(event: dict[str, Any]) -> None:
    data = chunk.encode(event)
    assert b"\n" not in data
    assert data.decode()


def test_keys_are_sorted_by_code_point_at_every_depth() -> None:
    inner = {"\U0001f600": 1, "\uffff": 2, "\ue000": 3, "b": 4, "B": 5, "": 6}
    assert list(json.loads(chunk.encode({"k": [inner]}))["k"][0]) == ["", "B", "b", "\ue000", "\uffff", "\U0001f600"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_become_null(number: float) -> None:
    assert chunk.encode({"a": number}) == b'{"a":null}'
    assert chunk.encode({"a": number, "b": "\ud800"}) == b'{"a":null,"b":"\\ud800"}'


def test_integers_are_exact() -> None:
    assert chunk.encode({"a": 2**80 + 1}) == b'{"a":1208925819614629174706177}'
    assert chunk.decode(b"9007199254740993") == 9007199254740993


def test_keys_that_are_numbers_become_text_and_other_objects_are_refused() -> None:
    assert chunk.encode({1: 2, "b": 3}) == b'{"1":2,"b":3}'  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        chunk.encode({"a": object()})


def test_a_pair_of_surrogates_is_the_character_that_it_stands_for() -> None:
    assert chunk.encode({"a": "\ud83d\ude00", "\ud83d\ude00": 1}) == '{"a":"😀","😀":1}'.encode()
    assert chunk.encode({"a": "\ude00\ud83d"}) == b'{"a":"\\ude00\\ud83d"}'


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'"\\ud800"', "\ud800"),
        (b'"\xff"', "\ufffd"),
        (b"\xef\xbb\xbf[1]", [1]),
        (b"NaN", None),
        (b"1e400", None),
        (b' {"a" : 1}\r', {"a": 1}),
        (b'{"a":1,"a":2}', {"a": 2}),
    ],
)
def test_what_a_browser_or_the_standard_library_reads_is_read(line: bytes, value: Any) -> None:
    read = chunk.decode(line)
    assert (None if isinstance(read, float) else read) == value


@pytest.mark.parametrize("line", [b"", b" ", b"hello", b"[1,]", b'"a\tb"', b"01", b"{'a':1}", b"{", b"1" * 5000])
def test_what_is_no_json_raises_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the class is the promise
        chunk.decode(line)


@given(st.binary(max_size=40))
def test_decode_raises_nothing_but_value_error(line: bytes) -> None:
    try:
        value = chunk.decode(line)
    except ValueError:
        return
    chunk.encode({"value": value})


def nested(depth: int, inner: bytes) -> bytes:
    """Return JSON of `depth` containers, arrays and objects in turns, around `inner`."""
    for level in range(depth):
        inner = b"[" + inner + b"]" if level % 2 else b'{"a":' + inner + b"}"
    return inner


def with_frames(count: int, call: Callable[[], Any]) -> Any:
    """Return `call()` with `count` more frames on the stack."""
    return with_frames(count - 1, call) if count else call()


@pytest.mark.parametrize("inner", [b"1", b'"\\ud800"', b'"' + b"[{" * 500 + b'"'])
@pytest.mark.parametrize("frames", [0, 400])
def test_the_bound_on_depth_does_not_depend_on_the_callers_stack(inner: bytes, frames: int) -> None:
    deepest = nested(chunk.MAX_DEPTH, inner)
    value = with_frames(frames, lambda: chunk.decode(deepest))
    raw = with_frames(frames, lambda: chunk.raw_event(value, "t"))
    assert with_frames(frames, lambda: chunk.encode(chunk.decode_chunk(raw))) == raw
    for depth in (chunk.MAX_DEPTH + 1, 700, 5000, 50_000):
        too_deep = nested(depth, inner)
        with pytest.raises(ValueError):  # noqa: PT011
            with_frames(frames, lambda line=too_deep: chunk.decode(line))  # type: ignore[misc]


def test_an_event_too_deep_for_the_stack_is_refused() -> None:
    value: Any = 1
    for _ in range(3000):
        value = [value]
    for text in ("a", "\ud800"):
        with pytest.raises(ValueError, match="deep"):
            chunk.encode({"s": text, "v": value})


@given(events(any_text))
@example({"type": "A\\B"})
@example({"type": 'A"B'})
@example({"type": "é"})
@example({"type": "CUSTOM", "value": {"type": "RUN_ERROR"}})
@example({"metadata": {"type": "RUN_ERROR"}, "type": "RAW"})
@example({"metadata": {"type": "RUN_ERROR"}})
@example({"delta": '","type":"RUN_ERROR"}'})
@example({'x,"type': "RUN_ERROR"})
@example({'"type': "RUN_ERROR"})
@example({"a": 1, 'x"type': "RUN_ERROR"})
@example({"a": [{"type": "RUN_ERROR"}]})
@example({"type": None})
@example({"type": ""})
@example({"type": "T" * 60})
@example({})
def test_the_type_is_found_whatever_else_the_event_holds(event: dict[str, Any]) -> None:
    kind = joined(event).get("type")
    assert chunk.chunk_type(chunk.encode(event)) == (kind if isinstance(kind, str) else "")


@given(any_object)
def test_an_event_without_a_type_has_none(event: dict[str, Any]) -> None:
    event.pop("type", None)
    assert chunk.chunk_type(chunk.encode(event)) == ""


def test_a_stored_chunk_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="object"):
        chunk.decode_chunk(b"[]")


def test_the_chunks_that_outlast_makes_are_those_of_the_golden_file() -> None:
    made = [
        chunk.run_accepted(),
        chunk.run_started("r1", "t1"),
        chunk.run_error("r1", "it failed", "agent_exit"),
        chunk.run_finished("r1", "t1"),
        chunk.run_finished("r1", "t1", "length", result={"exitCode": 0}),
        chunk.raw_event({"kind": "new", "n": 1.5}, "claude-code"),
        chunk.stdout_line("hé\r".encode(), torn=False),
        chunk.stdout_line(b"\xffpart", torn=True),
        chunk.line_skipped(1024, 70_000_000),
        chunk.custom("n", [1], runId="r1"),
    ]
    assert b"\n".join([*made, b""]) == GOLDEN.read_bytes()
