"""The agui harness: printed events pass through, one run is made of them, and the exit ends it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from agent_runs import RUN, THREAD, Log, exited, play, request, spec

from runtime.core.launch import ExitKind
from runtime.core.record import RunSpec, Status
from runtime.harnesses.agui import AguiHarness
from runtime.ports import Harness
from runtime.testing.harness_kit import HarnessKit, Transcript

HARNESS = AguiHarness()
SPEC = spec("agui", command=["python3", "agent.py"])

STARTED = {"type": "RUN_STARTED", "threadId": "theirs", "runId": "theirs"}
FINISHED = {"type": "RUN_FINISHED", "threadId": "theirs", "runId": "theirs"}
FAILED = {"type": "RUN_ERROR", "message": "no luck", "code": "E7"}
OPEN = {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"}
TEXT = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "hi"}
CLOSE = {"type": "TEXT_MESSAGE_END", "messageId": "m"}
NOTE = {"type": "CUSTOM", "name": "note", "value": 1}
OURS = {"runId": RUN, "threadId": THREAD}


def lines(*printed: dict[str, Any] | str) -> list[bytes]:
    return [(text if isinstance(text, str) else json.dumps(text)).encode() for text in printed]


def run(*printed: dict[str, Any] | str, code: int = 0) -> Log:
    return play(HARNESS, SPEC, lines(*printed), exited(code), stderr=b"stderr's end\n" if code else b"")


class TestAguiKit(HarnessKit):
    in_order = False
    clockless = False

    def harness(self) -> Harness:
        return HARNESS

    def spec(self) -> RunSpec:
        return SPEC

    def transcripts(self) -> list[Transcript]:
        scripts: dict[str, list[dict[str, Any] | str]] = {
            "silent": [],
            "plain": ["hello", "world"],
            "whole": [STARTED, OPEN, TEXT, CLOSE, FINISHED],
            "two runs": [STARTED, FINISHED, STARTED, NOTE, FAILED],
            "late": ["banner", NOTE, STARTED, FINISHED, NOTE, "bye"],
            "unstarted": [OPEN, TEXT, CLOSE],
            "odd": [{"type": "RUN_ERROR"}, {"type": "NEW_KIND"}, "[1]", {**TEXT, "timestamp": 5}],
        }
        return [Transcript(name, tuple(lines(*script))) for name, script in scripts.items()]

    def bad_inputs(self) -> dict[str, dict[str, Any]]:
        return {
            "no command": request(),
            "a shell command": request(command="python3 agent.py"),
            "empty": request(command=[]),
            "empty program": request(command=[""]),
            "a number": request(command=["sleep", 1]),
            "NUL": request(command=["a\0b"]),
            "a lone surrogate": request(command=["\udc00"]),
            "an argument too long": request(command=["x", "y" * 131_072]),
            "too much in all": request(command=["x" * 100_000] * 11),
            "env values": request(command=["x"], env={"A": 1}),
            "env names": request(command=["x"], env=["A B"]),
        }


def test_events_pass_with_the_runs_own_ids() -> None:
    log = run(STARTED, OPEN, {**TEXT, "timestamp": 17, "threadId": "theirs"}, CLOSE, FINISHED)
    assert log.events == [
        {"type": "RUN_STARTED", **OURS},
        OPEN,
        {**TEXT, "timestamp": 17, "threadId": THREAD},
        CLOSE,
        {"type": "RUN_FINISHED", **OURS, "metadata": {"tanstack": {"finishReason": "stop"}}},
    ]
    assert (log.ending.status, log.ending.error) == (Status.COMPLETED, None)


def test_ids_in_metadata_are_replaced_and_the_rest_of_it_kept() -> None:
    log = run({**NOTE, "metadata": {"mine": 1, "tanstack": {"runId": "theirs", "model": "m"}}}, FINISHED)
    assert log.events[0]["metadata"] == {"mine": 1, "tanstack": {"runId": RUN, "model": "m"}}


def test_a_missing_start_is_supplied_before_the_first_event_that_needs_one() -> None:
    assert run("banner", NOTE, OPEN, TEXT).types[:4] == ["CUSTOM", "CUSTOM", "RUN_STARTED", "TEXT_MESSAGE_START"]


def test_a_printed_start_keeps_what_else_it_says() -> None:
    assert run("banner", {**STARTED, "input": {"a": 1}}).events[1] == {"type": "RUN_STARTED", **OURS, "input": {"a": 1}}


def test_a_start_in_an_open_run_is_raw() -> None:
    log = run(OPEN, STARTED, FINISHED)
    assert log.types == ["RUN_STARTED", "TEXT_MESSAGE_START", "RAW", "RUN_FINISHED"]
    assert log.events[2] == {"type": "RAW", "event": STARTED, "source": "agui"}


def test_a_terminal_is_held_until_the_exit() -> None:
    translator = HARNESS.translator(RUN, SPEC)
    (start,) = lines(STARTED)
    (finish,) = lines(FINISHED)
    translator.feed(start)
    assert not translator.has_result
    assert translator.feed(finish) == []
    assert translator.has_result


def test_other_chunks_go_before_a_held_terminal() -> None:
    assert run(STARTED, FINISHED, NOTE, "bye").types == ["RUN_STARTED", "CUSTOM", "CUSTOM", "RUN_FINISHED"]


def test_a_held_terminal_is_released_before_another_start() -> None:
    log = run(STARTED, {**FINISHED, "outcome": {"type": "success"}}, STARTED, FINISHED)
    assert log.types == ["RUN_STARTED", "RUN_FINISHED", "RUN_STARTED", "RUN_FINISHED"]
    assert [{key: event[key] for key in OURS} for event in log.events] == [OURS] * 4
    assert log.events[1]["outcome"] == {"type": "success"}


def test_an_error_is_released_too_and_the_next_run_decides() -> None:
    log = run(STARTED, FAILED, STARTED, FINISHED)
    assert log.types == ["RUN_STARTED", "RUN_ERROR", "RUN_STARTED", "RUN_FINISHED"]
    assert log.ending.status is Status.COMPLETED


def test_a_run_started_after_a_terminal_takes_the_result_back() -> None:
    translator = HARNESS.translator(RUN, SPEC)
    for line in lines(STARTED, FINISHED, STARTED):
        translator.feed(line)
    assert not translator.has_result


@pytest.mark.parametrize("both", [(FINISHED, FAILED), (FAILED, FINISHED)])
def test_of_two_terminals_the_error_wins_and_the_other_is_kept(both: tuple[dict[str, Any], ...]) -> None:
    log = run(STARTED, *both)
    assert log.types == ["RUN_STARTED", "RAW", "RUN_ERROR"]
    assert log.of("RAW")[0]["event"] == FINISHED


def test_a_printed_error_fails_the_run_whatever_the_exit_code() -> None:
    for code in (0, 1):
        log = run(STARTED, FAILED, code=code)
        assert log.terminal == {**FAILED, "metadata": {"tanstack": {"runId": RUN}}}
        assert log.ending.status is Status.FAILED
        assert log.ending.error is not None
        assert log.ending.error.code == "E7"


def test_an_error_may_be_nested_and_its_code_a_number() -> None:
    log = run({"type": "RUN_ERROR", "error": {"message": "busy", "code": 429}})
    assert (log.terminal["message"], log.terminal["code"]) == ("busy", "429")
    assert "error" not in log.terminal


def test_a_success_that_the_exit_code_contradicts_is_a_failure_and_is_kept() -> None:
    log = run(STARTED, FINISHED, code=2)
    assert log.types == ["RUN_STARTED", "RAW", "RUN_ERROR"]
    assert log.of("RAW")[0] == {"type": "RAW", "event": FINISHED, "source": "agui"}
    assert log.terminal["code"] == "agent_exit"
    assert log.terminal["message"].endswith("stderr's end")


def test_no_terminal_is_no_result() -> None:
    assert run(STARTED, OPEN, TEXT).terminal["code"] == "agent_no_result"
    assert run(STARTED, OPEN, TEXT, code=2).terminal["code"] == "agent_exit"
    assert run("just text").terminal["code"] == "agent_no_result"


def test_a_terminal_without_an_exit_ends_as_it_says() -> None:
    hung = exited(kind=ExitKind.NO_EXIT)
    assert play(HARNESS, SPEC, lines(STARTED, FINISHED), hung).ending.status is Status.COMPLETED
    log = play(HARNESS, SPEC, lines(STARTED, FAILED), hung)
    assert log.terminal["code"] == "agent_no_exit"
    assert "no luck" in log.terminal["message"]
    assert "E7" in log.terminal["message"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ({"type": "success"}, Status.COMPLETED),
        ({"type": "interrupt", "interrupts": [{"id": "i"}]}, Status.INTERRUPTED),
        ({"type": "cancelled"}, Status.ABORTED),
        ("odd", Status.COMPLETED),
    ],
)
def test_the_outcome_makes_the_status(outcome: Any, status: Status) -> None:
    log = run(STARTED, {**FINISHED, "outcome": outcome})
    assert log.ending.status is status
    assert log.terminal["outcome"] == outcome


def test_a_printed_finish_reason_and_usage_are_kept() -> None:
    usage = [{"inputTokens": 3}]
    log = run(STARTED, {**FINISHED, "usage": usage, "metadata": {"tanstack": {"finishReason": "length"}}})
    assert log.terminal["metadata"] == {"tanstack": {"finishReason": "length"}}
    assert log.ending.usage == {"inputTokens": 3}


def test_other_json_is_raw_and_other_text_is_stdout() -> None:
    log = run("plain", {"type": "NEW_KIND"}, "[1]", "42", "NaN", {"no": "type"}, {"type": "SUBAGENT_STARTED"})
    assert log.events[:-2] == [
        {"type": "CUSTOM", "name": "process.stdout", "value": {"line": "plain"}},
        {"type": "RAW", "event": {"type": "NEW_KIND"}, "source": "agui"},
        {"type": "RAW", "event": [1], "source": "agui"},
        {"type": "RAW", "event": 42, "source": "agui"},
        {"type": "CUSTOM", "name": "process.stdout", "value": {"line": "NaN"}},
        {"type": "RAW", "event": {"no": "type"}, "source": "agui"},
        {"type": "RUN_STARTED", **OURS},
    ]
    assert log.events[-2] == {"type": "SUBAGENT_STARTED"}


def test_a_whole_event_counts_without_its_newline_and_half_of_one_is_marked() -> None:
    (finish,) = lines(FINISHED)
    assert play(HARNESS, SPEC, lines(STARTED), torn=finish).ending.status is Status.COMPLETED
    log = play(HARNESS, SPEC, lines(STARTED), torn=finish[:-1])
    assert log.of("CUSTOM")[0]["value"] == {"line": finish[:-1].decode(), "torn": True}
    assert log.ending.status is Status.FAILED
    assert play(HARNESS, SPEC, [], torn=b"12").of("CUSTOM")[0]["value"] == {"line": "12", "torn": True}


def test_the_input_goes_to_stdin_as_one_line_with_its_required_fields() -> None:
    launch = HARNESS.launch(RUN, SPEC, {"PATH": "/bin"}, "/workspace", [])
    assert launch.argv == ("python3", "agent.py")
    assert launch.stdin.endswith(b"\n")
    assert launch.stdin.count(b"\n") == 1
    given = json.loads(launch.stdin)
    assert given == {**SPEC.input, "state": {}, "tools": [], "context": []}


def test_stored_history_goes_before_a_single_message_only() -> None:
    history = [{"id": "a", "role": "user", "content": "before"}]
    given = json.loads(HARNESS.launch(RUN, SPEC, {}, "/w", history).stdin)
    assert [message["id"] for message in given["messages"]] == ["a", "u1"]
    whole = {**SPEC.input, "messages": [{"id": "x", "role": "user", "content": "1"}, *SPEC.input["messages"]]}
    given = json.loads(HARNESS.launch(RUN, msgspec.structs.replace(SPEC, input=whole), {}, "/w", history).stdin)
    assert [message["id"] for message in given["messages"]] == ["x", "u1"]
