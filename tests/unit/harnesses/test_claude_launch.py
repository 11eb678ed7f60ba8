"""How Claude Code is started: argv and its order, permissions by provider, the prompt, bad options."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from agent_runs import RUN, request, spec

from runtime.errors import InputInvalid
from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.ports import LaunchSpec

HARNESS = ClaudeCodeHarness()
HEAD = ("claude", "--setting-sources", "user", "-p", "--output-format", "stream-json", "--verbose")
HISTORY: list[dict[str, Any]] = [
    {"id": "a", "role": "user", "content": "My name is Ada."},
    {"id": "b", "role": "assistant", "content": "Hello Ada."},
    {"id": "c", "role": "assistant", "toolCalls": []},
    {"id": "d", "role": "tool", "toolCallId": "t", "content": "secret output"},
]


def launch(text: str = "hello", provider: str = "docker", history: Any = (), **forwarded: Any) -> LaunchSpec:
    run = spec("claude-code", text, provider, **forwarded)
    HARNESS.validate(run.input)
    return HARNESS.launch(RUN, run, {"PATH": "/bin"}, "/workspace", list(history))


def test_the_argv_of_a_plain_run() -> None:
    assert launch().argv == (*HEAD, "--include-partial-messages", "--permission-mode", "bypassPermissions")


def test_every_option_has_its_place() -> None:
    argv = launch(
        model="claude-opus-4-8[1m]",
        sessionId="0-4",
        permissionMode="plan",
        maxTurns=5,
        allowedTools=["Read", "Bash(git log *)"],
        disallowedTools=["mcp__x__*"],
    ).argv
    assert argv == (
        *HEAD,
        *("--model", "claude-opus-4-8[1m]"),
        "--include-partial-messages",
        *("--resume", "0-4"),
        *("--permission-mode", "plan"),
        *("--max-turns", "5"),
        *("--allowedTools", "Read,Bash(git log *)"),
        *("--disallowedTools", "mcp__x__*"),
    )


def test_the_prompt_goes_to_stdin_and_nowhere_else() -> None:
    text = '$(reboot) "--dangerous"\n'
    started = launch(text)
    assert started.stdin == text.encode()
    assert not [part for part in started.argv if "reboot" in part]


def test_on_the_local_provider_it_may_only_edit_files() -> None:
    started = launch(provider="local")
    assert started.argv[-2:] == ("--permission-mode", "acceptEdits")
    assert started.env == {"PATH": "/bin", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    assert launch(provider="local", permissionMode="bypassPermissions").argv[-1] == "bypassPermissions"


def test_elsewhere_the_agent_is_told_that_it_is_shut_in() -> None:
    env = launch().env
    assert (env["IS_SANDBOX"], env["CLAUDE_CODE_SANDBOXED"]) == ("1", "1")


def test_the_operators_environment_wins() -> None:
    given = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "0"}
    assert HARNESS.launch(RUN, spec("claude-code"), given, "/w", []).env.items() >= given.items()


def test_earlier_turns_are_told_unless_a_session_is_resumed() -> None:
    told = launch("What is my name?", history=HISTORY).stdin.decode()
    assert told.index("User: My name is Ada.") < told.index("Assistant: Hello Ada.") < told.index("What is my name?")
    assert "secret output" not in told
    assert launch("What is my name?", history=HISTORY, resume="s-1").stdin == b"What is my name?"


def test_a_client_that_sends_the_whole_conversation_is_believed() -> None:
    messages = [{"id": "x", "role": "user", "content": "Call me Eve."}, *request("Who am I?")["messages"]]
    run = msgspec.structs.replace(spec("claude-code"), input={**request(), "messages": messages})
    told = HARNESS.launch(RUN, run, {}, "/w", HISTORY).stdin.decode()
    assert "Eve" in told
    assert "Ada" not in told


def test_system_messages_are_appended_to_the_agents_own() -> None:
    messages = [{"id": "s", "role": "system", "content": "Be brief."}, *request("hi")["messages"]]
    run = msgspec.structs.replace(spec("claude-code"), input={**request(), "messages": messages})
    started = HARNESS.launch(RUN, run, {}, "/w", HISTORY)
    assert started.argv[-2:] == ("--append-system-prompt", "Be brief.")
    assert "Be brief." not in started.stdin.decode()
    assert "Ada" in started.stdin.decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "--dangerously-skip-permissions"),
        ("model", "a b"),
        ("model", ""),
        ("model", 5),
        ("model", "x" * 129),
        ("permissionMode", "yolo"),
        ("permissionMode", ["plan"]),
        ("maxTurns", 0),
        ("maxTurns", True),
        ("maxTurns", "5"),
        ("maxTurns", 1.0),
        ("maxTurns", 10_001),
        ("allowedTools", "Read"),
        ("allowedTools", ["-x"]),
        ("allowedTools", ["Read\n"]),
        ("allowedTools", ["\ud800"]),
        ("allowedTools", [None]),
        ("allowedTools", ["A" * 512] * 300),
        ("disallowedTools", {"Read": True}),
        ("sessionId", "-p"),
        ("resume", "../x y"),
        ("env", {"A": None}),
        ("env", "PATH"),
        ("env", ["OUTLAST_STORE"]),
    ],
)
def test_a_bad_option_is_refused_with_its_place(name: str, value: Any) -> None:
    with pytest.raises(InputInvalid) as caught:
        HARNESS.validate(request(**{name: value}))
    assert (caught.value.code, caught.value.field) == ("option_invalid", f"forwardedProps.{name}")
    assert str(caught.value).startswith(f"forwardedProps.{name} must be ")
    assert str(caught.value).endswith(".")


def test_two_different_sessions_are_refused() -> None:
    HARNESS.validate(request(sessionId="a", resume="a"))
    with pytest.raises(InputInvalid, match="same as"):
        HARNESS.validate(request(sessionId="a", resume="b"))


def test_null_is_absent_and_other_names_are_the_agents() -> None:
    assert launch(model=None, maxTurns=None, allowedTools=[], anything={"x": 1}, env=None).argv == launch().argv


@pytest.mark.parametrize("messages", [None, [], "hi", [5], [{"role": "user"}], [{"role": "user", "content": " \n"}]])
def test_without_user_text_there_is_nothing_to_do(messages: Any) -> None:
    with pytest.raises(InputInvalid) as caught:
        HARNESS.validate({**request(), "messages": messages})
    assert caught.value.code == "message_invalid"


def test_system_messages_that_no_argument_can_hold_are_refused() -> None:
    messages = [{"id": "s", "role": "system", "content": "x" * 131_072}, *request("hi")["messages"]]
    with pytest.raises(InputInvalid) as caught:
        HARNESS.validate({**request(), "messages": messages})
    assert (caught.value.code, caught.value.field) == ("message_invalid", "messages")


def test_a_prompt_with_a_lone_surrogate_still_goes_out() -> None:
    assert launch("a\ud800b").stdin == b"a?b"
