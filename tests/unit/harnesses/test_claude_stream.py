"""Lines of Claude Code that no recording holds: thinking, subagents, lost lines, work after a result."""

from __future__ import annotations

from typing import Any

import msgspec
from agent_runs import RUN, Log, events, exited, play, spec

from runtime.core.record import Status
from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.harnesses.claude_stream import ClaudeTranslator

HARNESS = ClaudeCodeHarness()
SPEC = spec("claude-code")

INIT: dict[str, Any] = {"type": "system", "subtype": "init", "session_id": "s1", "model": "m1", "tools": ["Bash"]}
DONE: dict[str, Any] = {"type": "result", "subtype": "success", "is_error": False, "result": "ok"}


def stream(**event: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "session_id": "s1", "parent_tool_use_id": None, "uuid": "u"}


def message_start(cli_id: str | None = "msg_1") -> dict[str, Any]:
    return stream(type="message_start", message={"id": cli_id} if cli_id else {})


def block_start(kind: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return stream(type="content_block_start", index=index, content_block={"type": kind, **more})


def delta(kind: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return stream(type="content_block_delta", index=index, delta={"type": kind, **more})


def text(said: str, index: int = 0) -> dict[str, Any]:
    return delta("text_delta", index, text=said)


def block_stop(index: int = 0) -> dict[str, Any]:
    return stream(type="content_block_stop", index=index)


def assistant(*content: dict[str, Any], cli_id: str | None = "msg_1", **more: Any) -> dict[str, Any]:
    message = {"content": list(content), **({"id": cli_id} if cli_id else {})}
    return {"type": "assistant", "message": message, "parent_tool_use_id": None, **more}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": list(content)}, "parent_tool_use_id": None}


def call(cli_id: str = "toolu_1", name: str = "Bash", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": cli_id, "name": name, "input": given}


def answer(cli_id: str = "toolu_1", content: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": cli_id, "content": content, **more}


def run(*lines: dict[str, Any] | bytes, code: int = 0) -> Log:
    encoded = [line if isinstance(line, bytes) else msgspec.json.encode(line) for line in lines]
    return play(HARNESS, SPEC, encoded, exited(code))


def told(*lines: dict[str, Any] | bytes) -> list[dict[str, Any]]:
    """Return the events of `lines` after an init, without those of the init and without the model."""
    found = events(run(INIT, *lines).fed)[2:]
    for event in found:
        tanstack = event.get("metadata", {}).get("tanstack")
        if tanstack == {"model": "m1"}:
            del event["metadata"]
    return found


def test_thinking_is_reasoning_under_a_minted_id() -> None:
    lines = [
        message_start(),
        block_start("thinking", thinking="", signature=""),
        delta("thinking_delta", thinking="hm"),
        delta("signature_delta", signature="x"),
        assistant({"type": "thinking", "thinking": "hm", "signature": "x"}),
        block_stop(),
    ]
    minted = {"messageId": f"{RUN}-0"}
    expected = [
        {"type": "REASONING_START", **minted},
        {"type": "REASONING_MESSAGE_START", "role": "reasoning", **minted},
        {"type": "REASONING_MESSAGE_CONTENT", "delta": "hm", **minted},
        {"type": "REASONING_MESSAGE_END", **minted},
        {"type": "REASONING_END", **minted},
    ]
    assert told(*lines) == expected
    assert told(assistant({"type": "thinking", "thinking": "hm", "signature": "x"})) == expected


def test_a_message_that_was_not_streamed_comes_whole() -> None:
    said = [event["type"] for event in told(message_start("msg_0"), assistant({"type": "text", "text": "hi"}))]
    assert said == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    assert told(message_start("msg_1"), assistant({"type": "text", "text": "hi"})) == []


def test_text_that_a_broken_stream_left_open_is_closed_before_the_next_message() -> None:
    log = told(message_start("msg_0"), block_start("text"), text("ha"), assistant({"type": "text", "text": "half"}))
    assert [(event["type"].split("_")[-1], event["messageId"]) for event in log] == [
        ("START", "msg_0"),
        ("CONTENT", "msg_0"),
        ("END", "msg_0"),
        ("START", "msg_1"),
        ("CONTENT", "msg_1"),
        ("END", "msg_1"),
    ]


def test_a_new_message_closes_what_is_open() -> None:
    log = told(message_start("msg_0"), block_start("text"), text("a"), message_start("msg_1"))
    assert [event["type"] for event in log][-1] == "TEXT_MESSAGE_END"


def test_text_without_its_start_is_not_lost() -> None:
    log = told(text("a"), text("b"), text("c", 1), block_stop(0), text("d", 1), block_stop(1))
    assert [(event["type"].split("_")[-1], event.get("delta")) for event in log] == [
        ("START", None),
        ("CONTENT", "a"),
        ("CONTENT", "b"),
        ("END", None),
        ("START", None),
        ("CONTENT", "c"),
        ("CONTENT", "d"),
        ("END", None),
    ]
    assert {event["messageId"] for event in log} == {f"{RUN}-0"}


def test_a_first_text_in_the_block_start_counts() -> None:
    assert told(block_start("text", text="a"), text("b"))[1]["delta"] == "a"


def test_empty_pieces_make_no_chunk() -> None:
    assert [event["type"] for event in told(block_start("text"), text(""))] == ["TEXT_MESSAGE_START"]
    assert told(text("")) == []


def test_foreign_ids_get_the_runs_before_them() -> None:
    log = told(assistant({"type": "text", "text": "hi"}, call("3"), cli_id="7"), user(answer("3")))
    assert log[0]["messageId"] == f"{RUN}:7"
    assert {event["toolCallId"] for event in log if "toolCallId" in event} == {f"{RUN}:3"}
    assert log[-1]["messageId"] == f"{RUN}-0"


def test_lines_of_subagents_make_no_chunks() -> None:
    theirs = {"parent_tool_use_id": "toolu_9"}
    lines = [
        {**message_start("msg_5"), **theirs},
        {**text("psst"), **theirs},
        {**assistant({"type": "text", "text": "psst"}), **theirs},
        {**user(answer()), **theirs},
    ]
    assert told(*lines) == []


def test_lent_tools_have_their_bare_names() -> None:
    names = [
        event["toolCallName"] for event in told(assistant(call(name="mcp__tanstack__look"))) if "toolCallName" in event
    ]
    assert names == ["look"]
    other = told(assistant(call(name="mcp__other__look")))[0]
    assert other["toolCallName"] == "mcp__other__look"


def test_results_are_text_or_what_there_is() -> None:
    def content(given: Any) -> str:
        made: str = told(user(answer(content=given)))[0]["content"]
        return made

    assert content("plain") == "plain"
    assert content([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]) == "a\nb"
    assert content([{"type": "image", "source": "x"}]) == '[{"source":"x","type":"image"}]'
    assert content(None) == ""
    assert content([]) == "[]"


def test_a_result_line_answers_for_every_open_call_and_closes_the_text() -> None:
    log = run(INIT, assistant(call("toolu_1"), call("toolu_2")), user(answer("toolu_1")), block_start("text"), DONE)
    assert [event["type"] for event in events(log.fed)[-2:]] == ["TEXT_MESSAGE_END", "TOOL_CALL_RESULT"]
    assert events(log.fed)[-1]["toolCallId"] == "toolu_2"
    assert log.ending.chunks == ()


def test_without_a_result_line_the_ending_answers_and_leaves_the_text_to_the_engine() -> None:
    log = run(INIT, assistant(call()), block_start("text"), text("a"), code=1)
    assert [event["type"] for event in events(log.ending.chunks)] == ["TOOL_CALL_RESULT"]


def test_what_comes_before_the_init_starts_the_run_once() -> None:
    log = run(b"warning: old node", {"type": "system", "subtype": "status"}, INIT, INIT, DONE)
    assert log.types == ["RUN_STARTED", "CUSTOM", "RAW", "CUSTOM", "CUSTOM", "RUN_FINISHED"]
    assert log.events[1]["name"] == "process.stdout"


def test_unknown_kinds_are_raw_with_their_source() -> None:
    odd: list[Any] = [
        {"type": "rate_limit_event", "x": 1},
        {"type": "assistant"},
        {"type": "assistant", "message": {"content": 5}, "parent_tool_use_id": None},
        {"type": "stream_event", "event": 1},
        {"type": "result"},
        {"no": "type"},
        user({"type": "novelty"}),
        assistant({"type": "server_tool_use", "id": "x"}),
        assistant({"type": "tool_use", "id": 5, "name": "x"}),
        delta("citations_delta", citation={}),
        stream(type="error", error={"type": "overloaded_error"}),
    ]
    assert told(*odd) == [{"type": "RAW", "event": line, "source": "claude-code"} for line in odd]


def test_known_kinds_without_chunks_are_quiet() -> None:
    quiet = [
        stream(type="message_delta", delta={"stop_reason": "end_turn"}, usage={}),
        stream(type="message_stop"),
        stream(type="ping"),
        block_start("tool_use", id="toolu_1", name="Bash", input={}),
        delta("input_json_delta", partial_json="{"),
        block_stop(),
        {**user(), "message": {"role": "user", "content": "text"}},
        user({"type": "text", "text": "[interrupted]"}),
    ]
    assert told(*quiet) == []


def test_the_last_result_counts_and_work_after_one_takes_the_wait_back() -> None:
    translator = ClaudeTranslator(RUN, "t")
    states = []
    failed = {**DONE, "subtype": "error_during_execution", "is_error": True, "errors": ["a", "b"]}
    for line in (INIT, DONE, {"type": "system", "subtype": "status"}, message_start(), text("more"), failed):
        translator.feed(msgspec.json.encode(line))
        states.append(translator.has_result)
    assert states == [False, True, True, False, False, True]
    ending = translator.finish(exited(1), b"")
    assert ending.error is not None
    assert (ending.error.code, ending.error.message) == ("error_during_execution", "a; b")
    assert ending.status is Status.FAILED


def test_a_result_that_no_other_followed_stands() -> None:
    assert run(INIT, DONE, message_start(), text("more")).ending.status is Status.COMPLETED


def test_max_turns_is_a_length_finish_only_with_an_exit_that_agrees() -> None:
    stopped = {"type": "result", "subtype": "error_max_turns", "is_error": True}
    assert run(INIT, stopped, code=1).terminal["metadata"]["tanstack"]["finishReason"] == "length"
    assert run(INIT, stopped, code=0).ending.status is Status.COMPLETED
    assert run(INIT, stopped, code=143).terminal["code"] == "agent_exit"


def test_an_error_result_is_believed_whatever_the_exit_code() -> None:
    failed = {"type": "result", "subtype": "error_during_execution", "is_error": True}
    for code in (0, 1, 143):
        log = run(INIT, failed, code=code)
        assert log.terminal["code"] == "error_during_execution"
        assert log.terminal["message"] == "The agent ended with error_during_execution."


def test_is_error_decides_over_success() -> None:
    log = run(INIT, {**DONE, "is_error": True, "api_error_status": 529, "result": "busy"}, code=1)
    assert (log.terminal["code"], log.terminal["message"]) == ("529", "busy")
    assert run(INIT, {**DONE, "is_error": True, "result": ""}, code=1).terminal["code"] == "agent_exit"
    worded = assistant({"type": "text", "text": "x"}, error="billing_error")
    assert run(INIT, worded, {**DONE, "is_error": True}, code=1).terminal["code"] == "billing_error"
