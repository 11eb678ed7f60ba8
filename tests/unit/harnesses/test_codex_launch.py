"""How Codex is started: argv and its order, the sandbox by provider, the prompt, bad options."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from agent_runs import RUN, request, spec

from runtime.errors import InputInvalid
from runtime.harnesses.codex import CodexHarness
from runtime.ports import LaunchSpec

HARNESS = CodexHarness()
SESSION = "019a22bd-e002-7271-846d-b39567a88c65"
CONFIG = (
    *("--config", 'approval_policy="never"'),
    *("--config", "analytics.enabled=false"),
    *("--config", "check_for_update_on_startup=false"),
    *("--config", "features.plugins=false"),
    *("--config", "features.shell_snapshot=false"),
)
HISTORY: list[dict[str, Any]] = [
    {"id": "a", "role": "user", "content": "My name is Ada."},
    {"id": "b", "role": "assistant", "content": "Hello Ada."},
]


def launch(text: str = "hello", provider: str = "docker", history: Any = (), **forwarded: Any) -> LaunchSpec:
    run = spec("codex", text, provider, **forwarded)
    HARNESS.validate(run.input)
    return HARNESS.launch(RUN, run, {"PATH": "/bin"}, "/workspace", list(history))


def with_system(text: str, **forwarded: Any) -> LaunchSpec:
    messages = [{"id": "s", "role": "system", "content": "Be brief."}, *request(text)["messages"]]
    run = msgspec.structs.replace(spec("codex"), input={**request(**forwarded), "messages": messages})
    return HARNESS.launch(RUN, run, {}, "/w", HISTORY)


def test_the_argv_of_a_plain_run() -> None:
    expected = ("codex", "exec", "--json", "--sandbox", "danger-full-access", "--skip-git-repo-check", *CONFIG, "-")
    assert launch().argv == expected


def test_every_option_has_its_place() -> None:
    argv = launch(
        model="gpt-5-codex",
        sandboxMode="read-only",
        workingDirectory="packages/my app",
        additionalDirectories=["/srv/data", "/opt/x y"],
        approvalPolicy="on-request",
        modelReasoningEffort="high",
        networkAccessEnabled=True,
        sessionId=SESSION,
    ).argv
    assert argv == (
        *("codex", "exec", "--json"),
        *("--model", "gpt-5-codex"),
        *("--sandbox", "read-only"),
        *("--cd", "/workspace/packages/my app"),
        "--skip-git-repo-check",
        *("--add-dir", "/srv/data", "--add-dir", "/opt/x y"),
        *("--config", 'approval_policy="on-request"'),
        *CONFIG[2:],
        *("--config", 'model_reasoning_effort="high"'),
        *("--config", "sandbox_workspace_write.network_access=true"),
        *("resume", SESSION),
        "-",
    )


def test_the_prompt_goes_to_stdin_and_nowhere_else() -> None:
    text = '$(reboot) "--dangerous"\n'
    started = launch(text)
    assert started.stdin == text.encode()
    assert not [part for part in started.argv if "reboot" in part]


def test_on_the_local_provider_it_may_only_write_its_workspace() -> None:
    argv = launch(provider="local").argv
    assert argv[argv.index("--sandbox") + 1] == "workspace-write"
    named = launch(provider="local", sandboxMode="danger-full-access").argv
    assert named[named.index("--sandbox") + 1] == "danger-full-access"


def test_the_environment_is_what_it_was_given() -> None:
    given = {"PATH": "/bin", "CODEX_API_KEY": "sk-secret"}
    started = HARNESS.launch(RUN, spec("codex"), given, "/w", [])
    assert started.env == given
    assert "sk-secret" not in " ".join(started.argv)


def test_the_operators_base_url_is_told_to_the_cli_unless_it_holds_a_secret() -> None:
    def told(url: str) -> list[str]:
        argv = HARNESS.launch(RUN, spec("codex"), {"OPENAI_BASE_URL": url}, "/w", []).argv
        return [part for part in argv if part.startswith("openai_base_url")]

    assert told("http://127.0.0.1:8080/v1") == ['openai_base_url="http://127.0.0.1:8080/v1"']
    assert told('https://[::1]/"x') == [r'openai_base_url="https://[::1]/\"x"']
    for odd in ("", "https://me:pass@host/v1", "file:///etc", "http://a b", "https://host/\n"):
        assert told(odd) == []


def test_earlier_turns_are_told_unless_a_session_is_resumed() -> None:
    told = launch("What is my name?", history=HISTORY).stdin.decode()
    assert told.index("User: My name is Ada.") < told.index("Assistant: Hello Ada.") < told.index("What is my name?")
    for name in ("sessionId", "resume"):
        resumed = launch("What is my name?", history=HISTORY, **{name: SESSION})
        assert resumed.stdin == b"What is my name?"
        assert resumed.argv[-3:] == ("resume", SESSION, "-")


def test_system_messages_go_before_the_prompt() -> None:
    assert with_system("hi").stdin.decode().startswith("Be brief.\n\nWhat was said")
    assert with_system("hi", resume=SESSION).stdin == b"Be brief.\n\nhi"
    assert not [part for part in with_system("hi").argv if "brief" in part]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "--dangerously-bypass-approvals-and-sandbox"),
        ("model", "a b"),
        ("model", 5),
        ("sandboxMode", "yolo"),
        ("sandboxMode", ["read-only"]),
        ("approvalPolicy", "untrusted"),
        ("approvalPolicy", 'never"\nx=1'),
        ("modelReasoningEffort", "extreme"),
        ("networkAccessEnabled", "yes"),
        ("networkAccessEnabled", 1),
        ("workingDirectory", "/etc"),
        ("workingDirectory", ".."),
        ("workingDirectory", "../x"),
        ("workingDirectory", "a/../../x"),
        ("workingDirectory", "a/.."),
        ("workingDirectory", ""),
        ("workingDirectory", "a\x00b"),
        ("workingDirectory", "a\nb"),
        ("workingDirectory", "x" * 1024),
        ("additionalDirectories", "/srv"),
        ("additionalDirectories", ["srv"]),
        ("additionalDirectories", ["--yolo"]),
        ("additionalDirectories", ["/\ud800"]),
        ("additionalDirectories", ["/x"] * 65),
        ("sessionId", "--last"),
        ("sessionId", "my-session"),
        ("sessionId", SESSION + "0"),
        ("resume", SESSION.replace("-", "")),
        ("env", {"A": None}),
        ("env", ["OUTLAST_STORE"]),
    ],
)
def test_a_bad_option_is_refused_with_its_place(name: str, value: Any) -> None:
    with pytest.raises(InputInvalid) as caught:
        HARNESS.validate(request(**{name: value}))
    assert (caught.value.code, caught.value.field) == ("option_invalid", f"forwardedProps.{name}")
    assert str(caught.value).startswith(f"forwardedProps.{name} must be ")
    assert str(caught.value).endswith(".")


def test_folders_with_dots_in_their_names_are_folders() -> None:
    for folder in (".github", "a..b/c", "...", "a/./b"):
        argv = launch(workingDirectory=folder).argv
        assert argv[argv.index("--cd") + 1] == f"/workspace/{folder}"


def test_two_different_sessions_are_refused() -> None:
    HARNESS.validate(request(sessionId=SESSION, resume=SESSION))
    with pytest.raises(InputInvalid, match="same as"):
        HARNESS.validate(request(sessionId=SESSION, resume=SESSION.replace("0", "1")))


def test_null_is_absent_and_other_names_are_the_agents() -> None:
    absent: dict[str, Any] = dict.fromkeys(("model", "sandboxMode", "networkAccessEnabled", "sessionId", "env"))
    assert launch(**absent, additionalDirectories=[], anything={"x": 1}).argv == launch().argv


@pytest.mark.parametrize("messages", [None, [], [5], [{"role": "user", "content": " \n"}]])
def test_without_user_text_there_is_nothing_to_do(messages: Any) -> None:
    with pytest.raises(InputInvalid) as caught:
        HARNESS.validate({**request(), "messages": messages})
    assert caught.value.code == "message_invalid"


def test_a_prompt_with_a_lone_surrogate_still_goes_out() -> None:
    assert launch("a\ud800b").stdin == b"a?b"
