"""What real Claude Code sessions become: every recording, with the ending that its own exit code makes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby

import pytest
import recorded
from agent_runs import RUN, THREAD, Log, play, spec

from runtime.core.launch import AgentExit, ExitKind
from runtime.core.record import RunSpec, Status
from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.ports import Harness
from runtime.testing.harness_kit import HarnessKit, Transcript

HARNESS = ClaudeCodeHarness()
SPEC = spec("claude-code")

TOOLS_TEXT = "I will create the file first.|Now I list the directory.|Done: hello.txt has two lines."
TOOLS_CALLS = "Write Bash Bash Bash Bash"
LETTERS = {
    "RUN_STARTED": "S",
    "CUSTOM": "u",
    "RAW": "w",
    "TEXT_MESSAGE_START": "<",
    "TEXT_MESSAGE_CONTENT": "t",
    "TEXT_MESSAGE_END": ">",
    "TOOL_CALL_START": "(",
    "TOOL_CALL_ARGS": "a",
    "TOOL_CALL_END": ")",
    "TOOL_CALL_RESULT": "r",
    "RUN_FINISHED": "F",
    "RUN_ERROR": "E",
}


@dataclass(frozen=True)
class Expected:
    """`types` is one letter a run of equal types (LETTERS); `ending` the finish reason or the error's code."""

    types: str
    ending: str
    text: str | None = None
    calls: str = ""


EXPECTED = {
    "claude-big": Expected(
        "Su<t>(a)r(a)r(a)r<t>F", "stop", "Writing one very long line.|Big line handled.", "Write Bash Bash"
    ),
    "claude-denied": Expected("Su<t>(a)r<t>(a)r(a)(a)r(a)r<t>F", "stop", TOOLS_TEXT, TOOLS_CALLS),
    "claude-err400": Expected("Su<t>E", "400", "API Error: 400 stub says no"),
    "claude-err401": Expected("Suw<t>E", "401", "Failed to authenticate. API Error: 401 stub says no"),
    "claude-err429": Expected("Suw<t>E", "429", "API Error: Request rejected (429) · stub says no"),
    "claude-err500": Expected("Suw<t>E", "500"),
    "claude-err529": Expected("Suw<t>E", "server_error"),
    "claude-hangup": Expected("Su<t>F", "stop", "one two three four five six seven eight nine ten"),
    "claude-long-partial": Expected("Su" + "w<t>(a)r" * 30 + "w<t>F", "stop", None, "Bash " * 30),
    "claude-maxturns": Expected("Su<t>(a)r<t>(a)rF", "length", None, "Write Bash"),
    "claude-resume": Expected("Su" + "<t>(a)r" * 8 + "<t>F", "stop", None, "Bash " * 8),
    "claude-sighup": Expected("Su<t>(a)rE", "agent_exit", None, "Bash"),
    "claude-sigkill": Expected("Su<t>(a)rE", "agent_signal", None, "Bash"),
    "claude-sigterm-intool": Expected("Su<t>(a)rE", "agent_exit", "Starting a long command.", "Bash"),
    "claude-sigterm-partial": Expected("Suw<t>(a)rw<tE", "agent_exit", None, "Bash"),
    "claude-sigterm-stream": Expected("Su<t>(a)rE", "agent_exit", None, "Bash"),
    "claude-text": Expected("Su<t>F", "stop", "The answer is 4. Two plus two is four."),
    "claude-tools": Expected("Su<t>(a)r<t>(a)r(a)(a)r(a)r<t>F", "stop", TOOLS_TEXT, TOOLS_CALLS),
    "claude-tools-partial": Expected("Suw<t>(a)rw<t>(a)rw(a)(a)rw(a)rw<t>F", "stop", TOOLS_TEXT, TOOLS_CALLS),
    "claude-torn-big": Expected("Su<t>uE", "agent_signal", "Writing one very long line."),
    "claude-torn-utf8": Expected("SuE", "agent_signal", ""),
    "claude-unicode": Expected("Su<t>(a)r<t>F", "stop", None, "Bash"),
    "v2.1.332-claude-text": Expected("Su<t>F", "stop", "The answer is 4. Two plus two is four."),
    "v2.1.332-claude-tools": Expected("Su<t>(a)r<t>(a)r(a)(a)r(a)r<t>F", "stop", TOOLS_TEXT, TOOLS_CALLS),
    "v2.1.332-claude-tools-partial": Expected("Suw<t>(a)rw<t>(a)rw(a)(a)rw(a)rw<t>F", "stop", TOOLS_TEXT, TOOLS_CALLS),
}


def replay(name: str, exit: AgentExit | None = None) -> Log:
    recording = recorded.load(name)
    return play(HARNESS, SPEC, recording.lines, exit or recording.exit, torn=recording.torn)


def texts(log: Log) -> list[str]:
    """Return the text of each message, in order."""
    found: list[str] = []
    for event in log.of("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"):
        found.append("") if event["type"] == "TEXT_MESSAGE_START" else found.append(found.pop() + event["delta"])
    return found


class TestClaudeKit(HarnessKit):
    def harness(self) -> Harness:
        return HARNESS

    def spec(self) -> RunSpec:
        return SPEC

    def transcripts(self) -> list[Transcript]:
        loaded = [recorded.load(name) for name in recorded.names("claude")]
        return [Transcript(one.name, one.lines, one.torn, one.exit) for one in loaded]


def test_every_recording_is_expected() -> None:
    assert recorded.names("claude") == sorted(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recording_becomes_what_its_agent_did(name: str) -> None:
    log, expected = replay(name), EXPECTED[name]
    assert "".join(LETTERS[kind] for kind, _ in groupby(log.types)) == expected.types
    assert [event["toolCallName"] for event in log.of("TOOL_CALL_START")] == expected.calls.split()
    if expected.text is not None:
        assert "|".join(texts(log)) == expected.text
    if log.terminal["type"] == "RUN_FINISHED":
        assert (log.ending.status, log.ending.error) == (Status.COMPLETED, None)
        assert log.terminal["metadata"]["tanstack"]["finishReason"] == expected.ending
        assert {key: log.terminal[key] for key in ("runId", "threadId")} == {"runId": RUN, "threadId": THREAD}
    else:
        assert log.ending.status is Status.FAILED
        assert log.ending.error is not None
        assert log.terminal["code"] == log.ending.error.code == expected.ending
        assert log.terminal["metadata"]["tanstack"]["runId"] == RUN


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_agents_ids_are_kept_and_each_call_has_one_result(name: str) -> None:
    log = replay(name)
    calls = [event["toolCallId"] for event in log.of("TOOL_CALL_START")]
    assert sorted(event["toolCallId"] for event in log.of("TOOL_CALL_RESULT")) == sorted(calls)
    assert all(call.startswith("toolu_") for call in calls)
    ids = [event["messageId"] for event in log.of("TOOL_CALL_RESULT")]
    assert ids == [f"{RUN}-{number}" for number in range(len(calls))]
    for event in log.of("TEXT_MESSAGE_START"):
        assert event["messageId"].startswith(("msg_", f"{RUN}:"))


def test_streamed_and_whole_messages_say_the_same() -> None:
    whole, streamed = replay("claude-tools"), replay("claude-tools-partial")
    assert texts(whole) == texts(streamed)
    kinds = ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT")
    assert whole.of(*kinds) == streamed.of(*kinds)


def test_a_tool_call_is_whole_and_its_arguments_keep_their_order() -> None:
    start, args, end = replay("claude-tools").of("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END")[:3]
    call, model = {"toolCallId": "toolu_stub000001"}, {"model": "claude-opus-4-8[1m]"}
    given = {"file_path": "/workspace/hello.txt", "content": "hello from the agent\nline two\n"}
    assert start == {"type": "TOOL_CALL_START", **call, "toolCallName": "Write", "metadata": {"tanstack": model}}
    assert args == {"type": "TOOL_CALL_ARGS", **call, "delta": json.dumps(given, separators=(",", ":"))}
    tanstack = {**model, "toolCallName": "Write", "toolName": "Write", "input": given}
    assert end == {"type": "TOOL_CALL_END", **call, "metadata": {"tanstack": tanstack}}


def test_a_refused_tool_is_an_output_error_in_a_run_that_ends_well() -> None:
    results = replay("claude-denied").of("TOOL_CALL_RESULT")
    assert [event["metadata"]["tanstack"].get("state") for event in results] == [
        "output-error", None, "output-error", None, "output-error",
    ]  # fmt: skip
    assert results[0]["content"].startswith("Claude requested permissions to write")


def test_the_session_is_announced_once_so_that_it_can_be_resumed() -> None:
    log = replay("claude-text")
    assert log.events[0] == {
        "type": "RUN_STARTED",
        "runId": RUN,
        "threadId": THREAD,
        "metadata": {"tanstack": {"model": "claude-opus-4-8[1m]"}},
    }
    session = log.events[1]
    assert session["name"] == "claude-code.session-id"
    assert session["value"]["sessionId"] == "00000001-0000-4000-8000-000000000001"
    assert session["value"]["model"] == "claude-opus-4-8[1m]"
    assert "Bash" in session["value"]["tools"]


def test_the_usage_is_one_element_and_its_details_lie_beside_it() -> None:
    log = replay("claude-tools")
    element = {
        "model": "claude-opus-4-8[1m]",
        "inputTokens": 9535,
        "outputTokens": 41,
        "totalTokens": 9576,
        "cachedInputTokens": 0,
    }
    assert log.terminal["usage"] == [element]
    assert log.terminal["metadata"]["tanstack"]["usage"] == {
        "promptTokensDetails": {"cachedTokens": 0, "cacheWriteTokens": 0},
        "providerUsageDetails": {"totalCostUsd": 0.0487},
    }
    assert log.ending.usage == {**element, "cachedTokens": 0, "cacheWriteTokens": 0, "totalCostUsd": 0.0487}


def test_a_failure_of_the_api_says_what_the_agent_says() -> None:
    log = replay("claude-err429")
    assert log.terminal["message"] == "API Error: Request rejected (429) · stub says no"
    assert log.terminal["usage"][0]["totalTokens"] == 0
    assert [event["event"]["error"] for event in log.of("RAW")] == ["rate_limit", "rate_limit"]


def test_a_torn_line_is_kept_and_marked() -> None:
    recording = recorded.load("claude-torn-big")
    last = replay("claude-torn-big").of("CUSTOM")[-1]
    assert recording.torn is not None
    assert last["name"] == "process.stdout"
    assert last["value"] == {"line": recording.torn.decode(), "torn": True}
    assert replay("claude-torn-utf8").of("CUSTOM")[-1]["value"]["line"].endswith("\ufffd")


def test_lines_of_300_kilobytes_pass_whole() -> None:
    (args, *_) = replay("claude-big").of("TOOL_CALL_ARGS")
    assert len(json.loads(args["delta"])["content"]) == 300 * 1024


def test_a_call_that_a_signal_cut_off_is_interrupted_by_the_ending() -> None:
    log = replay("claude-sigterm-intool")
    (result,) = log.of("TOOL_CALL_RESULT")
    assert result["content"] == '{"status":"interrupted"}'
    assert log.ending.chunks[0] in log.chunks[len(log.fed) :]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ExitKind.LOST, "agent_lost"),
        (ExitKind.LOG_LIMIT, "log_limit"),
        (ExitKind.KILLED, "agent_signal"),
        (ExitKind.SPAWN_FAILED, "launch_failed"),
    ],
)
def test_a_broken_exit_overrules_a_success_and_keeps_what_was_said(kind: ExitKind, code: str) -> None:
    log = replay("claude-text", AgentExit(kind=kind, journal_length=0))
    assert log.terminal["code"] == code
    assert log.events[-2]["event"]["subtype"] == "success"


def test_a_success_whose_process_hangs_is_a_success() -> None:
    hung = AgentExit(kind=ExitKind.NO_EXIT, journal_length=0)
    assert replay("claude-text", hung).ending.status is Status.COMPLETED
    assert replay("claude-maxturns", hung).ending.status is Status.COMPLETED
    assert replay("claude-err429", hung).terminal["code"] == "agent_no_exit"
    assert "429" in replay("claude-err429", hung).terminal["message"]


def test_a_success_with_another_exit_code_is_a_failure() -> None:
    log = replay("claude-text", AgentExit(kind=ExitKind.EXITED, journal_length=0, code=1))
    assert (log.ending.status, log.terminal["code"]) == (Status.FAILED, "agent_exit")
    assert log.ending.usage is not None


def test_an_exit_without_a_result_has_its_own_code() -> None:
    done = AgentExit(kind=ExitKind.EXITED, journal_length=0, code=0)
    assert replay("claude-sigkill", done).terminal["code"] == "agent_no_result"
