"""AG-UI's own HttpAgent against a real instance: its verifier finds no fault in what any harness makes (P26)."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import recorded
from instance import Instance
from npm_client import NpmClient, StartScript

pytestmark = pytest.mark.timeout(180)

TERMINAL = {"RUN_FINISHED", "RUN_ERROR"}
MESSAGE = [
    {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "hello"},
    {"type": "TEXT_MESSAGE_END", "messageId": "m1"},
]
TOOL_CALL = [
    {"type": "TOOL_CALL_START", "toolCallId": "call-1", "toolCallName": "search", "parentMessageId": "m1"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "call-1", "delta": '{"q":'},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "call-1", "delta": '"x"}'},
    {"type": "TOOL_CALL_END", "toolCallId": "call-1"},
    {"type": "TOOL_CALL_RESULT", "messageId": "m2", "toolCallId": "call-1", "content": "found", "role": "tool"},
]
STARTED = {"type": "RUN_STARTED", "threadId": "theirs", "runId": "theirs"}
FINISHED = {"type": "RUN_FINISHED", "threadId": "theirs", "runId": "theirs"}
BANNER: dict[str, Any] = {"type": "CUSTOM", "name": "banner", "value": {}}

# What a program prints -> the types that the client is given.
PROGRAMS: dict[str, tuple[list[Any], list[str]]] = {
    "a whole run": ([STARTED, *MESSAGE, *TOOL_CALL, FINISHED], []),
    "no start and no end": ([*MESSAGE], ["RUN_STARTED", *[event["type"] for event in MESSAGE], "RUN_ERROR"]),
    "several runs in one": ([STARTED, *MESSAGE, FINISHED, STARTED, *TOOL_CALL, FINISHED], []),
    "what it leaves open is closed": ([STARTED, MESSAGE[0], TOOL_CALL[0]], []),
    "something after its end": ([STARTED, *MESSAGE, FINISHED, BANNER], []),
    "its own error": ([STARTED, MESSAGE[0], {"type": "RUN_ERROR", "message": "no", "code": "own"}], []),
    "lines that are no events": ([STARTED, "progress: 10 %", {"level": "info"}, *MESSAGE, FINISHED], []),
    "a line before its start": ([BANNER, STARTED, *MESSAGE, FINISHED], []),
}


class Agui:
    """Runs by HttpAgent."""

    def __init__(self, start: StartScript, instance: Instance, fresh: str) -> None:
        self.run_id = f"run-{fresh}"
        self.instance = instance
        self._start = start

    def __call__(self, text: str, **props: Any) -> NpmClient:
        asked = {"runId": self.run_id, "threadId": f"thread-{self.run_id}", "text": text, "props": props}
        return self._start("agui", url=f"{self.instance.url}/api/chat", **asked)


@pytest.fixture
def agui(start: StartScript, instance: Instance, fresh: str) -> Agui:
    return Agui(start, instance, fresh)


def _verified(client: NpmClient) -> list[str]:
    """Return the types of its events, once it has ended and found no fault."""
    client.finished()
    assert client.of("failed") == []
    assert "x-run-id" not in client.requests[0]["headers"]
    assert client.types[-1] in TERMINAL
    return client.types


def test_a_shell_run_begins_with_run_started(agui: Agui) -> None:
    client = agui("seq 1 20")
    types = _verified(client)
    assert types[0] == "RUN_STARTED"
    assert types[-1] == "RUN_FINISHED"
    assert client.of("end")[0]["value"]["messages"][-1]["content"] == client.text
    assert client.text == "".join(f"{number}\n" for number in range(1, 21))


def test_a_silent_run_is_a_run(agui: Agui) -> None:
    assert _verified(agui("true")) == ["RUN_STARTED", "RUN_FINISHED"]


def test_a_failing_run_ends_with_its_error(agui: Agui) -> None:
    client = agui("echo 1; exit 3")
    assert _verified(client)[-1] == "RUN_ERROR"
    assert client.chunks[-1]["code"] == "agent_exit"


def test_a_cancelled_run_ends_with_an_error(agui: Agui) -> None:
    client = agui("echo 1; sleep 1000")
    client.wait_for(lambda it: it.text, "the first line")
    assert agui.instance.http.post("/api/chat/cancel", json={"runId": agui.run_id}).status_code == 204
    assert _verified(client)[-1] == "RUN_ERROR"
    assert client.chunks[-1]["code"] == "aborted"


def test_a_run_cancelled_before_its_agent_spoke_ends_with_an_error(agui: Agui) -> None:
    client = agui("sleep 1000")
    client.wait_for(lambda it: it.of("status"), "the response")
    assert agui.instance.http.post("/api/chat/cancel", json={"runId": agui.run_id}).status_code == 204
    assert _verified(client)[-1] == "RUN_ERROR"


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_prints_is_put_in_order(agui: Agui, name: str) -> None:
    printed, expected = PROGRAMS[name]
    lines = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in printed)
    program = [sys.executable, "-SEc", "import sys; sys.stdin.read(); sys.stdout.write(sys.argv[1])", lines]
    client = agui("go", harness="agui", command=program)
    types = _verified(client)
    assert types[0] == "RUN_STARTED"
    assert not expected or types == expected
    assert {event["runId"] for event in client.chunks if "runId" in event} == {agui.run_id}


def test_a_program_that_exits_badly_after_its_end_has_failed(agui: Agui) -> None:
    program = ["/bin/sh", "-c", 'printf \'%s\\n\' "$1" "$2"; exit 4', "sh", json.dumps(STARTED), json.dumps(FINISHED)]
    client = agui("go", harness="agui", command=program)
    assert _verified(client)[-1] == "RUN_ERROR"


@pytest.mark.parametrize("name", ["claude-tools-partial", "claude-text", "claude-err500", "claude-unicode"])
def test_what_claude_code_printed_is_put_in_order(agui: Agui, name: str) -> None:
    client = agui(name, harness="claude-code")
    types = _verified(client)
    assert types[0] == "RUN_STARTED"
    assert types[-1] == ("RUN_FINISHED" if recorded.load(name).exit.code == 0 else "RUN_ERROR")
