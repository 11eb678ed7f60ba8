"""The generator of agent output: the same bytes for the same arguments, and lines that a translator knows."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from agent_runs import play, spec

from runtime.core.record import Status
from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.testing.event_order import order_faults
from runtime.testing.stream_json import main, stream_json

SPEC = spec("claude-code")


def test_a_seed_gives_the_same_bytes_and_another_one_others() -> None:
    assert list(stream_json(500, seed=3)) == list(stream_json(500, seed=3))
    assert list(stream_json(500, seed=3)) != list(stream_json(500, seed=4))


@pytest.mark.parametrize("lines", [1, 100, 5_000])
def test_there_are_at_least_as_many_lines_as_asked_for(lines: int) -> None:
    count = sum(1 for _ in stream_json(lines))
    assert lines <= count < lines + 500


def test_a_generated_session_is_a_whole_run() -> None:
    log = play(ClaudeCodeHarness(), SPEC, stream_json(3_000))
    assert log.ending.status is Status.COMPLETED
    assert order_faults(log.chunks) == []
    count = Counter(log.types)
    assert count["RAW"] == 0
    assert count["TOOL_CALL_START"] == count["TOOL_CALL_RESULT"] > 20
    assert count["TEXT_MESSAGE_CONTENT"] > 1_000
    assert count["REASONING_MESSAGE_CONTENT"] > 100
    said = "".join(event["delta"] for event in log.of("TEXT_MESSAGE_CONTENT"))
    assert not said.isascii()
    assert '"' in said
    assert "\n" in said


def test_text_only_is_one_chunk_a_line() -> None:
    lines = list(stream_json(1_000, text_only=True))
    log = play(ClaudeCodeHarness(), SPEC, lines)
    assert len(log.of("TEXT_MESSAGE_CONTENT")) == 994
    assert len(log.of("TEXT_MESSAGE_START")) == 1


def test_stamps_count_the_text_pieces() -> None:
    log = play(ClaudeCodeHarness(), SPEC, stream_json(300, stamp=True))
    stamps = [event["delta"][:11] for event in log.of("TEXT_MESSAGE_CONTENT")]
    assert stamps == [f"@@{number:07d}@@" for number in range(len(stamps))]


def test_the_program_prints_what_the_function_yields(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    main(["--lines", "50", "--seed", "9", "--stamp", "--text-only"])
    printed = capfdbinary.readouterr().out.split(b"\n")
    assert printed == [*stream_json(50, seed=9, stamp=True, text_only=True), b""]
    assert json.loads(printed[0])["subtype"] == "init"
