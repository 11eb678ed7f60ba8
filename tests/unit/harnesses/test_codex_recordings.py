"""What real Codex sessions become: every recording, with the ending that its own exit code makes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any

import pytest
import recorded
from agent_runs import RUN, THREAD, Log, exited, play, spec

from runtime.core.framing import Framer
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.record import RunSpec, Status
from runtime.harnesses.codex import CodexHarness
from runtime.ports import Harness
from runtime.testing.harness_kit import HarnessKit, Transcript

HARNESS = CodexHarness()
SPEC = spec("codex")

TOOLS_TEXT = "I will create the file first.|Now I list the directory.|Done: hello.txt has two lines."
TOOLS_CALLS = "file_change" + " command_execution" * 4
LETTERS = {
    "RUN_STARTED": "S",
    "CUSTOM": "u",
    "RAW": "w",
    "REASONING_START": "[",
    "REASONING_MESSAGE_START": "",
    "REASONING_MESSAGE_CONTENT": "h",
    "REASONING_MESSAGE_END": "",
    "REASONING_END": "]",
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
    """`types` is one letter a run of equal types (LETTERS); `ending` the finish reason or the error's code.

    The first `w` of most is the CLI's warning that it does not know the stub's model."""

    types: str
    ending: str
    text: str | None = None
    calls: str = ""


EXPECTED = {
    "codex-big": Expected(
        "Suw<t>(a)r(a)r(a)r<t>F",
        "stop",
        "Writing one very long line.|Big line handled.",
        "file_change command_execution command_execution",
    ),
    "codex-err401": Expected("SuwE", "401", ""),
    "codex-err429": Expected("SuwE", "429", ""),
    "codex-err500": Expected("SuwE", "turn.failed", ""),
    "codex-err529-mid": Expected(
        "Suw<t>(a)r<t>(a)rwE",
        "529",
        "I will create the file first.|Now I list the directory.",
        "file_change command_execution",
    ),
    "codex-hangup": Expected("SuwE", "turn.failed", ""),
    "codex-kinds": Expected(
        "Suw[h](a)r<t>(a)r(a)r(a)r[h]<t>F",
        "stop",
        "Searched.|All kinds were used.",
        "web_search mcp__echo__say mcp__echo__fail mcp__echo__shape",
    ),
    "codex-parallel": Expected("Suw<t>(a)r<t>(a)r(a)(a)r(a)r<t>F", "stop", TOOLS_TEXT, TOOLS_CALLS),
    "codex-reconnected": Expected("Suw<t>F", "stop", "The answer is 4. Two plus two is four."),
    "codex-resume": Expected("Suw" + "<t>(a)r" * 9 + "<t>F", "stop", None, "command_execution " * 9),
    "codex-sigint-intool": Expected("Suw<t>(a)rE", "agent_exit", "Starting a long command.", "command_execution"),
    "codex-sigkill": Expected("Suw" + "<t>(a)r" * 10 + "<t>wE", "agent_signal", None, "command_execution " * 10),
    "codex-sigterm-intool": Expected("Suw<t>(a)rE", "agent_signal", "Starting a long command.", "command_execution"),
    "codex-text": Expected("Suw<t>F", "stop", "The answer is 4. Two plus two is four."),
    "codex-tools": Expected("Suw<t>(a)r<t>(a)r(a)r(a)r(a)r<t>F", "stop", TOOLS_TEXT, TOOLS_CALLS),
}


def _line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


def _text(phase: str, cli_id: str, text: str) -> bytes:
    return _line(f"item.{phase}", item={"id": cli_id, "type": "agent_message", "text": text})


# What the CLI of the recordings does not do, and another one may.
UNRECORDED = [
    Transcript(
        "growing",
        (
            _line("thread.started", thread_id="s"),
            *(_text("started", "item_0", ""), _text("updated", "item_0", "a"), _text("updated", "item_1", "x")),
            *(
                _text("updated", "item_0", "ab"),
                _text("completed", "item_1", "xy"),
                _text("completed", "item_0", "abc"),
            ),
            *(_text("completed", "item_0", "again"), _line("turn.completed"), _line("turn.started")),
        ),
    ),
    Transcript(
        "complaint",
        (_line("turn.started"), _line("error", message="unexpected status 403 Forbidden: no"), _line("novelty")),
        exit=exited(1),
    ),
]


def replay(name: str, exit: AgentExit | None = None, run: RunSpec = SPEC) -> Log:
    recording = recorded.load(name)
    return play(HARNESS, run, recording.lines, exit or recording.exit, torn=recording.torn)


def texts(log: Log) -> list[str]:
    """Return the text of each message, in order."""
    found: list[str] = []
    for event in log.of("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"):
        found.append("") if event["type"] == "TEXT_MESSAGE_START" else found.append(found.pop() + event["delta"])
    return found


def framed(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the chunks of a journal that comes in pieces."""
    framer, translator = Framer(0, 1 << 20), HARNESS.translator(RUN, SPEC)
    chunks = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        for line in framer.feed(data[start:end]).lines:
            chunks += translator.feed(line)
    for line in framer.finish().lines:
        chunks += translator.feed(line, torn=True)
    return chunks


class TestCodexKit(HarnessKit):
    def harness(self) -> Harness:
        return HARNESS

    def spec(self) -> RunSpec:
        return SPEC

    def transcripts(self) -> list[Transcript]:
        loaded = [recorded.load(name) for name in recorded.names("codex")]
        return [*(Transcript(one.name, one.lines, one.torn, one.exit) for one in loaded), *UNRECORDED]

    def bad_inputs(self) -> dict[str, dict[str, Any]]:
        said = SPEC.input
        return {
            "a session without a UUID": {**said, "forwardedProps": {"sessionId": "my-session"}},
            "no user text": {**said, "messages": []},
        }


def test_every_recording_is_expected() -> None:
    assert recorded.names("codex") == sorted(EXPECTED)


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
def test_ids_are_the_runs_own_and_each_call_has_one_result(name: str) -> None:
    log = replay(name)
    calls = [event["toolCallId"] for event in log.of("TOOL_CALL_START")]
    assert len(set(calls)) == len(calls)
    assert sorted(event["toolCallId"] for event in log.of("TOOL_CALL_RESULT")) == sorted(calls)
    assert all(call.startswith(f"{RUN}:") for call in calls)
    results = [event["messageId"] for event in log.of("TOOL_CALL_RESULT")]
    assert results == [f"{RUN}-{number}" for number in range(len(calls))]
    messages = [event["messageId"] for event in log.of("TEXT_MESSAGE_START", "REASONING_START")]
    assert len(set(messages)) == len(messages)
    assert all(message.startswith(f"{RUN}:item_") for message in messages)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_any_cut_of_the_bytes_gives_the_same_chunks(name: str) -> None:
    data, chance = recorded.load(name).data, Random(name)  # noqa: S311 - a seed, no secret
    whole = framed(data, [])
    assert whole == replay(name).fed
    for cuts in ([at] for at in range(len(data) + 1)) if len(data) < 1_000 else ():
        assert framed(data, cuts) == whole
    for count in (1, 2, 10, 100):
        assert framed(data, sorted(chance.randrange(len(data)) for _ in range(count))) == whole


@pytest.mark.parametrize("name", ["codex-tools", "codex-kinds"])
def test_a_journal_torn_anywhere_loses_nothing(name: str) -> None:
    data = recorded.load(name).data
    whole = replay(name).fed
    for at in range(len(data)):
        rest = data[:at].rpartition(b"\n")[2]
        made = framed(data[:at], [])
        if not rest or made == whole[: len(made)]:
            continue  # whole lines; or a last one that lacks nothing but its newline
        last = json.loads(made[-1])
        assert made[:-1] == whole[: len(made) - 1]
        assert (last["name"], last["value"]) == ("process.stdout", {"line": rest.decode(), "torn": True})


def test_the_session_is_announced_so_that_it_can_be_resumed() -> None:
    started, session = replay("codex-text").events[:2]
    assert started == {"type": "RUN_STARTED", "runId": RUN, "threadId": THREAD}
    value = {"sessionId": "00000001-0000-7000-8000-000000000001"}
    assert session == {"type": "CUSTOM", "name": "codex.session-id", "value": value}


def test_the_model_that_was_asked_for_is_in_every_chunk_that_has_one() -> None:
    log = replay("codex-text", run=spec("codex", model="gpt-5-codex"))
    named = [event for event in log.events if event["type"] not in ("TEXT_MESSAGE_CONTENT", "RAW")]
    assert {event["metadata"]["tanstack"]["model"] for event in named} == {"gpt-5-codex"}
    assert log.terminal["usage"][0]["model"] == "gpt-5-codex"


def test_a_command_is_a_call_with_its_output_as_result() -> None:
    log = replay("codex-tools")
    call = {"toolCallId": f"{RUN}:item_7"}
    given = {"command": "/usr/bin/bash -lc 'cat does-not-exist.txt'"}
    name = "command_execution"
    output = "cat: does-not-exist.txt: No such file or directory\n"
    result = {"aggregated_output": output, "exit_code": 1, "status": "failed"}
    assert [event for event in log.events if event.get("toolCallId") == call["toolCallId"]] == [
        {"type": "TOOL_CALL_START", **call, "toolCallName": name},
        {"type": "TOOL_CALL_ARGS", **call, "delta": json.dumps(given, separators=(",", ":"))},
        {
            "type": "TOOL_CALL_END",
            **call,
            "metadata": {"tanstack": {"toolCallName": name, "toolName": name, "input": given}},
        },
        {
            "type": "TOOL_CALL_RESULT",
            **call,
            "messageId": f"{RUN}-4",
            "content": json.dumps(result, separators=(",", ":")),
            "metadata": {"tanstack": {"state": "output-error"}},
        },
    ]


def test_a_change_of_files_names_them_in_call_and_result() -> None:
    log = replay("codex-tools")
    changes = [{"path": "/workspace/hello.txt", "kind": "add"}]
    assert json.loads(log.of("TOOL_CALL_ARGS")[0]["delta"]) == {"changes": changes}
    result = log.of("TOOL_CALL_RESULT")[0]
    assert json.loads(result["content"]) == {"changes": changes, "status": "completed"}
    assert "metadata" not in result


def test_calls_that_overlap_get_their_own_results() -> None:
    log = replay("codex-parallel")
    both = [event for event in log.events if event.get("toolCallId") in (f"{RUN}:item_5", f"{RUN}:item_6")]
    started = [(event["type"], event["toolCallId"][-1]) for event in both if event["type"][-1] in "TS"][::2]
    assert started == [("TOOL_CALL_START", "5"), ("TOOL_CALL_START", "6"), ("TOOL_CALL_RESULT", "5")]
    results = [json.loads(event["content"])["aggregated_output"] for event in both if "content" in event]
    assert results == ["second parallel call\n", "hello from the agent\nline two\n"]


def test_searches_and_foreign_tools_tell_what_came_of_them() -> None:
    log = replay("codex-kinds")
    search, said, broke, shape = log.of("TOOL_CALL_RESULT")
    query = "how long is a run"
    action = {"type": "search", "query": query}
    assert json.loads(search["content"]) == {"status": "completed", "query": query, "action": action}
    assert (said["content"], "metadata" in said) == ("you said hello\ntwice", False)
    assert (broke["content"], broke["metadata"]["tanstack"]["state"]) == ("it broke", "output-error")
    assert json.loads(shape["content"]) == {"sides": 4}
    assert json.loads(log.of("TOOL_CALL_ARGS")[1]["delta"]) == {"text": "hello"}


def test_reasoning_has_the_items_id() -> None:
    (first, second) = replay("codex-kinds").of("REASONING_MESSAGE_CONTENT")
    assert (first["messageId"], first["delta"]) == (f"{RUN}:item_1", "**Thinking about it** first of all.")
    assert (second["messageId"], second["delta"]) == (f"{RUN}:item_7", "Nearly done.")


def test_the_usage_is_one_element_and_its_details_lie_beside_it() -> None:
    log = replay("codex-kinds")
    element = {
        "inputTokens": 600,
        "outputTokens": 120,
        "totalTokens": 720,
        "cachedInputTokens": 360,
        "reasoningTokens": 42,
    }
    assert log.terminal["usage"] == [element]
    assert log.terminal["metadata"]["tanstack"]["usage"] == {
        "promptTokensDetails": {"cachedTokens": 360, "cacheWriteTokens": 0},
        "completionTokensDetails": {"reasoningTokens": 42},
    }
    assert log.ending.usage == {**element, "cachedTokens": 360, "cacheWriteTokens": 0}


def test_errors_that_the_agent_got_over_are_told_and_end_nothing() -> None:
    log = replay("codex-reconnected")
    kinds = [event["event"]["type"] for event in log.of("RAW")]
    assert kinds == ["item.completed", *["error"] * 4, "item.completed"]
    assert log.ending.status is Status.COMPLETED


def test_a_failure_of_the_api_says_what_the_agent_says() -> None:
    log = replay("codex-err429")
    assert log.terminal["message"] == "exceeded retry limit, last status: 429 Too Many Requests"
    assert replay("codex-err500").terminal["message"].startswith("We’re currently experiencing high demand")  # noqa: RUF001


def test_lines_of_300_kilobytes_pass_whole() -> None:
    *_, result = replay("codex-big").of("TOOL_CALL_RESULT")
    assert len(json.loads(result["content"])["aggregated_output"]) > 300 * 1024


def test_a_call_that_a_signal_cut_off_is_interrupted_by_the_ending() -> None:
    log = replay("codex-sigterm-intool")
    (result,) = log.of("TOOL_CALL_RESULT")
    assert result["content"] == '{"status":"interrupted"}'
    assert len(log.ending.chunks) == 1


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
    log = replay("codex-text", exited(kind=kind))
    assert log.terminal["code"] == code
    assert log.events[-2]["event"]["type"] == "turn.completed"


def test_a_success_needs_an_exit_code_that_agrees_or_no_exit_at_all() -> None:
    assert replay("codex-text", exited(1)).terminal["code"] == "agent_exit"
    assert replay("codex-text", exited(signal=15)).terminal["code"] == "agent_signal"
    assert replay("codex-text", exited(kind=ExitKind.NO_EXIT)).ending.status is Status.COMPLETED
    assert replay("codex-err429", exited(kind=ExitKind.NO_EXIT)).terminal["code"] == "agent_no_exit"


def test_an_exit_without_the_end_of_a_turn_has_its_own_code() -> None:
    assert replay("codex-sigterm-intool", exited(0)).terminal["code"] == "agent_no_result"
    assert replay("codex-sigterm-intool", exited(kind=ExitKind.NO_EXIT)).terminal["code"] == "agent_no_exit"


def test_an_unknown_session_is_an_exit_with_the_reason_of_the_cli() -> None:
    refused = b"Error: thread/resume: thread/resume failed: no rollout found for thread id 0 (code -32600)\n"
    log = play(HARNESS, SPEC, [], exited(1), stderr=refused)
    assert log.types == ["RUN_STARTED", "RUN_ERROR"]
    assert log.terminal["code"] == "agent_exit"
    assert "no rollout found" in log.terminal["message"]
