"""An `agui` program that asks: its run waits without an agent, and the next one goes on with the answer (P23)."""

from __future__ import annotations

import json
import sys
from typing import Any

from instance import Instance
from shell_runs import unique

QUESTION = {"id": "q-1", "reason": "confirmation", "message": "May I?"}
# Asks, unless it was answered; then says what it was told, and by whom.
PROGRAM = f"""
import json, sys
told = json.load(sys.stdin)
say = lambda **event: print(json.dumps(event))
say(type="RUN_STARTED", runId="x", threadId="x")
words = "I ask." if not told.get("resume") else json.dumps(
    [told["resume"][0]["payload"], [message["role"] + ": " + message["content"] for message in told["messages"]]])
say(type="TEXT_MESSAGE_CONTENT", messageId="m", delta=words)
outcome = {{"type": "success"}} if told.get("resume") else {{"type": "interrupt", "interrupts": [{QUESTION!r}]}}
say(type="RUN_FINISHED", runId="x", threadId="x", outcome=outcome)
"""


def asked(instance: Instance, run: str, thread: str, **fields: Any) -> str:
    """POST a message and return the whole stream."""
    body = {
        "threadId": thread,
        "messages": [],
        "forwardedProps": {"harness": "agui", "command": [sys.executable, "-c", PROGRAM]},
        **fields,
    }
    answer = instance.http.post("/api/chat", json=body, headers={"X-Run-Id": run}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def hydrated(instance: Instance, thread: str) -> dict[str, Any]:
    state: dict[str, Any] = instance.http.get("/api/chat", params={"threadId": thread}).json()
    return state


def test_a_program_asks_and_the_next_run_goes_on_with_the_answer(instance: Instance) -> None:
    thread, first, second = unique("asking"), unique("asks"), unique("answered")
    words = [{"id": "u-1", "role": "user", "content": "Write it."}]
    assert '"type":"interrupt"' in asked(instance, first, thread, messages=words)
    state = hydrated(instance, thread)
    assert state["interrupts"] == {"runId": first, "pending": [QUESTION]}
    assert state["activeRun"] is None
    assert instance.record(first)["status"] == "interrupted"
    assert instance.agents(first) == []
    busy = instance.http.post(
        "/api/chat", json={"threadId": thread, "messages": words}, headers={"X-Run-Id": unique("busy")}
    )
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "thread_active")
    answers = [{"interruptId": "q-1", "status": "resolved", "payload": "yes"}]
    stream = asked(instance, second, thread, resume=answers)
    said = json.dumps(["yes", ["user: Write it.", "assistant: I ask."]])
    assert json.dumps(said)[1:-1] in stream
    assert instance.ended(second)["status"] == "completed"
    assert instance.record(first)["status"] == "completed"
    state = hydrated(instance, thread)
    assert state["interrupts"] is None
    parts = [part["content"] for message in state["messages"] for part in message["parts"]]
    assert parts == ["Write it.", "I ask.", said]


def test_a_question_that_nobody_answers_can_be_stopped(instance: Instance) -> None:
    thread, run = unique("unanswered"), unique("asks")
    asked(instance, run, thread, messages=[{"role": "user", "content": "Write it."}])
    chunks = instance.record(run)["chunks"]
    assert instance.http.post("/api/chat/cancel", json={"threadId": thread}).status_code == 204
    record = instance.ended(run)
    assert (record["status"], record["chunks"], record["error"]["code"]) == ("aborted", chunks, "aborted")
    assert hydrated(instance, thread)["interrupts"] is None
    assert instance.left_of(run) == []
