"""A React page with TanStack AI's `useChat` and `persistence: true`, in a DOM without a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gate import Gate
from instance import Instance
from npm_client import NpmClient, StartScript

pytestmark = pytest.mark.timeout(180)


def shown(tab: NpmClient) -> list[str]:
    """Return what stands in the document: the text of each message."""
    said = tab.of("shown")
    texts: list[str] = said[-1] if said else []
    return texts


class Thread:
    """One thread in any number of tabs."""

    def __init__(self, start: StartScript, instance: Instance, fresh: str) -> None:
        self.thread_id = f"thread-{fresh}"
        self._start, self._url = start, f"{instance.url}/api/chat"

    def tab(self, **asked: Any) -> NpmClient:
        return self._start("usechat", url=self._url, threadId=self.thread_id, persistence=True, **asked)


@pytest.fixture
def thread(start: StartScript, instance: Instance, fresh: str) -> Thread:
    return Thread(start, instance, fresh)


def test_a_page_is_reloaded_in_the_middle_beside_a_second_tab_and_opened_again_at_the_end(
    thread: Thread, tmp_path: Path
) -> None:
    gate = Gate(tmp_path, before=5, total=9)
    first = thread.tab()
    first.wait_for(lambda it: it.of("status-change"), "the page")
    first.tell(send=gate.script)
    first.wait_for(lambda it: shown(it) == [gate.script, gate.first_text], "the first half")
    first.close()
    tabs = [thread.tab(), thread.tab()]
    for tab in tabs:
        tab.wait_for(lambda it: shown(it) == [gate.script, gate.first_text], "the first half, after a reload")
    gate.open()
    for tab in tabs:
        tab.wait_for(lambda it: shown(it) == [gate.script, gate.text], "the whole")
        tab.wait_for(lambda it: it.of("status-change")[-1] == "ready", "the end")
        assert tab.of("error") == []
    late = thread.tab()
    late.wait_for(lambda it: shown(it) == [gate.script, gate.text], "the whole, from its transcript")
    assert late.of("error") == []


def test_stop_ends_the_run_and_the_thread_goes_on(thread: Thread, instance: Instance) -> None:
    tab = thread.tab()
    tab.wait_for(lambda it: it.of("status-change"), "the page")
    tab.tell(send="echo 1; sleep 1000")
    tab.wait_for(lambda it: shown(it)[1:] == ["1\n"], "the first line")
    tab.tell(stop=True)
    assert instance.http.post("/api/chat/cancel", json={"threadId": thread.thread_id}).status_code == 204
    tab.wait_for(lambda it: it.of("status-change")[-1] == "ready", "the stop")
    tab.tell(send="echo 2")
    tab.wait_for(lambda it: shown(it)[2:] == ["echo 2", "2\n"], "the answer to the next message")
    assert tab.of("error") == []
