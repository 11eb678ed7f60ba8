"""The page of `docs/http.md`, with the real `useChat` and `persistence: true`, in a real browser and from another
origin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from chat_page import Thread
from gate import Gate
from instance import Instance
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)  # the first test of its lane starts the instance and the browser


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path, before=5, total=9)


@pytest.mark.parametrize(("page", "host"), [("chat", "127.0.0.1"), ("strict-chat", "localhost")])
def test_a_page_is_reloaded_in_the_middle_beside_a_second_tab_and_opened_again_at_the_end(
    thread: Thread, gate: Gate, page: str, host: str
) -> None:
    thread.origin = thread.origin.replace("127.0.0.1", host)
    first = thread.tab(page)
    first.send(gate.script)
    first.shows(gate.script, gate.first_text)
    first.reload()
    tabs = [first, thread.tab(page)]
    for tab in tabs:
        tab.joins(gate.script, gate.first_text)
    gate.open()
    for tab in [*tabs, thread.tab(page)]:
        tab.shows(gate.script, gate.text)
        tab.is_at("ready")
        assert tab.errors == []


def test_stop_ends_the_run_in_every_tab_and_the_thread_goes_on(thread: Thread, instance: Instance) -> None:
    tab, other = thread.tab(), thread.tab()
    tab.send("echo 1; sleep 1000")
    tab.shows("echo 1; sleep 1000", "1\n")
    other.reload()
    other.joins("echo 1; sleep 1000", "1\n")
    other.press("Stop")
    other.is_at("ready")
    tab.is_at("The run was cancelled.")
    (run,) = thread.runs(instance)
    assert instance.ended(run["runId"])["status"] == "aborted"
    tab.send("echo 2")
    tab.shows("echo 1; sleep 1000", "1\n", "echo 2", "2\n")
    tab.is_at("ready")
    assert tab.errors == other.errors == []
    assert [run["status"] for run in thread.runs(instance)] == ["completed", "aborted"]


def test_a_message_to_a_busy_thread_is_refused_or_waits_as_the_page_says(
    thread: Thread, gate: Gate, instance: Instance
) -> None:
    tab, refused, waits = thread.tab(), thread.tab(), thread.tab(onBusy="enqueue")
    tab.send(gate.script)
    tab.shows(gate.script, gate.first_text)
    refused.send("echo 2")
    refused.wait_for("document.querySelector('output').textContent.includes('409')", True)
    waits.send("echo 3")
    wait_until(lambda: len(thread.runs(instance)) == 2, "the message that waits", 60.0)
    refused.reload()
    refused.shows(gate.script, gate.first_text, "echo 3")
    gate.open()
    waits.shows("echo 3", "3\n")
    for each in (tab, refused, waits):
        each.is_at("ready")
        each.reload()
        each.shows(gate.script, gate.text, "echo 3", "3\n")
    assert len(thread.runs(instance)) == 2


# Asks, unless it was answered; then says what it was told.
ASKING = """
import json, sys, uuid
told = json.load(sys.stdin).get("resume")
say = lambda **event: print(json.dumps(event))
say(type="RUN_STARTED", runId="x", threadId="x")
words = json.dumps(told[0]["payload"]) if told else "Well..."
say(type="TEXT_MESSAGE_CONTENT", messageId=uuid.uuid4().hex, delta=words)
asked = [{"id": "q-1", "reason": "confirmation", "message": "May I?"}]
outcome = {"type": "success"} if told else {"type": "interrupt", "interrupts": asked}
say(type="RUN_FINISHED", runId="x", threadId="x", outcome=outcome)
"""
QUESTIONS = "[...document.querySelectorAll('p')].map((item) => item.textContent)"


def test_a_question_is_shown_after_a_reload_and_answered_there(thread: Thread, instance: Instance) -> None:
    tab = thread.tab(harness="agui", command=[sys.executable, "-c", ASKING])
    tab.send("Write it.")
    tab.wait_for(QUESTIONS, ["May I?"])
    tab.reload()
    tab.wait_for(QUESTIONS, ["May I?"])
    tab.shows("Write it.", "Well...")
    tab.press("Yes")
    answered = ("Write it.", "Well...", '{"approved": true}')
    tab.shows(*answered)
    tab.wait_for(QUESTIONS, [])
    tab.is_at("ready")
    tab.reload()
    tab.shows(*answered)
    tab.wait_for(QUESTIONS, [])
    assert tab.errors == []
    assert [run["status"] for run in thread.runs(instance)] == ["completed", "completed"]
