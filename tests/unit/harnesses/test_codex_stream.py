"""Lines of Codex that no recording holds: growing text, plans, ids that come again, work after the end of a turn."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from agent_runs import RUN, THREAD, Log, events, exited, play, spec

from runtime.core.launch import ExitKind
from runtime.core.record import Status
from runtime.harnesses.codex import CodexHarness
from runtime.harnesses.codex_stream import CodexTranslator

HARNESS = CodexHarness()
SPEC = spec("codex")

START: dict[str, Any] = {"type": "thread.started", "thread_id": "s1"}
DONE: dict[str, Any] = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 2}}


def item(phase: str, kind: str, cli_id: Any = "item_1", **fields: Any) -> dict[str, Any]:
    return {"type": f"item.{phase}", "item": {"id": cli_id, "type": kind, **fields}}


def text(phase: str, said: Any, cli_id: str = "item_1", kind: str = "agent_message") -> dict[str, Any]:
    return item(phase, kind, cli_id, text=said)


def command(phase: str, cli_id: str = "item_1", **fields: Any) -> dict[str, Any]:
    return item(phase, "command_execution", cli_id, command="ls", **fields)


def failed(message: Any = "no", **fields: Any) -> dict[str, Any]:
    return {"type": "turn.failed", "error": {"message": message}, **fields}


def run(*lines: dict[str, Any] | bytes, code: int | None = 0, signal: int | None = None) -> Log:
    encoded = [line if isinstance(line, bytes) else msgspec.json.encode(line) for line in lines]
    return play(HARNESS, SPEC, encoded, exited(code, signal))


def told(*lines: dict[str, Any] | bytes) -> list[dict[str, Any]]:
    """Return the events of `lines` after those of the thread's start."""
    return events(run(START, *lines).fed)[2:]


def short(found: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return the end of each type and what it says."""
    return [(event["type"].rsplit("_", 1)[-1], event.get("delta", event.get("content"))) for event in found]


def test_growing_text_becomes_what_is_new_in_it() -> None:
    found = told(text("started", ""), text("updated", "Hel"), text("updated", "Hello"), text("completed", "Hello!"))
    assert short(found) == [("START", None), ("CONTENT", "Hel"), ("CONTENT", "lo"), ("CONTENT", "!"), ("END", None)]
    assert {event["messageId"] for event in found} == {f"{RUN}:item_1"}
    assert found[0] == {"type": "TEXT_MESSAGE_START", "messageId": f"{RUN}:item_1", "role": "assistant"}


def test_text_that_comes_whole_is_one_message() -> None:
    assert short(told(text("completed", "Hi"))) == [("START", None), ("CONTENT", "Hi"), ("END", None)]
    assert short(told(text("completed", ""))) == [("START", None), ("END", None)]


def test_reasoning_is_a_burst_of_five() -> None:
    own = {"messageId": f"{RUN}:item_1"}
    assert told(text("completed", "hm", kind="reasoning")) == [
        {"type": "REASONING_START", **own},
        {"type": "REASONING_MESSAGE_START", "role": "reasoning", **own},
        {"type": "REASONING_MESSAGE_CONTENT", "delta": "hm", **own},
        {"type": "REASONING_MESSAGE_END", **own},
        {"type": "REASONING_END", **own},
    ]


def test_text_that_was_rewritten_is_raw_and_still_ends() -> None:
    rewritten = text("completed", "Goodbye")
    found = told(text("updated", "Hello"), rewritten)
    assert [event["type"] for event in found[-2:]] == ["TEXT_MESSAGE_END", "RAW"]
    assert found[-1]["event"] == rewritten


def test_two_texts_that_interleave_are_whole_and_never_open_together() -> None:
    found = told(
        text("updated", "a", "item_1"),
        text("updated", "x", "item_2"),
        text("completed", "ab", "item_1"),
        text("completed", "x", "item_2"),
    )
    assert short(found) == [
        *(("START", None), ("CONTENT", "a"), ("END", None)),
        *(("START", None), ("CONTENT", "x"), ("END", None)),
        *(("START", None), ("CONTENT", "b"), ("END", None)),
    ]
    assert [event["messageId"] for event in found[::3]] == [f"{RUN}:item_1", f"{RUN}:item_2", f"{RUN}-0"]


def test_an_id_that_comes_again_is_another_item() -> None:
    found = told(text("completed", "one"), text("completed", "two"), command("completed"), command("completed"))
    assert [event["messageId"] for event in found if event["type"] == "TEXT_MESSAGE_START"] == [
        f"{RUN}:item_1",
        f"{RUN}-0",
    ]
    calls = [event["toolCallId"] for event in found if event["type"] == "TOOL_CALL_START"]
    assert calls == [f"{RUN}-1", f"{RUN}-3"]


def test_a_call_opens_once_and_its_end_opens_one_that_never_began() -> None:
    begun = told(command("started", aggregated_output="", exit_code=None), command("completed", exit_code=0))
    assert [kind for kind, _ in short(begun)] == ["START", "ARGS", "END", "RESULT"]
    assert told(command("completed", exit_code=0)) == begun
    assert begun[-1]["content"] == '{"exit_code":0}'


def test_a_result_holds_what_else_is_known_and_no_nulls() -> None:
    (*_, result) = told(command("completed", aggregated_output="", exit_code=None, duration_ms=7, status="failed"))
    assert result["content"] == '{"aggregated_output":"","duration_ms":7,"status":"failed"}'


def test_a_second_start_and_an_update_of_a_call_are_raw() -> None:
    again, update = command("started", note=1), command("updated", aggregated_output="half")
    found = told(command("started"), again, update)
    assert [event["type"] for event in found[3:]] == ["RAW", "RAW"]
    assert [event["event"] for event in found[3:]] == [again, update]


def test_a_plan_is_a_call_without_arguments_and_its_steps_on_the_way_are_kept() -> None:
    def plan(phase: str, done: bool) -> dict[str, Any]:
        return item(phase, "todo_list", items=[{"text": "look", "completed": done}])

    found = told(plan("started", False), plan("updated", True), plan("completed", True))
    assert [event["type"] for event in found] == [
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"),
        *("RAW", "TOOL_CALL_RESULT"),
    ]
    assert found[1]["delta"] == "{}"
    assert json.loads(found[-1]["content"]) == {"items": [{"text": "look", "completed": True}]}


def test_a_refused_command_is_an_output_error() -> None:
    (*_, result) = told(command("completed", status="declined"))
    assert result["metadata"]["tanstack"] == {"state": "output-error"}


@pytest.mark.parametrize(
    ("given", "content"),
    [
        ({"error": {"message": "no such tool"}, "result": None}, "no such tool"),
        ({"error": {"code": 5}}, '{"code":5}'),
        ({"error": "odd"}, '"odd"'),
        ({"result": None, "status": "completed"}, '{"status":"completed"}'),
        ({"result": {"content": [{"type": "text", "text": "a"}], "structured_content": {"b": 1}}}, "a"),
        ({"result": {"content": [], "structured_content": {"b": 1}}}, '{"b":1}'),
        ({"result": {"content": [{"type": "image"}]}}, '{"content":[{"type":"image"}]}'),
        ({"result": {"content": [], "structured_content": None}}, '{"content":[],"structured_content":null}'),
        ({"result": [1]}, "[1]"),
        (
            {"result": {"content": [{"type": "image"}], "structured_content": {"b": 1}}},
            '{"content":[{"type":"image"}],"structured_content":{"b":1}}',
        ),
        (
            {"result": {"content": [{"type": "text", "text": "a"}, {"type": "image"}]}},
            '{"content":[{"type":"text","text":"a"},{"type":"image"}]}',
        ),
    ],
)
def test_the_result_of_a_foreign_tool_is_its_text_or_what_there_is(given: dict[str, Any], content: str) -> None:
    (*_, result) = told(item("completed", "mcp_tool_call", server="s", tool="t", arguments=None, **given))
    assert result["content"] == content


def test_lent_tools_have_their_bare_names() -> None:
    found = told(item("started", "mcp_tool_call", server="tanstack", tool="look", arguments={"b": 1, "a": 2}))
    assert (found[0]["toolCallName"], found[1]["delta"]) == ("look", '{"b":1,"a":2}')


def test_unknown_kinds_are_raw_with_their_source() -> None:
    odd: list[Any] = [
        {"type": "novelty", "x": 1},
        {"no": "type"},
        {"type": 5},
        {"type": "thread.started"},
        {"type": "item.started"},
        {"type": "item.completed", "item": 5},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "no id"}},
        item("completed", "agent_message", "", text="an empty id"),
        item("completed", "agent_message", 7, text="a number for an id"),
        item("completed", "agent_message"),
        item("completed", "novelty", x=1),
        item("completed", "error", message="Model metadata not found."),
        item("started", "mcp_tool_call", server="s"),
        {"type": "error", "message": "Reconnecting... 1/5"},
        [1, 2],
    ]
    assert told(*odd) == [{"type": "RAW", "event": line, "source": "codex"} for line in odd]


def test_lines_that_are_no_json_are_kept_and_start_the_run() -> None:
    log = run(b"WARNING: no aliases", START, {"type": "turn.started"}, DONE)
    assert log.types == ["RUN_STARTED", "CUSTOM", "CUSTOM", "RUN_FINISHED"]
    assert log.events[1]["value"] == {"line": "WARNING: no aliases"}


def test_a_resumed_run_without_a_thread_line_starts_with_what_comes_first() -> None:
    assert run({"type": "turn.started"}, DONE).types == ["RUN_STARTED", "RUN_FINISHED"]


def test_the_end_of_a_turn_closes_the_text_and_answers_for_every_open_call() -> None:
    log = run(START, command("started", "item_1"), command("started", "item_2"), text("updated", "so", "item_3"), DONE)
    found = events(log.fed)[-3:]
    assert [event["type"] for event in found] == ["TEXT_MESSAGE_END", "TOOL_CALL_RESULT", "TOOL_CALL_RESULT"]
    assert [event["toolCallId"] for event in found[1:]] == [f"{RUN}:item_1", f"{RUN}:item_2"]
    assert log.ending.chunks == ()


def test_a_result_after_the_end_of_a_turn_still_belongs_to_its_call() -> None:
    found = told(command("started"), DONE, command("completed", exit_code=0))
    assert [event["toolCallId"] for event in found if event["type"] == "TOOL_CALL_RESULT"] == [f"{RUN}:item_1"] * 2


def test_the_last_end_counts_and_the_one_before_is_kept() -> None:
    log = run(START, DONE, {"type": "turn.started"}, failed("worse"), code=1)
    assert (log.terminal["message"], log.terminal["code"]) == ("worse", "turn.failed")
    assert events(log.fed)[-1] == {"type": "RAW", "event": DONE, "source": "codex"}
    assert run(START, failed(), {"type": "turn.started"}, DONE).ending.status is Status.COMPLETED


def test_work_after_the_end_of_a_turn_takes_the_wait_for_the_exit_back() -> None:
    translator = CodexTranslator(RUN, THREAD, None)
    states = []
    for line in (START, DONE, {"type": "novelty"}, {"type": "turn.started"}, text("completed", "more"), DONE):
        translator.feed(msgspec.json.encode(line))
        states.append(translator.has_result)
    assert states == [False, True, True, False, False, True]
    assert run(START, DONE, text("completed", "more")).ending.status is Status.COMPLETED


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("unexpected status 401 Unauthorized: no", "401"),
        ("exceeded retry limit, last status: 429 Too Many Requests", "429"),
        ("the tool said: unexpected status 500", "turn.failed"),
        ("unexpected status 200 OK", "turn.failed"),
    ],
)
def test_a_failed_turn_has_the_http_status_as_its_code_or_its_own_name(message: str, code: str) -> None:
    log = run(START, failed(message), code=1)
    assert (log.terminal["message"], log.terminal["code"]) == (message, code)
    assert log.terminal["metadata"] == {"tanstack": {"runId": RUN}}


@pytest.mark.parametrize("error", [None, 5, {}, {"message": ""}, {"message": 5}, [1]])
def test_a_failed_turn_without_a_reason_says_so(error: Any) -> None:
    assert run(START, {"type": "turn.failed", "error": error}, code=1).terminal["message"].endswith("no reason.")


def test_a_failed_turn_is_believed_whatever_the_exit_code() -> None:
    for code in (0, 1, 143):
        assert run(START, failed(), code=code).terminal["code"] == "turn.failed"


def test_an_error_that_nothing_came_after_is_the_last_word_of_an_agent_that_exits() -> None:
    broken = {"type": "error", "message": "unexpected status 403 Forbidden: no"}
    log = run(START, broken, code=1)
    assert (log.terminal["code"], log.terminal["message"]) == ("403", broken["message"])
    assert run(START, {"type": "error", "message": "broken"}, code=0).terminal["code"] == "error"
    assert run(START, broken, command("started"), code=1).terminal["code"] == "agent_exit"
    assert run(START, broken, DONE).ending.status is Status.COMPLETED


def test_a_signal_that_finds_the_agent_reconnecting_is_a_signal() -> None:
    trying = {"type": "error", "message": "Reconnecting... 2/5"}
    assert run(START, trying, code=None, signal=15).terminal["code"] == "agent_signal"
    killed = play(HARNESS, SPEC, [msgspec.json.encode(trying)], exited(kind=ExitKind.KILLED))
    assert killed.terminal["code"] == "agent_signal"


def test_usage_that_is_not_there_is_left_out() -> None:
    for usage in (None, 5, {}, {"input_tokens": True, "output_tokens": 1}):
        log = run(START, {"type": "turn.completed", "usage": usage})
        assert "usage" not in log.terminal
        assert log.ending.usage is None
    assert run(START, DONE).ending.usage == {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}


def test_arguments_with_a_lone_surrogate_are_json_all_the_same() -> None:
    line = b'{"type":"item.completed","item":{"id":"i","type":"command_execution","command":"\\ud800"}}'
    assert json.loads(told(line)[1]["delta"]) == {"command": "\ud800"}
