"""What a page shows whose network goes away in the middle of an answer, or parts of whose server do, or who goes away
itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_page import Thread
from cutting_proxy import CuttingProxy
from gate import Gate
from instance import Instance
from processes import kill
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)  # the first test of its lane starts the instance and the browser
_TEXT = "window.shown.map((chunk) => chunk.delta ?? '').join('')"


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path, before=5, total=9)


@pytest.fixture
def network(instance: Instance) -> Iterator[CuttingProxy]:
    """Yield what lies between pages and the instance."""
    proxy = CuttingProxy(instance.url, [])
    yield proxy
    proxy.close()


def _begun(thread: Thread, instance: Instance) -> str:
    (run,) = thread.runs(instance)
    return str(run["runId"])


def test_a_page_that_was_offline_shows_what_was_said_meanwhile(
    thread: Thread, gate: Gate, instance: Instance, network: CuttingProxy, tmp_path: Path
) -> None:
    """Both tabs have shown something of their streams: what a join shows at first may be of the hydration alone, and
    the hook cannot go on from a join that was cut before its first event."""
    thread.url = network.url
    later = Gate(tmp_path, since=gate.total, before=gate.total, total=gate.total + 3, name="later")
    script = f"{gate.script}; {later.script}"
    started, joined = thread.tab(), thread.tab()
    started.send(script)
    started.shows(script, gate.first_text)
    joined.reload()
    joined.joins(script, gate.first_text)
    gate.open()
    for tab in (started, joined):
        tab.shows(script, gate.text)
    thread.offline(True)
    network.go()
    later.open()
    assert instance.ended(_begun(thread, instance))["status"] == "completed"
    for tab in (started, joined):
        tab.shows(script, gate.text)
    network.come()
    thread.offline(False)
    for tab in (started, joined):
        tab.shows(script, gate.text + later.text)
        tab.is_at("ready")
        assert "last-event-id" in tab.requests[-1]["headers"]


def test_a_page_that_its_user_comes_back_to_shows_what_was_said_meanwhile(
    thread: Thread, gate: Gate, instance: Instance
) -> None:
    """From the browser's back/forward cache, if it is still there."""
    tab = thread.tab()
    tab.send(gate.script)
    tab.shows(gate.script, gate.first_text)
    tab.call("goto", thread.address("chat", thread=f"{thread.id}-other"))
    gate.open()
    assert instance.ended(_begun(thread, instance))["status"] == "completed"
    tab.call("evaluate", "history.back()")
    tab.shows(gate.script, gate.text)
    tab.is_at("ready")


def test_chat_and_event_source_resume_exactly_when_the_driver_and_every_replica_die(
    thread: Thread, gate: Gate, instance: Instance
) -> None:
    chat = thread.tab()
    chat.send(gate.script)
    chat.shows(gate.script, gate.first_text)
    run = _begun(thread, instance)
    plain = thread.open("stream", run=run)
    plain.wait_for(_TEXT, gate.first_text)
    kill(instance.driver(run))
    for replica in wait_until(lambda: instance.processes("ray::ServeReplica"), "the replicas"):
        kill(replica)
    gate.open()
    chat.shows(gate.script, gate.text)
    chat.is_at("ready")
    plain.wait_for("window.ended", True)
    plain.wait_for(_TEXT, gate.text)
    ids = plain.call("evaluate", "window.shown.map((chunk) => chunk.id)")
    assert len(ids) == len(set(ids)) == instance.record(run)["chunks"]
    # Its address says `offset=-1`: each id once means that it came back with its last one.
    assert len(plain.requests) >= 3
    assert chat.requests[-1]["headers"]["last-event-id"] in ids
    assert [epoch for epoch, _ in instance.claims(run)] == [1, 2]
