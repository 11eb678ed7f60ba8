"""The hot path gives what the generic path gives, byte for byte, on every line; and nothing raises."""

from __future__ import annotations

import pytest
import recorded
from agent_runs import OK, RUN, THREAD
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.core import chunk
from runtime.harnesses.claude_line import HOT_LINE, decode_hot
from runtime.harnesses.claude_stream import ClaudeTranslator
from runtime.testing.harness_kit import HOSTILE_LINES
from runtime.testing.stream_json import stream_json

REAL = [line for name in recorded.names("claude") for line in recorded.load(name).lines if len(line) < 5_000]
STREAMED = [line for line in REAL if line.startswith(b'{"type":"stream_event"')]
HOT = [line for line in REAL if line.startswith(HOT_LINE)]
START = b'{"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"text"}}}'
TAIL = b'},"session_id":"s","parent_tool_use_id":null,"uuid":"u"}'

DEEP = b"[" * 300 + b"]" * 300  # deeper than chunk.MAX_DEPTH, and no trouble to a decoder


def hot(delta: bytes, index: bytes = b"0", tail: bytes = TAIL) -> bytes:
    return HOT_LINE + b'"index":' + index + b',"delta":' + delta + tail


def assert_same(lines: list[bytes]) -> int:
    """Feed both paths; return how many chunks came."""
    fast, slow = ClaudeTranslator(RUN, THREAD), ClaudeTranslator(RUN, THREAD)
    count = 0
    for line in lines:
        made = fast.feed(line)
        assert made == slow.feed_generic(line), line[:500]
        for data in made:
            assert chunk.encode(chunk.decode_chunk(data)) == data
        count += len(made)
    assert fast.finish(OK, b"") == slow.finish(OK, b"")
    assert fast.has_result == slow.has_result
    return count


@pytest.mark.parametrize("name", recorded.names("claude"))
def test_both_paths_agree_on_recordings(name: str) -> None:
    assert assert_same(list(recorded.load(name).lines)) > 1


@pytest.mark.parametrize("seed", range(3))
def test_both_paths_agree_on_generated_lines(seed: int) -> None:
    assert_same(list(stream_json(1_500, seed=seed, stamp=seed == 1, text_only=seed == 2)))


def test_recorded_and_generated_pieces_take_the_hot_path() -> None:
    generated = [line for line in stream_json(500) if line.startswith(HOT_LINE)]
    assert len(HOT) > 900
    assert len(generated) > 300
    for line in HOT + generated:
        decode_hot(line)


@pytest.mark.parametrize(
    "line",
    [
        hot(b'{"type":"text_delta","text":""}'),
        hot(b'{"type":"text_delta","text":"\xff"}'),
        hot(b'{"type":"text_delta","text":"\\ud800"}'),
        hot(b'{"type":"text_delta","text":"\\ud83c\\udf89 \\u0000\\u2028\\/"}'),
        hot('{"type":"text_delta","text":"\u2028 é 日本 🎉"}'.encode()),
        hot(b'{"type":"text_delta","text":1}'),
        hot(b'{"type":"text_delta","text":"a","text":"b"}'),
        hot(b'{"type":"text_delta","text":"a","more":"\xff"}'),
        hot(b'{"type":"text_delta","text":"a","more":' + DEEP + b"}"),
        hot(b'{"more":' + b"[" * 5000 + b"]" * 5000 + b',"type":"text_delta","text":"a"}'),
        hot(b'{"text":"a","type":"text_delta"}'),
        hot(b'{"type":"text_delta","type":"thinking_delta","text":"a","thinking":"b"}'),
        hot(b'{"type":"thinking_delta","thinking":"hm"}'),
        hot(b'{"type":"thinking_delta","text":"hm"}'),
        hot(b'{"type":"citations_delta","citation":{}}'),
        hot(b'{"type":"input_json_delta","partial_json":"{"}'),
        hot(b'{"type":"signature_delta","signature":"x"}'),
        hot(b'{"type":"signature_delta"}'),
        hot(b"null"),
        hot(b'{"type":"text_delta","text":"a"}', b"1"),
        hot(b'{"type":"text_delta","text":"a"}', b"0.0"),
        hot(b'{"type":"text_delta","text":"a"}', b"true"),
        hot(b'{"type":"text_delta","text":"a"}', b"9" * 400),
        hot(b'{"type":"text_delta","text":"a"}', b"9" * 5000),
        hot(b'{"type":"text_delta","text":"a"}', b'0,"index":1'),
        hot(b'{"type":"text_delta","text":"a"}', tail=TAIL.replace(b"null", b'"toolu_1"')),
        hot(b'{"type":"text_delta","text":"a"}', tail=TAIL.replace(b'"u"', b'"\xff"')),
        hot(b'{"type":"text_delta","text":"a"}', tail=TAIL.replace(b'"u"', b'"\\q"')),
        hot(b'{"type":"text_delta","text":"a"}', tail=TAIL.replace(b'"u"', b"NaN")),
        hot(b'{"type":"text_delta","text":"a"}', tail=TAIL[:-1] + b',"type":"assistant"}'),
        hot(b'{"type":"text_delta","text":"a"}', tail=TAIL[:-1] + b',"more":' + DEEP + b"}"),
        hot(b'{"type":"text_delta","text":"a"}', tail=b',"more":' + DEEP + TAIL),
        hot(b'{"type":"text_delta","text":"a"}', tail=TAIL + b" "),
        hot(b'{"type":"text_delta","text":"a"}', tail=TAIL + b"x"),
        hot(b'{"type":"text_delta","text":"a"}', tail=b"}}"),
    ],
)
def test_both_paths_agree_on_odd_pieces(line: bytes) -> None:
    assert_same([line])
    assert_same([START, line, hot(b'{"type":"text_delta","text":"end"}')])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_both_paths_agree_on_damaged_real_lines(data: st.DataObject) -> None:
    lines = [START]
    for line in data.draw(st.lists(st.sampled_from(data.draw(st.sampled_from([HOT, STREAMED, REAL]))), max_size=8)):
        at = data.draw(st.integers(0, len(line)))
        cut = data.draw(st.integers(0, 3))
        put = data.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b'"', b"\\", b"null", b"\\ud800", b"}", b"0"]))
        )
        lines.append(line[:at] + put + line[at + cut :])
    assert_same(lines)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(HOSTILE_LINES)), max_size=6), st.booleans())
def test_no_bytes_raise(lines: list[bytes], torn: bool) -> None:
    translator = ClaudeTranslator(RUN, THREAD)
    for line in lines:
        for data in translator.feed(line, torn):
            assert chunk.encode(chunk.decode_chunk(data)) == data
    translator.finish(OK, b"".join(lines))
