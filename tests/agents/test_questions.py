"""The real Claude Code is refused a command, asks, and runs it in the same session once it may (P23)."""

from __future__ import annotations

from typing import Any

import pytest
from instance import Instance
from model_scripts import tag
from real_agents import CLAUDE

pytestmark = pytest.mark.timeout(300)  # the first test of its lane starts the instance, or installs the agents

OPTIONS = {"harness": CLAUDE.name, "permissionMode": "default", "askPermission": True}


def posted(instance: Instance, run: str, thread: str, **fields: Any) -> None:
    body = {"threadId": thread, "messages": [], "forwardedProps": OPTIONS, **fields}
    answer = instance.http.post("/api/chat", json=body, headers={"X-Run-Id": run}, timeout=120)
    assert answer.status_code == 200, answer.text


def session_of(instance: Instance, run: str) -> str:
    log = instance.http.get("/api/chat/ndjson", params={"runId": run, "offset": "-1"}).text
    (line,) = [line for line in log.splitlines() if CLAUDE.session_event in line]
    return line.partition('"sessionId":"')[2].partition('"')[0]


def test_a_command_that_is_refused_is_asked_for_and_run_when_it_is_granted(instance: Instance, run: str) -> None:
    thread, first, second = f"thread-{run}", f"{run}-1", f"{run}-2"
    prompt = tag("shell", run, cmd="touch+granted.txt")
    posted(instance, first, thread, messages=[{"id": "u", "role": "user", "content": prompt}])
    asked = instance.http.get("/api/chat", params={"threadId": thread}).json()["interrupts"]
    assert asked["runId"] == first
    (question,) = asked["pending"]
    assert question["metadata"]["toolName"] == "Bash"
    assert question["metadata"]["input"]["command"] == "touch granted.txt"
    payload = {"approved": True, "note": prompt}
    answer = {"interruptId": question["id"], "status": "resolved", "payload": payload}
    posted(instance, second, thread, resume=[answer])
    assert instance.ended(second)["status"] == "completed"
    assert instance.record(first)["status"] == "completed"
    assert session_of(instance, first) == session_of(instance, second)
    changed = instance.http.get(f"/api/runs/{second}/workspace", params={"as": "files"}).json()
    assert [each["path"] for each in changed] == ["granted.txt"]
