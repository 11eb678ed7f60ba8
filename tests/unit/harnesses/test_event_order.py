"""The kit's checker of order finds each fault that it names."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.core import chunk
from runtime.testing.event_order import order_faults

START = {"type": "RUN_STARTED"}
OPEN = {"type": "TEXT_MESSAGE_START", "messageId": "m"}
TEXT = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x"}
CLOSE = {"type": "TEXT_MESSAGE_END", "messageId": "m"}
CALL = {"type": "TOOL_CALL_START", "toolCallId": "m"}
NOTE = {"type": "CUSTOM"}
DONE = {"type": "RUN_FINISHED"}
FAILED = {"type": "RUN_ERROR"}


def faults(*events: dict[str, Any]) -> list[str]:
    return order_faults(chunk.encode(event) for event in events)


@pytest.mark.parametrize(
    "log",
    [
        [],
        [FAILED],
        [NOTE, START, OPEN, TEXT, CALL, CLOSE, OPEN, DONE],
        [START, DONE, START, FAILED],
        [START, {"type": "TOOL_CALL_RESULT"}],
    ],
)
def test_a_good_log_has_no_faults(log: list[dict[str, Any]]) -> None:
    assert faults(*log) == []


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ([OPEN], "no RUN_STARTED"),
        ([NOTE, DONE], "no RUN_STARTED"),
        ([START, START], "open already"),
        ([START, DONE, NOTE], "after a terminal"),
        ([START, DONE, DONE], "after a terminal"),
        ([START, OPEN, OPEN], "open already"),
        ([START, TEXT], "is not open"),
        ([START, CALL, TEXT], "is not open"),
        ([START, CLOSE], "is not open"),
        ([START, OPEN, CLOSE, TEXT], "is not open"),
        ([START, OPEN, {**TEXT, "delta": ""}], "an empty delta"),
    ],
)
def test_a_fault_is_named_with_its_chunk(log: list[dict[str, Any]], words: str) -> None:
    (fault,) = faults(*log)
    assert words in fault
    assert fault.startswith(f"chunk {len(log) - 1}, {log[-1]['type']}: ")
