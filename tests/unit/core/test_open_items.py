"""What is open in a log is closed before its end, by any driver in the same way (P9)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.core.event_values import events

from runtime.core import chunk
from runtime.core.open_items import OpenItems

Event = dict[str, Any]

STARTED: Event = {"type": "RUN_STARTED", "runId": "r", "threadId": "t"}
FINISHED: Event = {"type": "RUN_FINISHED", "runId": "r", "threadId": "t"}
FAILED: Event = {"type": "RUN_ERROR", "message": "m"}
KINDS = [
    ("TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "messageId"),
    ("REASONING_START", "REASONING_END", "messageId"),
    ("REASONING_MESSAGE_START", "REASONING_MESSAGE_END", "messageId"),
    ("TOOL_CALL_START", "TOOL_CALL_END", "toolCallId"),
    ("STEP_STARTED", "STEP_FINISHED", "stepName"),
]


def items(*log: Event) -> OpenItems:
    tracker = OpenItems()
    tracker.feed([chunk.encode(event) for event in log])
    return tracker


def closers(*log: Event) -> list[Event]:
    return [chunk.decode_chunk(data) for data in items(*log).closers()]


def tool(kind: str, tool_call_id: str) -> Event:
    return {"type": f"TOOL_CALL_{kind}", "toolCallId": tool_call_id}


@pytest.mark.parametrize(("start", "end", "key"), KINDS)
def test_each_kind_is_closed_by_its_own_end(start: str, end: str, key: str) -> None:
    begun = {"type": start, key: "x", "metadata": {"tanstack": {"model": "m"}}, "role": "assistant"}
    assert closers(STARTED, begun) == [{"type": end, key: "x"}]
    assert closers(STARTED, begun, {"type": end, key: "y"}) == [{"type": end, key: "x"}]
    assert closers(STARTED, begun, {"type": end, key: "x"}) == []


@pytest.mark.parametrize("kind", ["THINKING", "THINKING_TEXT_MESSAGE"])
def test_kinds_without_an_id_are_closed_too(kind: str) -> None:
    assert closers({"type": f"{kind}_START"}) == [{"type": f"{kind}_END"}]
    assert closers({"type": f"{kind}_START"}, {"type": f"{kind}_END"}) == []


def test_the_youngest_item_is_closed_first() -> None:
    assert closers(
        STARTED,
        {"type": "STEP_STARTED", "stepName": "s"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m"},
        {"type": "REASONING_START", "messageId": "n"},
        {"type": "REASONING_MESSAGE_START", "messageId": "n"},
        tool("START", "c"),
    ) == [
        tool("END", "c"),
        {"type": "REASONING_MESSAGE_END", "messageId": "n"},
        {"type": "REASONING_END", "messageId": "n"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
        {"type": "STEP_FINISHED", "stepName": "s"},
    ]


def test_an_item_that_was_closed_and_begun_again_is_the_youngest() -> None:
    first, second = ({"type": "TEXT_MESSAGE_START", "messageId": name} for name in ("a", "b"))
    log = [first, second, {"type": "TEXT_MESSAGE_END", "messageId": "a"}, first]
    assert [event["messageId"] for event in closers(*log)] == ["a", "b"]


def test_an_item_begun_twice_is_closed_once() -> None:
    begun = {"type": "TEXT_MESSAGE_START", "messageId": "m"}
    assert len(closers(begun, begun)) == 1


def test_a_message_and_reasoning_of_the_same_id_are_two_items() -> None:
    begun = [{"type": kind, "messageId": "m"} for kind in ("TEXT_MESSAGE_START", "REASONING_START")]
    assert len(closers(*begun)) == 2
    assert closers(*begun, {"type": "TEXT_MESSAGE_END", "messageId": "m"}) == [
        {"type": "REASONING_END", "messageId": "m"}
    ]


def test_a_tool_call_without_its_result_is_unresolved_but_not_open() -> None:
    tracker = items(tool("START", "b"), tool("END", "b"), tool("START", "a"), tool("START", "c"), tool("RESULT", "c"))
    assert tracker.unresolved == ("b", "a")
    assert tracker.closers() == [chunk.encode(tool("END", "c")), chunk.encode(tool("END", "a"))]
    tracker.feed([chunk.encode({**tool("RESULT", "b"), "content": "x" * 100, "metadata": {"tanstack": {"state": 1}}})])
    assert list(tracker.unresolved) == ["a"]


def test_segments_begin_and_end() -> None:
    tracker = OpenItems()
    told = []
    for event in (chunk.decode_chunk(chunk.run_accepted()), STARTED, FINISHED, STARTED, FAILED):
        tracker.feed([chunk.encode(event)])
        told.append((tracker.run_started, tracker.run_open))
    assert told == [(False, False), (True, True), (True, False), (True, True), (True, False)]


@pytest.mark.parametrize("end", [FINISHED, FAILED, {**FINISHED, "usage": [{"inputTokens": 1}]}])
def test_the_end_of_a_segment_ends_what_it_left_open(end: Event) -> None:
    begun: Event = {"type": "TEXT_MESSAGE_START", "messageId": "m"}
    assert closers(STARTED, begun, tool("START", "c"), end) == []
    assert closers(STARTED, tool("START", "c"), end, STARTED, begun) == [{"type": "TEXT_MESSAGE_END", "messageId": "m"}]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "CUSTOM", "name": "n", "value": {"type": "TEXT_MESSAGE_START", "messageId": "m"}},
        {"type": "RAW", "event": {"type": "TOOL_CALL_START", "toolCallId": "c"}},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": '","type":"TEXT_MESSAGE_START"}'},
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "d"},
        {"type": "TEXT_MESSAGE_START", "messageId": 7},
        {"type": "TEXT_MESSAGE_START"},
        {"type": "STEP_STARTED", "stepName": None},
        {"type": ["TEXT_MESSAGE_START"], "messageId": "m"},
        {"type": "TEXT_MESSAGE_END", "messageId": "never begun"},
        {"messageId": "m"},
    ],
)
def test_what_opens_nothing_is_not_closed(event: Event) -> None:
    assert closers(event) == []


def test_a_chunk_that_only_ends_like_a_delta_is_seen() -> None:
    # The last key of each sorts after `type`, or is not `type` at all.
    begun: Event = {"type": "TEXT_MESSAGE_START", "messageId": "m", "zz": {"a": 1, "type": "RAW"}}
    keyed: Event = {"type": "TEXT_MESSAGE_START", "messageId": "n", 'x,"type': "RAW"}
    assert [event["messageId"] for event in closers(begun, keyed)] == ["n", "m"]


def test_ids_with_lone_surrogates_are_closed() -> None:
    assert closers({"type": "TEXT_MESSAGE_START", "messageId": "\ud800"}) == [
        {"type": "TEXT_MESSAGE_END", "messageId": "\ud800"}
    ]


moves: st.SearchStrategy[Event] = st.one_of(
    st.tuples(st.sampled_from(KINDS), st.sampled_from([0, 1]), st.sampled_from("ab")).map(
        lambda drawn: {"type": drawn[0][drawn[1]], drawn[0][2]: drawn[2]}
    ),
    st.just(STARTED),
)
steps = st.one_of(moves, moves, st.sampled_from([FINISHED, FAILED]), events())


@given(st.lists(steps, max_size=20))
def test_after_its_closers_nothing_is_open(log: list[Event]) -> None:
    tracker = items(*log)
    tracker.feed(tracker.closers())
    assert tracker.closers() == []


@given(st.lists(steps, max_size=20), st.integers(0, 20))
def test_any_cut_of_a_log_leaves_the_same_items_open(log: list[Event], at: int) -> None:
    tracker = items(*log[:at])
    tracker.feed([chunk.encode(event) for event in log[at:]])
    whole = items(*log)
    assert tracker.closers() == whole.closers()
    assert tracker.unresolved == whole.unresolved
    assert (tracker.run_started, tracker.run_open) == (whole.run_started, whole.run_open)


def accepted_by_a_strict_client(log: list[Event]) -> bool:
    """Return whether a client's own rules hold: nothing begins twice, ends unbegun, or is open at RUN_FINISHED."""
    strict = [kind for kind in KINDS if not kind[0].startswith("REASONING")]
    alive: set[tuple[str, str]] = set()
    for event in log:
        if event["type"] == "RUN_FINISHED" and alive:
            return False
        for start, end, key in strict:
            item = (start, event.get(key, ""))
            if event["type"] == start:
                if item in alive:
                    return False
                alive.add(item)
            elif event["type"] == end:
                if item not in alive:
                    return False
                alive.remove(item)
    return True


@given(st.lists(moves, max_size=20))
def test_a_strict_client_accepts_the_end_of_what_it_accepted_so_far(log: list[Event]) -> None:
    if accepted_by_a_strict_client(log):
        assert accepted_by_a_strict_client([*log, *closers(*log), FINISHED])


@given(st.lists(steps, max_size=20), st.integers(0, 20))
def test_put_aside_anywhere_it_closes_the_same(log: list[Event], cut: int) -> None:
    begun = items(*log[:cut])
    resumed = OpenItems()
    resumed.restore(begun.state())
    twin = begun.copy()
    for tracker in (begun, resumed, twin):
        tracker.feed([chunk.encode(event) for event in log[cut:]])
    for tracker in (resumed, twin):
        assert tracker.state() == begun.state() == items(*log).state()
        assert (tracker.closers(), tracker.unresolved) == (begun.closers(), begun.unresolved)


def test_a_copy_goes_on_by_itself() -> None:
    tracker = items(STARTED, tool("START", "t"))
    twin = tracker.copy()
    twin.feed([chunk.encode(tool("END", "t")), chunk.encode(tool("RESULT", "t")), chunk.encode(FINISHED)])
    assert (len(tracker.closers()), tracker.unresolved, tracker.run_open) == (1, ("t",), True)


@pytest.mark.parametrize(
    "state",
    [b"", b"x", b"{}", b"[1,2]", b'[true,true,[["NO_SUCH","x"]],[]]', b"[true,true,[1],[]]", b"[true,true,0,0]"],
)
def test_bytes_that_are_no_state_change_nothing(state: bytes) -> None:
    tracker = items(STARTED, tool("START", "t"))
    before = tracker.state()
    with pytest.raises((ValueError, TypeError, KeyError)):
        tracker.restore(state)
    assert tracker.state() == before
