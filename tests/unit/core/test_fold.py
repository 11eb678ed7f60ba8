"""A log folds into the messages that a client would have built from it (contract 4.6)."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.core.event_values import events, plain_text

from runtime.core import chunk
from runtime.core.fold import Fold
from runtime.core.transcript import of_log

Event = dict[str, Any]

STARTED: Event = {"type": "RUN_STARTED", "runId": "r", "threadId": "t"}
FINISHED: Event = {"type": "RUN_FINISHED", "runId": "r", "threadId": "t"}


def folded(*log: Event) -> list[dict[str, Any]]:
    return of_log(chunk.encode(event) for event in log).messages


def said(message_id: str, *deltas: str, role: str = "assistant") -> list[Event]:
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": role},
        *({"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": delta} for delta in deltas),
        {"type": "TEXT_MESSAGE_END", "messageId": message_id},
    ]


def thought(message_id: str, *deltas: str) -> list[Event]:
    return [
        {"type": "REASONING_START", "messageId": message_id},
        {"type": "REASONING_MESSAGE_START", "messageId": message_id, "role": "reasoning"},
        *({"type": "REASONING_MESSAGE_CONTENT", "messageId": message_id, "delta": delta} for delta in deltas),
        {"type": "REASONING_MESSAGE_END", "messageId": message_id},
        {"type": "REASONING_END", "messageId": message_id},
    ]


def called(call_id: str, *arguments: str, **start: Any) -> list[Event]:
    return [
        {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": "bash", **start},
        *({"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": piece} for piece in arguments),
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
    ]


def answered(call_id: str, content: Any, failed: bool = False) -> Event:
    event: Event = {"type": "TOOL_CALL_RESULT", "messageId": f"r-{call_id}", "toolCallId": call_id, "content": content}
    return {**event, "metadata": {"tanstack": {"state": "output-error"}}} if failed else event


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def thinking(content: str) -> dict[str, Any]:
    return {"type": "thinking", "content": content}


def call(call_id: str, arguments: str, state: str = "complete", **more: Any) -> dict[str, Any]:
    part = {"type": "tool-call", "id": call_id, "name": "bash", "arguments": arguments, "state": state}
    return {**part, **more}


def result(call_id: str, content: Any, state: str = "complete") -> dict[str, Any]:
    return {"type": "tool-result", "toolCallId": call_id, "content": content, "state": state}


def assistant(message_id: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": message_id, "role": "assistant", "parts": list(parts)}


def test_deltas_become_one_text() -> None:
    assert folded(STARTED, *said("m", "a", "b"), FINISHED) == [assistant("m", text("ab"))]


def test_thinking_goes_to_the_message_that_comes_next() -> None:
    assert folded(*thought("n", "h", "m"), *said("m", "a")) == [assistant("m", thinking("hm"), text("a"))]


def test_thinking_alone_is_a_message_under_its_own_id() -> None:
    assert folded(*thought("n", "hm"), FINISHED) == [assistant("n", thinking("hm"))]


def test_thinking_after_the_end_of_a_segment_is_not_renamed_by_the_next() -> None:
    log = [*thought("n", "hm"), FINISHED, STARTED, *said("m", "a")]
    assert folded(*log) == [assistant("n", thinking("hm")), assistant("m", text("a"))]


def test_thinking_and_text_of_one_id_are_one_message() -> None:
    log = [*thought("m", "hm"), *said("m", "a"), *said("o", "b")]
    assert folded(*log) == [assistant("m", thinking("hm"), text("a")), assistant("o", text("b"))]


def test_a_turn_with_tools_keeps_calls_and_results_in_the_message_that_made_them() -> None:
    log = [
        *said("m1", "look"),
        *called("c1", '{"a"', ":1}", parentMessageId="m1"),
        *called("c2", "{}", parentMessageId="m1"),
        answered("c2", '{"k":2}', failed=True),
        answered("c1", "out"),
        *said("m2", "done"),
    ]
    assert folded(*log) == [
        assistant(
            "m1",
            text("look"),
            call("c1", '{"a":1}', input={"a": 1}, output="out"),
            call("c2", "{}", "error", input={}, output={"k": 2}),
            result("c2", '{"k":2}', "error"),
            result("c1", "out"),
        ),
        assistant("m2", text("done")),
    ]


def test_text_after_a_call_of_the_same_message_is_a_part_of_its_own() -> None:
    log = [*said("m", "a"), *called("c", "{}"), *said("m", "b", "c")]
    assert [part["type"] for part in folded(*log)[0]["parts"]] == ["text", "tool-call", "text"]
    assert folded(*log)[0]["parts"][2] == text("bc")


def test_a_call_before_any_message_is_named_by_the_next() -> None:
    assert folded(*called("c", "{}"), answered("c", "x"), *said("m", "a"))[0]["id"] == "m"
    assert folded(*called("c", "{}"), answered("c", "x"), FINISHED)[0]["id"] == "c"


def test_a_parent_that_was_never_started_is_made() -> None:
    assert folded(*called("c", "{}", parentMessageId="p"), *said("p", "a"))[0]["id"] == "p"


def test_the_state_of_a_call_follows_its_chunks() -> None:
    log = [*said("m", "a"), *called("c", '{"a":1}')]
    assert [folded(*log[:-at])[0]["parts"][1]["state"] for at in (2, 1)] == ["awaiting-input", "input-streaming"]
    assert folded(*log)[0]["parts"][1] == call("c", '{"a":1}', "input-complete", input={"a": 1})
    assert folded(*log[:-1], FINISHED)[0]["parts"][1]["state"] == "input-complete"


@pytest.mark.parametrize("arguments", ["", '{"a":1', "[" * 5000])
def test_arguments_that_are_no_json_leave_no_input(arguments: str) -> None:
    assert folded(*called("c", arguments))[0]["parts"] == [call("c", arguments, "input-complete")]


def test_the_end_of_a_call_may_state_its_input() -> None:
    log = called("c", '{"a":null}')
    log[-1]["metadata"] = {"tanstack": {"input": {}}}
    assert folded(*log)[0]["parts"] == [call("c", '{"a":null}', "input-complete", input={})]


def test_a_second_result_takes_the_place_of_the_first() -> None:
    parts = folded(*called("c", "{}"), answered("c", "x", failed=True), *said("m", "a"), answered("c", "y"))[0]["parts"]
    assert parts == [call("c", "{}", input={}, output="y"), result("c", "y"), text("a")]


def test_a_result_without_its_call_goes_to_the_message_before_it() -> None:
    assert folded(*said("m", "a"), answered("zz", "x")) == [assistant("m", text("a"), result("zz", "x"))]
    assert folded(answered("zz", "x")) == [assistant("r-zz", result("zz", "x"))]


def test_messages_of_two_ids_may_alternate() -> None:
    a, b = said("a", "1", "3"), said("b", "2", "4")
    mixed = [event for pair in zip(a, b, strict=True) for event in pair]
    assert folded(*mixed) == [assistant("a", text("13")), assistant("b", text("24"))]


def test_other_roles_and_names_are_kept() -> None:
    log = [*said("u", "q", role="user"), *said("s", "p", role="developer"), *said("m", "a", role="tool")]
    log[0]["name"] = "Ann"
    assert [(message["role"], message.get("name")) for message in folded(*log)] == [
        ("user", "Ann"),
        ("system", None),
        ("assistant", None),
    ]


def test_thinking_after_a_users_message_begins_a_new_one() -> None:
    log = [*said("m1", "a"), *said("u", "q", role="user"), *thought("n", "hm"), *said("m2", "b")]
    assert folded(*log)[2] == assistant("m2", thinking("hm"), text("b"))


def test_shorthand_builds_the_same_messages() -> None:
    log: list[Event] = [
        {"type": "REASONING_MESSAGE_CHUNK", "messageId": "n", "delta": "h"},
        {"type": "REASONING_MESSAGE_CHUNK", "delta": "m"},
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "role": "assistant", "delta": "a"},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "b"},
        {"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "bash", "delta": "{"},
        {"type": "TOOL_CALL_CHUNK", "delta": "}"},
        FINISHED,
    ]
    assert folded(*log) == [assistant("m", thinking("hm"), text("ab"), call("c", "{}", "input-complete", input={}))]


def test_the_older_thinking_events_are_understood() -> None:
    def once(delta: str) -> list[Event]:
        return [
            {"type": "THINKING_TEXT_MESSAGE_START"},
            {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": delta},
            {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": delta},
            {"type": "THINKING_TEXT_MESSAGE_END"},
        ]

    assert folded(*once("a"), *once("b"), *said("m", "c")) == [
        assistant("m", thinking("aa"), thinking("bb"), text("c"))
    ]


def test_a_snapshot_replaces_what_came_before_and_goes_on_growing() -> None:
    snapshot: Event = {
        "type": "MESSAGES_SNAPSHOT",
        "messages": [
            {"id": "u", "role": "user", "content": "hi"},
            {
                "id": "a",
                "role": "assistant",
                "content": "yo",
                "toolCalls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
            },
        ],
    }
    folding = Fold()
    log = [*said("gone", "x"), snapshot, answered("c", "r"), *said("a", "!"), *said("new", "z")]
    folding.feed(chunk.encode(event) for event in log)
    assert folding.messages() == [
        {"id": "u", "role": "user", "parts": [text("hi")]},
        assistant("a", text("yo"), call("c", "{}", input={}, output="r"), result("c", "r"), text("!")),
        assistant("new", text("z")),
    ]
    assert folding.from_snapshot == {"u", "a"}


def test_two_messages_of_one_id_in_a_snapshot_lose_nothing() -> None:
    given = [{"id": "a", "role": "assistant", "content": text} for text in ("x", "y")]
    assert folded({"type": "MESSAGES_SNAPSHOT", "messages": given}) == [assistant("a", text("x"), text("y"))]


def test_messages_without_content_are_left_out() -> None:
    assert folded(STARTED, *said("m"), *said("n", ""), FINISHED) == []


@pytest.mark.parametrize("kind", ["RAW", "CUSTOM", "STATE_DELTA", "STEP_STARTED", "BRAND_NEW", None, 7])
def test_other_chunks_make_no_message(kind: Any) -> None:
    assert folded({"type": kind, "messageId": "m", "delta": "d", "value": 1}) == []


log_events = st.one_of(
    st.sampled_from(["a", "b"]).flatmap(lambda name: st.sampled_from(said(name, "x", "y"))),
    st.sampled_from(["a", "n"]).flatmap(lambda name: st.sampled_from(thought(name, "x"))),
    st.sampled_from(["c", "d"]).flatmap(lambda name: st.sampled_from([*called(name, "{}"), answered(name, "z")])),
    st.sampled_from([STARTED, FINISHED, *said("u", "q", role="user")]),
    events(),
)


@given(st.lists(log_events, max_size=20), st.lists(st.integers(0, 20), max_size=3))
def test_no_log_breaks_the_fold_and_no_cut_changes_it(log: list[Event], at: list[int]) -> None:
    chunks = [chunk.encode(event) for event in log]
    whole = of_log(chunks).messages
    folding = Fold()
    for start, end in itertools.pairwise([0, *sorted(at), len(chunks)]):
        folding.feed(chunks[start:end])
        folding.messages()
    assert folding.messages() == whole
    assert all(message["parts"] for message in whole)
    assert len({message["id"] for message in whole}) == len(whole)
    chunk.encode({"messages": whole})


@given(st.lists(plain_text, max_size=6))
def test_no_word_of_the_agent_is_lost(deltas: list[str]) -> None:
    texts = [part["content"] for message in folded(*said("m", *deltas)) for part in message["parts"]]
    assert "".join(texts) == "".join(deltas)


def test_time_to_fold_is_linear_in_the_log() -> None:
    def seconds(count: int) -> float:
        log = [chunk.encode(event) for event in said("m", *["word "] * count)]
        for n in range(count // 4):
            log += [
                chunk.encode(event) for event in [*called(f"c{n}", "{}", parentMessageId="m"), answered(f"c{n}", "x")]
            ]
        begin = time.process_time()
        of_log(log)
        return time.process_time() - begin

    short, long = min(seconds(500) for _ in range(3)), min(seconds(8_000) for _ in range(2))
    # 16 times the log; a way that copies the text or the parts at each chunk takes 256 times as long.
    assert long < 80 * short
