"""The shell harness: output as one text message, the exit as its end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from agent_runs import RUN, THREAD, exited, play, request, spec

from runtime.core.launch import ExitKind
from runtime.core.record import RunError, RunSpec, Status
from runtime.errors import InputInvalid
from runtime.harnesses.shell import ShellHarness
from runtime.ports import Harness
from runtime.testing.harness_kit import HarnessKit, Transcript

HARNESS = ShellHarness()
SPEC = spec("shell", "echo hi")


class TestShellKit(HarnessKit):
    def harness(self) -> Harness:
        return HARNESS

    def spec(self) -> RunSpec:
        return SPEC

    def transcripts(self) -> list[Transcript]:
        return [
            Transcript("silent", ()),
            Transcript("text", (b"one", b"", b"two \xff", "drei \u2028 日本".encode())),
            Transcript("json", (b'{"type":"RUN_FINISHED"}', b"[1]"), torn=b"no newline"),
            Transcript("failed", (b"x",) * 50, exit=exited(3)),
            Transcript("killed", (b"x",), torn=b"y", exit=exited(signal=9)),
        ]

    def bad_inputs(self) -> dict[str, dict[str, Any]]:
        return {
            "no text": request(""),
            "an image alone": request([{"type": "image", "source": {}}]),
            "NUL": request("echo a\0b"),
            "a lone surrogate": request("echo \ud800"),
            "too long for an argument": request("x" * 131_072),
            "env of the runtime": request("ls", env=["RAY_ADDRESS"]),
            "no object": {**request("ls"), "forwardedProps": ["x"]},
        }


def test_the_command_is_one_argument_and_nothing_is_quoted_by_hand() -> None:
    launch = HARNESS.launch(RUN, spec("shell", 'echo "$HOME"; ls'), {"HOME": "/h"}, "/workspace", [])
    assert launch.argv == ("/bin/sh", "-c", 'echo "$HOME"; ls')
    assert (launch.env, launch.stdin) == ({"HOME": "/h"}, b"")


def test_a_command_that_begins_with_a_dash_is_a_command_still() -> None:
    assert HARNESS.launch(RUN, spec("shell", "-x"), {}, "/w", []).argv == ("/bin/sh", "-c", "-x")


def test_text_parts_are_joined_line_by_line() -> None:
    parts = [{"type": "text", "text": "echo a"}, {"type": "image"}, {"type": "text", "text": "echo b"}]
    launch = HARNESS.launch(RUN, msgspec.structs.replace(SPEC, input=request(parts)), {}, "/w", [])
    assert launch.argv[2] == "echo a\necho b"


def test_each_line_is_one_content_chunk_of_one_message() -> None:
    log = play(HARNESS, SPEC, [b"one", b'{"type":"RUN_ERROR","message":"no"}'])
    message = {"messageId": "run-1-0"}
    assert log.events == [
        {"type": "RUN_STARTED", "runId": RUN, "threadId": THREAD},
        {"type": "TEXT_MESSAGE_START", "role": "assistant", **message},
        {"type": "TEXT_MESSAGE_CONTENT", "delta": "one\n", **message},
        {"type": "TEXT_MESSAGE_CONTENT", "delta": '{"type":"RUN_ERROR","message":"no"}\n', **message},
        {
            "type": "RUN_FINISHED",
            "runId": RUN,
            "threadId": THREAD,
            "result": {"exitCode": 0},
            "metadata": {"tanstack": {"finishReason": "stop"}},
        },
    ]
    assert log.ending.status is Status.COMPLETED


def test_a_last_line_without_newline_gets_none() -> None:
    log = play(HARNESS, SPEC, [b"one"], torn=b"two")
    assert [event["delta"] for event in log.of("TEXT_MESSAGE_CONTENT")] == ["one\n", "two"]


def test_invalid_utf8_is_replaced_and_control_characters_stay() -> None:
    log = play(HARNESS, SPEC, [b"\xffa\x1b[31m\r"])
    assert log.of("TEXT_MESSAGE_CONTENT")[0]["delta"] == "\ufffda\x1b[31m\r\n"


def test_no_output_is_no_message() -> None:
    assert play(HARNESS, SPEC, []).types == ["RUN_STARTED", "RUN_FINISHED"]


@pytest.mark.parametrize(
    ("exit", "code", "words"),
    [
        (exited(7), "agent_exit", "exited with code 7"),
        (exited(143), "agent_exit", "exited with code 143"),
        (exited(signal=15), "agent_signal", "signal 15 (SIGTERM)"),
        (exited(kind=ExitKind.LOST), "agent_lost", "not known"),
        (exited(kind=ExitKind.LOG_LIMIT), "log_limit", "OUTLAST_MAX_LOG_BYTES"),
        (exited(kind=ExitKind.KILLED), "agent_signal", "ended before"),
        (exited(kind=ExitKind.SPAWN_FAILED), "launch_failed", "could not be started"),
        (exited(kind=ExitKind.NO_EXIT), "agent_no_exit", "had to be ended"),
    ],
)
def test_every_other_exit_fails_with_its_code_and_the_end_of_stderr(exit: Any, code: str, words: str) -> None:
    log = play(HARNESS, SPEC, [b"one"], exit, stderr=b"ls: no such file\n")
    assert log.ending.status is Status.FAILED
    assert log.terminal["code"] == code
    assert words in log.terminal["message"]
    assert log.terminal["message"].endswith("ls: no such file")
    assert log.terminal["metadata"] == {"tanstack": {"runId": RUN}}
    assert log.ending.error == RunError(message=log.terminal["message"], code=code)


def test_a_shell_never_has_a_result_to_wait_after() -> None:
    translator = HARNESS.translator(RUN, SPEC)
    translator.feed(b'{"type":"result"}')
    assert not translator.has_result


def test_a_last_message_that_is_not_the_users_is_refused() -> None:
    bad = {**request(), "messages": [{"id": "a", "role": "assistant", "content": "hi"}]}
    with pytest.raises(InputInvalid) as caught:
        HARNESS.validate(bad)
    assert (caught.value.code, caught.value.field) == ("message_invalid", "messages")
