"""TanStack AI's ChatClient, as a page uses it: send, stop, reload, reconnect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import Cut, StartProxy
from gate import Gate
from instance import Instance
from npm_client import NpmClient, StartScript

pytestmark = pytest.mark.timeout(180)


class Page:
    """A page that shows one thread. Every `open` is one load of it."""

    def __init__(self, start: StartScript, instance: Instance, fresh: str) -> None:
        self.thread_id = f"thread-{fresh}"
        self.instance = instance
        self._start = start

    def open(self, base: str = "", **asked: Any) -> NpmClient:
        """Load the page."""
        url = f"{base or self.instance.url}/api/chat"
        return self._start("chat", **{"url": url, "threadId": self.thread_id, **asked})

    def active(self) -> str | None:
        """Return the run that works for the thread."""
        answer = self.instance.http.get("/api/chat/active", params={"threadId": self.thread_id}).json()
        run: str | None = answer["runId"]
        return run


@pytest.fixture
def page(start: StartScript, instance: Instance, fresh: str) -> Page:
    return Page(start, instance, fresh)


def _shown(client: NpmClient) -> list[str]:
    """Return what the page shows: the text of each message."""
    messages = client.of("messages")
    return [_text(message) for message in messages[-1]] if messages else []


def _text(message: dict[str, Any]) -> str:
    return "".join(part["content"] for part in message["parts"] if part["type"] == "text")


def _left(client: NpmClient) -> dict[str, Any]:
    """Close the page; return its last state."""
    client.tell(exit=True)
    state: dict[str, Any] = client.finished().of("end")[0]["value"]
    return state


def test_a_message_is_sent_and_answered(page: Page) -> None:
    client = page.open()
    for number, text in enumerate(("echo one", "echo two"), 1):
        client.tell(send=text)
        client.wait_for(lambda it, number=number: len(it.of("sent")) == number, "the answer")  # type: ignore[misc]
    state = _left(client)
    assert [_text(message) for message in state["messages"]] == ["echo one", "one\n", "echo two", "two\n"]
    assert (state["status"], client.of("error")) == ("ready", [])


def test_stop_is_a_detach_and_a_cancel_is_said(page: Page, tmp_path: Path) -> None:
    gate = Gate(tmp_path, before=3, total=6)
    client = page.open()
    client.tell(send=gate.script)
    client.wait_for(lambda it: _shown(it)[1:] == [gate.first_text], "the first half")
    client.tell(stop=True)
    client.wait_for(lambda it: it.of("status-change")[-1] == "ready", "the stop")
    run = page.active()
    assert run is not None, "a closed connection has stopped a run (I6)"
    assert page.instance.http.post("/api/chat/cancel", json={"threadId": page.thread_id}).status_code == 204
    assert page.instance.ended(run)["status"] == "aborted"
    assert _left(client)["status"] == "ready"


def test_a_user_stops_a_run_and_types_on(page: Page) -> None:
    client = page.open()
    client.tell(send="echo 1; sleep 1000")
    client.wait_for(lambda it: _shown(it)[1:] == ["1\n"], "the first line")
    client.tell(stop=True)
    client.wait_for(lambda it: it.of("status-change")[-1] == "ready", "the stop")
    assert page.instance.http.post("/api/chat/cancel", json={"threadId": page.thread_id}).status_code == 204
    client.tell(send="echo 2")
    client.wait_for(lambda it: len(it.of("sent")) == 2, "the answer to the second message")
    state = _left(client)
    assert [_text(message) for message in state["messages"]] == ["echo 1; sleep 1000", "1\n", "echo 2", "2\n"]
    assert (state["status"], client.of("error")) == ("ready", [])


def test_a_page_that_is_loaded_anew_goes_on_where_the_run_is(page: Page, tmp_path: Path) -> None:
    gate = Gate(tmp_path, before=5, total=9)
    first = page.open(persistence=True)
    first.tell(send=gate.script)
    first.wait_for(lambda it: _shown(it)[1:] == [gate.first_text], "the first half")
    first.close()
    second = page.open(persistence=True)
    second.wait_for(lambda it: _shown(it) == [gate.script, gate.first_text], "the first half")
    gate.open()
    second.wait_for(lambda it: _shown(it) == [gate.script, gate.text], "the whole")
    second.wait_for(lambda it: it.of("finish"), "the end")
    assert second.of("error") == []
    third = page.open(persistence=True)
    third.wait_for(lambda it: _shown(it) == [gate.script, gate.text], "the whole, from the stored log")
    assert _left(third)["status"] == "ready"


def test_a_page_sees_no_error_when_its_connection_breaks(page: Page, proxy: StartProxy) -> None:
    network = proxy([Cut(2000), Cut(marker=b"RUN_FINISHED", then=b"\n\n")])
    client = page.open(network.url)
    client.tell(send="seq 1 50")
    client.wait_for(lambda it: it.of("sent"), "the answer")
    state = _left(client)
    assert network.cuts == 2
    assert _text(state["messages"][1]) == "".join(f"{number}\n" for number in range(1, 51))
    assert len(state["messages"]) == 2
    assert (state["status"], client.of("error")) == ("ready", [])


def test_a_failed_run_is_an_error_on_the_page(page: Page) -> None:
    client = page.open()
    client.tell(send="echo 1; exit 3")
    client.wait_for(lambda it: it.of("sent"), "the answer")
    assert _left(client)["status"] == "error"
    assert client.of("error") != []


def test_what_claude_code_did_is_shown(page: Page) -> None:
    client = page.open(props={"harness": "claude-code"})
    client.tell(send="claude-tools-partial")
    client.wait_for(lambda it: it.of("sent"), "the answer")
    state = _left(client)
    parts = [part for message in state["messages"] for part in message["parts"]]
    calls = [part for part in parts if part["type"] == "tool-call"]
    results = {part["toolCallId"] for part in parts if part["type"] == "tool-result"}
    assert calls
    assert {call["id"] for call in calls} == results
    assert all(isinstance(call["name"], str) for call in calls)
    assert (state["status"], client.of("error")) == ("ready", [])
