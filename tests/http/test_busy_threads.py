"""A second message on a busy thread, and what its agent is told of the thread (P12, P18)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from instance import Instance
from shell_runs import unique
from watching import Watch

# Says what it was told of the thread.
PROGRAM = """
import json, sys
told = [message["role"] + ": " + str(message["content"]) for message in json.load(sys.stdin)["messages"]]
print(json.dumps({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": json.dumps(told)}))
print(json.dumps({"type": "RUN_FINISHED", "runId": "x", "threadId": "x"}))
"""


@pytest.mark.parametrize("on_busy", ["enqueue", "cancel-previous"])
def test_its_agent_is_told_what_was_said_until_its_turn_came(instance: Instance, tmp_path: Path, on_busy: str) -> None:
    """Also what the run before it said after the message was sent."""
    first, second = unique("before"), unique("behind")
    script = f"echo one; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo two"
    asks = {
        "threadId": f"thread-{first}",
        "messages": [{"id": "u-2", "role": "user", "content": "And then?"}],
        "forwardedProps": {"harness": "agui", "command": [sys.executable, "-c", PROGRAM], "onBusy": on_busy},
    }
    with Watch(instance, first, script) as watch:
        watch.until_lines(1)
        with instance.http.stream("POST", "/api/chat", json=asks, headers={"X-Run-Id": second}, timeout=60) as stream:
            assert instance.record(second)["queued"] or on_busy == "cancel-previous"
            if on_busy == "enqueue":
                (tmp_path / "go").touch()
            lines = stream.read().decode().split("\n")
        watch.until_end()
    deltas = [json.loads(line.removeprefix("data: "))["delta"] for line in lines if '"TEXT_MESSAGE_CONTENT"' in line]
    said = "assistant: one\ntwo\n" if on_busy == "enqueue" else "assistant: one\n"
    assert [json.loads(delta) for delta in deltas] == [[f"user: {script}", said, "user: And then?"]]
    assert instance.ended(second)["status"] == "completed"
    assert instance.ended(first)["status"] == ("completed" if on_busy == "enqueue" else "aborted")
