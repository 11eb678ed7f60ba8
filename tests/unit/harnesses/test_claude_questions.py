"""What Claude Code is refused becomes a question, if the request asks for that; an answer goes on from there (P23)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agent_runs import RUN, spec
from recorded import load

from runtime.core import chunk
from runtime.core.record import Status
from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.harnesses.codex import CodexHarness
from runtime.ports import Ending, LaunchSpec

HARNESS = ClaudeCodeHarness()
EXIT = load("claude-denied").exit
WROTE = {"file_path": "/workspace/hello.txt", "content": "hello from the agent\nline two\n"}
QUESTION = {
    "id": "toolu_stub000001",
    "reason": "tool_call",
    "message": "May the agent use Write: /workspace/hello.txt?",
    "toolCallId": "toolu_stub000001",
    "metadata": {"toolName": "Write", "input": WROTE},
}
COMMAND = {**QUESTION, "id": "c", "metadata": {"toolName": "Bash", "input": {"command": "git push"}}}


def ended(**forwarded: Any) -> Ending:
    translator = HARNESS.translator(RUN, spec("claude-code", "hello", "local", **forwarded))
    for line in load("claude-denied").lines:
        translator.feed(line)
    return translator.finish(EXIT, b"")


def answered(*answers: dict[str, Any], harness: Any = HARNESS, history: Any = (), **forwarded: Any) -> LaunchSpec:
    run = spec(harness.name, "hello", "local", **forwarded)
    run.input.update(resume=list(answers), messages=[])
    harness.validate(run.input)
    started: LaunchSpec = harness.launch(RUN, run, {"PATH": "/bin"}, "/workspace", list(history))
    return started


def answer(question: dict[str, Any], status: str = "resolved", **more: Any) -> dict[str, Any]:
    return {"interruptId": question["id"], "status": status, "interrupt": question, **more}


def test_what_it_was_refused_is_asked_for_if_the_request_says_so() -> None:
    ending = ended(askPermission=True)
    assert ending.status is Status.INTERRUPTED
    assert ending.terminal is not None
    event = chunk.decode(ending.terminal)
    assert event["type"] == "RUN_FINISHED"
    assert event["outcome"] == {"type": "interrupt", "interrupts": [QUESTION]}


def test_otherwise_its_run_ends_well() -> None:
    ending = ended()
    assert ending.status is Status.COMPLETED
    assert ending.terminal is not None
    assert b"outcome" not in ending.terminal


@pytest.mark.parametrize("denials", [None, [], "x", [7], [{"tool_name": "Bash"}], [{"tool_use_id": "t"}]])
def test_odd_refusals_ask_nothing(denials: Any) -> None:
    translator = HARNESS.translator(RUN, spec("claude-code", "hello", askPermission=True))
    line = {"type": "result", "subtype": "success", "is_error": False, "permission_denials": denials}
    translator.feed(json.dumps(line).encode())
    assert translator.finish(EXIT, b"").status is Status.COMPLETED


def test_a_shut_in_agent_that_is_to_ask_may_not_do_everything() -> None:
    started = HARNESS.launch(RUN, spec("claude-code", "hi", "docker", askPermission=True), {}, "/w", [])
    assert started.argv[-2:] == ("--permission-mode", "acceptEdits")


def test_what_the_user_grants_is_allowed_and_told() -> None:
    started = answered(answer(COMMAND), answer(QUESTION), sessionId="s-1", allowedTools=["Read"])
    assert started.argv[-2:] == ("--allowedTools", "Read,Bash(git push),Write")
    assert started.argv[started.argv.index("--resume") + 1] == "s-1"
    assert started.stdin.decode().splitlines()[2] == "- May the agent use Write: /workspace/hello.txt? Yes."


@pytest.mark.parametrize(
    "refused",
    [
        answer(COMMAND, "cancelled"),
        answer(COMMAND, payload={"approved": False}),
        answer(COMMAND, payload=False),
        {"interruptId": "c", "status": "resolved", "interrupt": None},
        answer({**COMMAND, "metadata": {"toolName": "Bash", "input": {"command": "a\nb"}}}),
    ],
)
def test_what_the_user_does_not_grant_is_not_allowed(refused: dict[str, Any]) -> None:
    assert "--allowedTools" not in answered(refused).argv


def test_without_its_session_an_agent_is_told_the_conversation_and_the_answer() -> None:
    history = [
        {"id": "u", "role": "user", "content": "Push it."},
        {"id": "a", "role": "assistant", "content": "I may not."},
    ]
    for harness in (HARNESS, CodexHarness()):
        told = answered(answer(COMMAND, payload={"note": "go"}), harness=harness, history=history).stdin.decode()
        assert "User: Push it.\n\nAssistant: I may not." in told
        assert told.endswith('? Yes. {"note":"go"}\nGo on from there.')
