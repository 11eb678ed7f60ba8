"""What a person sees of a run: text on stdout, the rest as short lines on stderr."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fake_instance import text

from serve_app.render import TextShow, brief
from serve_app.stream_client import Envelope, parse


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class ScreenBytes(io.BytesIO):
    def isatty(self) -> bool:
        return True


def shown(*events: dict[str, Any], screen: bool = False) -> tuple[str, str]:
    """Return stdout and stderr."""
    out, err = (ScreenBytes(), Screen()) if screen else (io.BytesIO(), io.StringIO())
    show = TextShow(out, err)
    show.batch([Envelope(None, event, b"") for event in events])
    show.end()
    return out.getvalue().decode(), err.getvalue()


END = {"type": "TEXT_MESSAGE_END"}


def test_text_is_shown_as_it_comes() -> None:
    assert shown(text("one "), text("two\n"), END) == ("one two\n", "")


def test_a_message_gets_an_end_of_line_if_it_has_none() -> None:
    assert shown(text("one"), END, text("two"), END) == ("one\ntwo\n", "")
    assert shown(text("cut"))[0] == "cut\n"


def test_text_that_utf8_has_no_form_for_is_shown_all_the_same() -> None:
    assert shown(text("a\ud800b\n"))[0] == "a?b\n"


@pytest.mark.parametrize("event", [{"type": "TEXT_MESSAGE_CONTENT"}, {"type": "TEXT_MESSAGE_CONTENT", "delta": 7}, {}])
def test_odd_chunks_are_passed_over(event: dict[str, Any]) -> None:
    assert shown(event) == ("", "")


def test_a_tool_call_is_one_short_line() -> None:
    call = {"toolCallId": "c"}
    events = [
        {"type": "TOOL_CALL_START", "toolCallName": "Bash", **call},
        {"type": "TOOL_CALL_ARGS", "delta": '{"command": ', **call},
        {"type": "TOOL_CALL_ARGS", "delta": '"ls"}', **call},
        {"type": "TOOL_CALL_END", **call},
        {"type": "TOOL_CALL_RESULT", "content": "a\nb" + "x" * 500, **call},
    ]
    out, err = shown(*events)
    first, second = err.splitlines()
    assert (out, first) == ("", 'tool: Bash {"command": "ls"}')
    assert second.startswith("Bash: a b")
    assert len(second) < 140


def test_arguments_without_end_are_bounded() -> None:
    show = TextShow(io.BytesIO(), io.StringIO())
    event = {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "x" * 100}
    show.batch([Envelope(None, event, b"")] * 1000)
    assert len(show._arguments["c"]) < 1000


def test_other_words_of_an_agent_go_to_stderr() -> None:
    out, err = shown(
        {"type": "CUSTOM", "name": "run.accepted", "value": {}},
        {"type": "CUSTOM", "name": "run.waiting", "value": {"for": "workspace"}},
        {"type": "CUSTOM", "name": "process.stdout", "value": {"line": "not json"}},
        {"type": "CUSTOM", "name": "note", "value": {"a": 1}},
        {"type": "STEP_STARTED", "stepName": "build"},
        {"type": "REASONING_START"},
    )
    assert out == ""
    assert err.splitlines() == [
        "The agent starts once the thread's workspace is free.",
        "process.stdout: not json",
        'note: {"a": 1}',
        "step: build",
        "thinking",
    ]


def test_a_note_on_the_same_screen_goes_below_the_text() -> None:
    note = {"type": "STEP_STARTED", "stepName": "build"}
    assert shown(text("half"), note, text(" line"), screen=True)[1] == "\nstep: build\n"
    assert shown(text("half"), note, screen=False)[1] == "step: build\n"


def test_an_agent_does_not_steer_the_terminal_by_a_note() -> None:
    assert brief("\x1b[2J\x07evil\r\nline") == "[2J evil  line"
    assert brief("x" * 500) == "x" * 119 + "…"


def test_an_envelope_is_told_from_a_bare_chunk() -> None:
    assert parse(b'{"id":"1","chunk":{"type":"A"}}').id == "1"
    assert parse(b'{"type":"RUN_ERROR","id":"1","chunk":{}}').id is None


@pytest.mark.parametrize("line", [b"[]", b"7", b"{"])
def test_a_line_that_is_no_object_is_no_envelope(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|char"):
        parse(line)
