"""Serve, stop, install another version of a harness, serve: a run is read by the translator that it began with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import exited
from instance import Instance
from shell_runs import body, numbered, unique
from versioned_harness import First, KeepsFirst
from waiting import wait_until
from watching import Watch

from runtime.core import chunk
from runtime.core.record import RunSpec
from runtime.ports import Harness

LINES, MORE_LINES = 250, 2500  # at about 10 a second: longer than one restart, longer than two
PER_SECOND = 10.0


@pytest.fixture
def upgraded(tmp_path: Path) -> Iterator[Instance]:
    """Yield an instance whose harness goes from version to version."""
    upgraded = Instance(tmp_path, {"OUTLAST_HARNESS": "versioned"})
    try:
        yield upgraded
    finally:
        upgraded.close()


def _serve(instance: Instance, version: str) -> None:
    instance.configure(OUTLAST_HARNESSES=f"versioned=versioned_harness:{version}")
    instance.start()


def _undisturbed(run: str, harness: Harness, count: int) -> list[bytes]:
    """Return the log that one driver alone makes of such a run, but for its last chunk."""
    spec = RunSpec(harness="versioned", translator_version=harness.translator_version, provider="", input=body(run, ""))
    translator = harness.translator(run, spec)
    lines = [str(number).encode() for number in range(1, count + 1)]
    made = [data for line in lines for data in translator.feed(line)]
    return [chunk.run_accepted(), *made, *translator.finish(exited(0), b"").chunks]


def _stored(instance: Instance, run: str) -> list[bytes]:
    """Return the log without its last chunk and without what closes a message that is open at the end."""
    text = instance.http.get("/api/chat/ndjson", params={"runId": run, "offset": "-1"}, timeout=60.0).text
    chunks = [chunk.encode(json.loads(line)["chunk"]) for line in text.splitlines() if line]
    return [data for data in chunks[:-1] if chunk.chunk_type(data) != "TEXT_MESSAGE_END"]


@pytest.mark.timeout(300)
def test_a_run_goes_on_with_its_translator_after_an_upgrade_and_ends_clearly_once_that_is_gone(
    upgraded: Instance,
) -> None:
    first, long, second = (unique(name) for name in ("began-with-1", "outlives-1", "began-with-2"))
    _serve(upgraded, "First")
    upgraded.begin(long, numbered(MORE_LINES, PER_SECOND))
    with Watch(upgraded, first, numbered(LINES, PER_SECOND)) as watch:
        watch.until_lines(20)
        wait_until(lambda: upgraded.record(long)["chunks"] > 10, "chunks of the long run")
        assert upgraded.stop() == 0
        _serve(upgraded, "KeepsFirst")
        watch.until_end(within_s=120)
    upgraded.begin(second, numbered(20))
    assert [upgraded.ended(run)["translatorVersion"] for run in (first, second)] == [1, 2]
    assert upgraded.record(first)["status"] == "completed"
    assert _stored(upgraded, first) == _undisturbed(first, First(), LINES)
    assert _stored(upgraded, second) == _undisturbed(second, KeepsFirst(), 20)

    assert upgraded.stop() == 0
    assert upgraded.agents(long)
    _serve(upgraded, "ForgotFirst")
    record = upgraded.ended(long, within_s=60)
    assert (record["status"], record["error"]["code"]) == ("failed", "journal_unavailable")
    assert "began with translator 1" in record["error"]["message"]
    assert upgraded.agents(long) == []
    assert upgraded.sandboxes() == []
    stored = _stored(upgraded, long)
    assert len(stored) > 20
    assert stored == _undisturbed(long, First(), MORE_LINES)[: len(stored)]
