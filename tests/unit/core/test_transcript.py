"""What is kept of a run is bounded, follows from its log alone, and comes back as it was stored (P9)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.core.event_values import events

from runtime.core import chunk, growing
from runtime.core.fold import Fold
from runtime.core.transcript import Transcript, decode, encode, of_fold, of_log

Event = dict[str, Any]
INTERRUPT = {"id": "q1", "reason": "confirmation", "message": "May I?"}


def words(message_id: str, *deltas: str) -> list[Event]:
    return [{"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": delta} for delta in deltas]


def log(*events: Event) -> list[bytes]:
    return [chunk.encode(event) for event in events]


def finished(**fields: Any) -> Event:
    return {"type": "RUN_FINISHED", "runId": "r", "threadId": "t", **fields}


def asking(*interrupts: Any) -> Event:
    return finished(outcome={"type": "interrupt", "interrupts": list(interrupts)})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "NAME_CHARS", 100)
    monkeypatch.setattr(growing, "PART_CHARS", 40)
    monkeypatch.setattr(growing, "RUN_CHARS", 1500)


def test_the_stored_form_never_changes() -> None:
    said = Transcript(
        messages=[{"id": "m", "role": "assistant", "parts": [{"type": "text", "content": "h\u00e9 \U0001f600"}]}],
        stated=["m"],
        interrupts=[INTERRUPT],
        session="s",
    )
    stored = (
        '{"interrupts":[{"id":"q1","message":"May I?","reason":"confirmation"}],"messages":[{"id":"m","parts":'
        '[{"content":"h\u00e9 \U0001f600","type":"text"}],"role":"assistant"}],"session":"s","stated":["m"]}'
    ).encode()
    assert encode(said) == stored
    assert decode(stored) == said
    assert decode(b'{"messages":[],"mood":"good"}') == Transcript()


def test_a_long_part_keeps_its_beginning_and_says_that_it_was_cut(small: None) -> None:
    (message,) = of_log(log(*words("m", "x" * 30, "y" * 30, "z"))).messages
    assert message["parts"] == [{"type": "text", "content": "x" * 30 + "y" * 10 + growing.CUT}]


@pytest.mark.parametrize("content", ["r" * 100, {"much": "r" * 100}, ["r" * 100]])
def test_a_long_result_keeps_its_beginning(small: None, content: Any) -> None:
    said = of_log(
        log(
            {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "read"},
            {"type": "TOOL_CALL_RESULT", "toolCallId": "c", "messageId": "r", "content": content},
        )
    )
    call, result = said.messages[0]["parts"]
    assert result["content"] == call["output"]
    assert result["content"].endswith(growing.CUT)


def test_a_long_run_keeps_its_end_and_says_what_is_left_out(small: None) -> None:
    said = of_log(log(*(event for n in range(40) for event in words(f"m{n}", f"word {n}")))).messages
    assert said[-1]["parts"] == [{"type": "text", "content": "word 39"}]
    assert said[0]["parts"][0]["content"] == f"[left out: {40 - len(said)} earlier parts of a run so long]"
    assert 5 < len(said) < 12


def test_what_speaks_of_a_part_that_had_to_go_breaks_nothing(small: None) -> None:
    early = [
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "read"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "t", "delta": "hm"},
    ]
    late = [
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{}"},
        {"type": "TOOL_CALL_RESULT", "toolCallId": "c", "messageId": "r", "content": "late"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "t", "delta": "so"},
    ]
    said = of_log(log(*early, *(event for n in range(40) for event in words(f"m{n}", "x" * 20)), *late, finished()))
    assert [part["type"] for part in said.messages[-1]["parts"]] == ["text", "tool-result", "thinking"]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "NAME"},
        {"type": "TOOL_CALL_START", "toolCallId": "NAME", "toolCallName": "t"},
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "t", "parentMessageId": "NAME"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "NAME", "delta": "x"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "NAME", "delta": "x"},
        {"type": "TOOL_CALL_RESULT", "toolCallId": "NAME", "messageId": "NAME", "content": "x"},
    ],
)
def test_names_and_ids_without_end_are_bounded_and_told_apart(small: None, event: Event) -> None:
    def named(number: int) -> Event:
        long = f"{'n' * 100_000}{number}"
        return {
            key: long if value == "NAME" else f"c{number}" if value == "c" else value for key, value in event.items()
        }

    folding = Fold()
    folding.feed(log(*map(named, range(3))))
    assert len(folding.messages()[-1]["parts"]) == 3 or len(folding.messages()) == 3
    folding.feed(log(*map(named, range(3, 30))))
    assert len(encode(of_fold(folding))) < 3 * growing.RUN_CHARS


def test_a_result_finds_the_call_of_a_long_id() -> None:
    said = of_log(
        log(
            {"type": "TOOL_CALL_START", "toolCallId": "i" * 5000, "toolCallName": "read"},
            {"type": "TOOL_CALL_RESULT", "toolCallId": "i" * 5000, "messageId": "r", "content": "found"},
        )
    )
    call, result = said.messages[0]["parts"]
    assert call["output"] == "found"
    assert result["toolCallId"] == call["id"] != "i" * 5000


def test_a_name_that_a_message_is_given_again_and_again_counts_once(small: None) -> None:
    start = {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"}
    said = of_log(log(*({**start, "name": f"{'n' * 90}{n % 10}"} for n in range(200)), *words("m", "here")))
    assert said.messages == [
        {"id": "m", "role": "assistant", "name": "n" * 90 + "9", "parts": [{"type": "text", "content": "here"}]}
    ]


def test_a_log_that_is_not_folded_from_its_beginning_says_so() -> None:
    folding = Fold()
    folding.begin_late()
    folding.feed(log(*words("m", "the end")))
    assert [part["content"] for part in folding.messages()[0]["parts"]] == [
        "[left out: the beginning of a run so long]",
        "the end",
    ]


@given(st.lists(events(), max_size=30), st.integers(0, 30))
def test_no_cut_of_a_log_changes_its_bounded_transcript(given_events: list[Event], at: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "PART_CHARS", 20)
        patch.setattr(growing, "RUN_CHARS", 400)
        chunks = log(*given_events)
        folding = Fold()
        folding.feed(chunks[:at])
        folding.messages()
        folding.feed(chunks[at:])
        whole = of_log(chunks)
        assert encode(of_fold(folding)) == encode(whole)
        assert decode(encode(whole)) == whole


def test_a_transcript_says_what_its_run_asks() -> None:
    assert of_log(log(asking(INTERRUPT, "odd"))).interrupts == [INTERRUPT]
    assert of_log(log(finished())).interrupts == []
    assert of_log(log(asking(INTERRUPT), {"type": "RUN_STARTED"})).interrupts == []
    assert of_log(log(finished(outcome={"type": "interrupt", "interrupts": 7}))).interrupts == []


def test_a_transcript_names_the_agents_last_session() -> None:
    told = [{"type": "CUSTOM", "name": "codex.session-id", "value": {"sessionId": each}} for each in ("a", "b")]
    assert of_log(log(*told, {"type": "CUSTOM", "name": "x", "value": {"sessionId": "c"}})).session == "b"
    assert of_log(log({"type": "CUSTOM", "name": "a.session-id", "value": "odd"})).session is None
