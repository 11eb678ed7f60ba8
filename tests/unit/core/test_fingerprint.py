"""What counts in a chunk, and how it is written (contract 2.1, 6.2; scenarios 65, 66, 68)."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from unit.core.event_values import TYPES, any_object, events, integers, json_values, plain_text

from runtime.core import chunk
from runtime.core.agui import SPEC_KEYS
from runtime.core.fingerprint import (
    UNDEFINED,
    fingerprint,
    fingerprint_without_thread_id,
    same_chunk,
    thread_id,
)

TEXT = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "hi"}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({**TEXT, "timestamp": 5}, '{"delta":"hi","messageId":"m1","type":"TEXT_MESSAGE_CONTENT"}'),
        (
            {"type": "RUN_ERROR", "message": "x", "code": UNDEFINED},
            '{"code":"__undefined__","message":"x","type":"RUN_ERROR"}',
        ),
        (
            {"type": "TOOL_CALL_END", "toolCallId": "c1", "input": {"a": 1}},
            '{"toolCallId":"c1","type":"TOOL_CALL_END"}',
        ),
        (
            {"type": "BRAND_NEW", "a": 1, "metadata": {"tanstack": {"x": 1}, "mine": 2}, "rawEvent": 3},
            '{"metadata":{"mine":2},"rawEvent":3,"type":"BRAND_NEW"}',
        ),
    ],
)
def test_measured_fingerprints(event: dict[str, Any], expected: str) -> None:
    assert fingerprint(event) == expected


# --- scenario 68 -----------------------------------------------------------------------------------------------


@given(events())
def test_68_neither_key_order_nor_timestamp_counts(event: dict[str, Any]) -> None:
    other = dict(reversed(event.items()))
    other["timestamp"] = 99
    assert fingerprint(other) == fingerprint(event)


def test_68_message_id_and_delta_count() -> None:
    assert fingerprint({**TEXT, "messageId": "m2"}) != fingerprint(TEXT)
    assert fingerprint({**TEXT, "delta": "ho"}) != fingerprint(TEXT)


def test_68_keys_are_sorted_at_every_depth() -> None:
    nested = {"type": "CUSTOM", "name": "n", "value": [{"b": {"y": 1, "x": 2}, "a": 3}]}
    assert fingerprint(nested) == '{"name":"n","type":"CUSTOM","value":[{"a":3,"b":{"x":2,"y":1}}]}'


def test_68_undefined_is_not_absent() -> None:
    absent = {"type": "RUN_ERROR", "message": "x"}
    assert fingerprint({**absent, "code": UNDEFINED}) != fingerprint(absent)
    inner = {"type": "CUSTOM", "name": "n", "value": {"a": UNDEFINED, "b": [UNDEFINED]}}
    assert fingerprint(inner) == '{"name":"n","type":"CUSTOM","value":{"a":"__undefined__","b":[null]}}'


def test_68_a_change_two_levels_deep_in_an_array_is_seen() -> None:
    def custom(leaf: int) -> dict[str, Any]:
        return {"type": "CUSTOM", "name": "n", "value": [[{"deep": [leaf]}]]}

    assert fingerprint(custom(1)) != fingerprint(custom(2))


@given(events())
def test_68_a_fingerprint_is_pure(event: dict[str, Any]) -> None:
    before = chunk.encode(event)
    assert fingerprint(event) == fingerprint(event)
    assert chunk.encode(event) == before


def test_68_cumulative_content_does_not_count() -> None:
    assert fingerprint({**TEXT, "content": "well, hi", "model": "m"}) == fingerprint(TEXT)


@given(events())
def test_68_a_fingerprint_survives_a_json_round_trip(event: dict[str, Any]) -> None:
    assert fingerprint(chunk.decode_chunk(chunk.encode(event))) == fingerprint(event)
    assert fingerprint(json.loads(json.dumps(event))) == fingerprint(event)


# --- the table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_exactly_the_keys_of_the_table_count(kind: str) -> None:
    every = {key for keys in SPEC_KEYS.values() for key in keys} | {
        "model",
        "finishReason",
        "toolName",
        "state",
        "args",
    }
    base = {"type": kind}
    counting = {key for key in every if fingerprint({**base, key: "x"}) != fingerprint(base)}
    assert counting == SPEC_KEYS[kind]
    assert fingerprint({**base, "rawEvent": "x"}) != fingerprint(base)


@pytest.mark.parametrize(
    ("metadata", "counts"),
    [
        ({"tanstack": {"model": "m"}}, False),
        ({}, False),
        ({"tanstack": 1, "mine": 1}, True),
        (None, True),
        ("text", True),
        ([], True),
    ],
)
def test_metadata_counts_unless_tanstack_is_all_it_has(metadata: Any, counts: bool) -> None:
    assert (fingerprint({**TEXT, "metadata": metadata}) != fingerprint(TEXT)) is counts


def test_the_thread_of_a_run_counts_and_that_of_a_custom_does_not() -> None:
    started = {"type": "RUN_STARTED", "runId": "r", "threadId": "t"}
    assert fingerprint({**started, "threadId": "u"}) != fingerprint(started)
    custom = {"type": "CUSTOM", "name": "n", "value": 1}
    assert fingerprint({**custom, "threadId": "u", "runId": "s"}) == fingerprint(custom)


@pytest.mark.parametrize("kind", [None, 1, ["RUN_STARTED"], {}])
def test_a_type_that_is_no_text_has_the_shared_keys_only(kind: Any) -> None:
    assert fingerprint({"type": kind, "threadId": "t"}) == fingerprint({"type": kind})


# --- JavaScript's way of writing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (1e20, "100000000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (-1.25e-7, "-1.25e-7"),
        (0.1, "0.1"),
        (-1234.5, "-1234.5"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (2**53 - 1, "9007199254740991"),
        (2**53 + 1, "9007199254740992"),
        (10**21, "1e+21"),
        (10**400, "null"),
        (math.inf, "null"),
        (math.nan, "null"),
        (True, "true"),
    ],
)
def test_numbers_are_written_as_a_browser_writes_them(number: float, text: str) -> None:
    assert fingerprint({"type": "CUSTOM", "value": number}) == f'{{"type":"CUSTOM","value":{text}}}'


def test_keys_are_sorted_by_utf16_units() -> None:
    value = {"\ue000": 1, "\U0001f600": 2, "\ud800": 3, "z": 4}
    assert fingerprint({"type": "CUSTOM", "value": value}) == (
        '{"type":"CUSTOM","value":{"z":4,"\\ud800":3,"\U0001f600":2,"\ue000":1}}'
    )


def test_text_is_escaped_as_a_browser_escapes_it() -> None:
    text = '"\\/\b\f\n\r\t\x00\x1f\x7fé\u2028\U0001f600\ud800'
    expected = '"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7fé\u2028\U0001f600\\ud800"'
    assert fingerprint({"type": "CUSTOM", "value": text}) == f'{{"type":"CUSTOM","value":{expected}}}'


@given(json_values(plain_text, integers))
def test_a_fingerprint_is_json_of_what_counts(value: Any) -> None:
    read = json.loads(fingerprint({"type": "CUSTOM", "value": value, "model": "m"}), parse_int=float)
    assert read == json.loads(json.dumps({"type": "CUSTOM", "value": value}), parse_int=float)


# --- same_chunk ------------------------------------------------------------------------------------------------

changes: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.dictionaries(
        st.sampled_from(["timestamp", "delta", "messageId", "toolCallId", "metadata", "rawEvent", "model", "content"]),
        st.one_of(plain_text, st.none(), st.just({}), st.just({"tanstack": {}}), st.just("\ud800")),
        max_size=2,
    ),
)
deltas = st.sampled_from(["TEXT_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT", "TOOL_CALL_ARGS"]).map(
    lambda kind: {"type": kind, "messageId": "m", "toolCallId": "c", "delta": "d"}
)


@given(st.one_of(deltas, events()), changes)
@example({**TEXT}, {"timestamp": 5})
@example({**TEXT}, {"metadata": None})
def test_the_quick_way_says_what_fingerprints_say(event: dict[str, Any], change: dict[str, Any]) -> None:
    left, right = chunk.encode(event), chunk.encode({**event, **change})
    expected = fingerprint(chunk.decode_chunk(left)) == fingerprint(chunk.decode_chunk(right))
    assert same_chunk(left, right) is expected
    assert same_chunk(right, left) is expected


@given(events(), events())
def test_two_events_are_the_same_chunk_only_with_equal_fingerprints(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    expected = fingerprint(left) == fingerprint(right)
    assert same_chunk(chunk.encode(left), chunk.encode(right)) is expected


# --- threads ---------------------------------------------------------------------------------------------------


def test_65_only_the_events_own_thread_id_is_erased() -> None:
    started = {"type": "RUN_STARTED", "runId": "r", "threadId": "t", "input": {"threadId": "t"}}
    expected = '{"input":{"threadId":"t"},"runId":"r","type":"RUN_STARTED"}'
    assert fingerprint_without_thread_id(started) == expected
    assert fingerprint_without_thread_id({**started, "threadId": "u"}) == expected


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"threadId": "t", "metadata": {"tanstack": {"threadId": "u"}}}, "t"),
        ({"threadId": 1, "metadata": {"tanstack": {"threadId": "u"}}}, "u"),
        ({"metadata": {"tanstack": {"threadId": 1}}}, None),
        ({"metadata": {"tanstack": []}}, None),
        ({"metadata": "t"}, None),
        ({}, None),
    ],
)
def test_66_the_thread_of_a_chunk_is_read_and_is_none_when_there_is_none(
    event: dict[str, Any], expected: str | None
) -> None:
    assert thread_id(event) == expected


@given(any_object)
def test_no_object_breaks_a_fingerprint(event: dict[str, Any]) -> None:
    json.loads(fingerprint(event))
    fingerprint_without_thread_id(event)
    thread_id(event)
