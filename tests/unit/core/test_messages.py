"""AG-UI messages become UI messages and back, with nothing doubled and nothing raised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.core.event_values import any_object, any_value

from runtime.core import chunk
from runtime.core.messages import from_agui, to_agui

Message = dict[str, Any]

CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"a":1}'}}
UI_CALL = {"type": "tool-call", "id": "c", "name": "bash", "arguments": '{"a":1}', "input": {"a": 1}}


def ui(*messages: Any) -> list[Message]:
    return from_agui(messages, "p")


def test_text_of_a_user_becomes_a_part() -> None:
    assert ui({"id": "u", "role": "user", "content": "hi", "name": "Ann"}) == [
        {"id": "u", "role": "user", "parts": [{"type": "text", "content": "hi"}], "name": "Ann"}
    ]


def test_content_in_parts_keeps_its_order_and_its_pictures() -> None:
    picture = {"type": "image", "source": {"type": "url", "value": "u"}}
    content = [{"type": "text", "text": "a"}, picture, {"type": "text", "content": "b"}]
    parts = ui({"id": "u", "role": "user", "content": content})[0]["parts"]
    assert parts == [{"type": "text", "content": "a"}, picture, {"type": "text", "content": "b"}]
    assert to_agui([{"id": "u", "role": "user", "parts": parts}])[0]["content"] == [
        {"type": "text", "text": "a"},
        picture,
        {"type": "text", "text": "b"},
    ]


def test_reasoning_and_results_are_merged_into_the_assistants_message() -> None:
    assert ui(
        {"id": "n", "role": "reasoning", "content": "hm"},
        {"id": "a", "role": "assistant", "content": "yo", "toolCalls": [CALL]},
        {"id": "tool-c", "role": "tool", "toolCallId": "c", "content": "[1]"},
    ) == [
        {
            "id": "a",
            "role": "assistant",
            "parts": [
                {"type": "thinking", "content": "hm"},
                {"type": "text", "content": "yo"},
                {**UI_CALL, "state": "complete", "output": [1]},
                {"type": "tool-result", "toolCallId": "c", "content": "[1]", "state": "complete"},
            ],
        }
    ]


def test_a_failed_result_says_so() -> None:
    parts = ui(
        {"id": "a", "role": "assistant", "toolCalls": [CALL]},
        {"id": "t", "role": "tool", "toolCallId": "c", "content": "no", "error": "no"},
    )[0]["parts"]
    assert [part["state"] for part in parts] == ["error", "error"]


def test_a_result_without_an_assistant_stands_alone() -> None:
    result = {"type": "tool-result", "toolCallId": "c", "content": "x", "state": "complete"}
    tool = {"id": "t", "role": "tool", "toolCallId": "c", "content": "x"}
    assert ui(tool) == [{"id": "t", "role": "assistant", "parts": [result]}]
    assert ui({"id": "u", "role": "user", "content": "q"}, tool)[1] == {
        "id": "t",
        "role": "assistant",
        "parts": [result],
    }


def test_reasoning_that_no_assistant_follows_stands_alone() -> None:
    thinking = {"type": "thinking", "content": "hm"}
    reasoning = {"id": "n", "role": "reasoning", "content": "hm"}
    assert ui(reasoning) == [{"id": "n", "role": "assistant", "parts": [thinking]}]
    assert [message["id"] for message in ui(reasoning, {"id": "u", "role": "user", "content": "q"})] == ["n", "u"]


def test_messages_without_an_id_get_one_from_their_place() -> None:
    given = [{"role": "user", "content": "a"}, {"id": 7, "role": "user", "content": "b"}]
    assert [message["id"] for message in ui(*given)] == ["p-0", "p-1"]


@pytest.mark.parametrize("message", [None, 7, "x", [], {}, {"role": "activity"}, {"role": ["user"]}, {"role": None}])
def test_what_is_no_message_is_left_out(message: Any) -> None:
    assert ui(message) == []


@pytest.mark.parametrize(
    "content", [None, 7, {}, [None, 7, {}, {"type": 7}, {"type": "tool-call"}, {"type": "thinking"}]]
)
def test_odd_content_has_no_parts(content: Any) -> None:
    assert ui({"id": "u", "role": "user", "content": content})[0]["parts"] == []
    assert (
        ui({"id": "a", "role": "assistant", "content": content, "toolCalls": [None, {}, {"function": 7}]})[0]["parts"]
        == []
    )


def test_a_message_of_several_rounds_is_taken_apart_round_by_round() -> None:
    def result(call_id: str, content: str, state: str) -> Message:
        return {"type": "tool-result", "toolCallId": call_id, "content": content, "state": state}

    message = {
        "id": "a",
        "role": "assistant",
        "parts": [
            {"type": "thinking", "content": "hm"},
            {"type": "text", "content": "one"},
            {**UI_CALL, "state": "complete", "output": "r"},
            result("c", "r", "complete"),
            {"type": "text", "content": "two"},
            result("d", "bad", "error"),
        ],
    }
    assert to_agui([message]) == [
        {"id": "a", "role": "assistant", "content": "one", "toolCalls": [CALL]},
        {"id": "tool-c", "role": "tool", "toolCallId": "c", "content": "r"},
        {"id": "a:1", "role": "assistant", "content": "two"},
        {"id": "tool-d", "role": "tool", "toolCallId": "d", "content": "bad", "error": "bad"},
    ]


flat = st.one_of(
    st.builds(
        lambda n, text: {"id": f"u{n}", "role": "user", "content": text}, st.integers(0, 99), st.text(min_size=1)
    ),
    st.builds(
        lambda n, text: {"id": f"a{n}", "role": "assistant", "content": text}, st.integers(0, 99), st.text(min_size=1)
    ),
    st.builds(lambda n: {"id": f"s{n}", "role": "system", "content": "be kind"}, st.integers(0, 99)),
)


@given(st.lists(flat, max_size=6))
def test_plain_messages_come_back_as_they_were(messages: list[Message]) -> None:
    assert to_agui(from_agui(messages, "p")) == messages


odd = st.one_of(
    any_value,
    any_object,
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "reasoning", "system", "developer", "activity"])},
        optional={
            "id": any_value,
            "content": st.one_of(
                any_value, st.lists(st.fixed_dictionaries({"type": any_value}, optional={"text": any_value}))
            ),
            "toolCalls": st.one_of(any_value, st.lists(st.one_of(st.just(CALL), any_object), max_size=3)),
            "toolCallId": st.one_of(any_value, st.just("c")),
            "error": any_value,
            "parts": any_value,
            "name": any_value,
        },
    ),
)


@given(st.lists(odd, max_size=6))
def test_no_input_breaks_the_conversion(messages: list[Any]) -> None:
    before = chunk.encode({"m": messages})
    made = from_agui(messages, "p")
    chunk.encode({"messages": made, "agui": to_agui(made)})
    assert chunk.encode({"m": messages}) == before
