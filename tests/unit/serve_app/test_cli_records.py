"""`ps`, `show`, `cancel` and `takeover`: what they say, and what they ask for."""

from __future__ import annotations

import json

import pytest
from cli_program import Outlast
from fake_instance import FakeInstance

from serve_app.commands.show import span


def test_ps_lists_runs_newest_first(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("old", "t1").finish()
    fake.start("new", "t2").record["queued"] = True
    head, *rows = outlast("ps").stdout.splitlines()
    assert head.split() == ["RUN", "THREAD", "STATUS", "HARNESS", "CREATED"]
    assert [row.split()[0] for row in rows] == ["new", "old"]
    assert "running (queued)" in rows[0]
    assert rows[1].endswith("2023-11-14 22:13:20Z")


def test_ps_json_is_a_list_of_records(fake: FakeInstance, outlast: Outlast) -> None:
    assert json.loads(outlast("ps", "--json").stdout) == []
    fake.start("a").finish()
    fake.start("b")
    assert [record["runId"] for record in json.loads(outlast("ps", "--json").stdout)] == ["b", "a"]


def test_ps_filters_and_pages(fake: FakeInstance, outlast: Outlast) -> None:
    fake.page = 2
    for number in range(7):
        fake.start(f"r{number}", "odd" if number % 2 else "even")

    def listed(*args: str) -> list[str]:
        return [record["runId"] for record in json.loads(outlast("ps", "--json", *args).stdout)]

    assert listed() == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]
    assert listed("--thread", "odd") == ["r5", "r3", "r1"]
    assert listed("--limit", "3") == ["r6", "r5", "r4"]
    assert listed("--status", "completed") == []
    assert "There are more than 3" in outlast("ps", "--limit", "3").stderr
    assert outlast("ps", "--limit", "7").stderr == ""


def test_show_tells_how_a_run_stands_and_who_drove_it(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r").finish("failed", {"message": "It broke.", "code": "agent_exit"})
    out = outlast("show", "r").stdout
    assert "status         failed" in out
    assert "error          It broke. (agent_exit)" in out
    assert "claims         epoch  reason" in out


def test_show_tells_each_driver_in_a_line_with_the_pause_before_it(fake: FakeInstance, outlast: Outlast) -> None:
    base = 1_700_000_001_000
    claim = {"epoch": 1, "reason": "start", "claimedAt": base, "chunks": 310, "pid": 42, "nodeId": "3f2a91c0ffee"}
    fake.start("r").record["claims"] = [
        {**claim, "endedAt": base + 12_340, "end": "superseded", "pauseMs": None},
        {**claim, "epoch": 2, "reason": "lease_expired", "claimedAt": base + 12_340, "pid": 43, "pauseMs": 3_305},
    ]
    fake.runs["r"].record["refusals"] = [
        {"epoch": 1, "currentEpoch": 2, "tried": "append", "count": 3, "firstAt": base, "lastAt": base + 15_000}
    ]
    lines = outlast("show", "r").stdout.splitlines()
    (title,) = [place for place, line in enumerate(lines) if line.startswith("claims")]
    told = [" ".join(line.split()) for line in lines[title:]]
    assert told == [
        "claims epoch reason claimed pause held chunks node pid ended",
        "1 start 2023-11-14 22:13:21Z - 12.34 s 310 3f2a91c0 42 superseded",
        "2 lease_expired 2023-11-14 22:13:33Z 3.31 s - 310 3f2a91c0 43 -",
        "refused epoch tried times last driven by epoch",
        "1 append 3 2023-11-14 22:13:36Z 2",
    ]


def test_show_bears_with_the_record_of_an_older_instance(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r")
    assert "1      start   2023-11-14 22:13:21Z  -" in outlast("show", "r").stdout


@pytest.mark.parametrize(
    ("time_ms", "said"),
    [(None, "-"), (0, "0.00 s"), (59_990, "59.99 s"), (90_000, "1 min 30 s"), (7_260_000, "2 h 1 min")],
)
def test_a_span_is_said_in_the_units_of_its_size(time_ms: int | None, said: str) -> None:
    assert span(time_ms) == said


def test_show_json_is_the_record(fake: FakeInstance, outlast: Outlast) -> None:
    run = fake.start("r")
    run.record["input"] = {"note": "lone \ud800 surrogate, äöü"}
    result = outlast("show", "r", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["runId"] == "r"
    run.record["input"] = {"note": "äöü"}
    assert json.loads(outlast("show", "r", "--json").stdout) == run.wire


def test_cancel_records_it_for_that_run(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r")
    result = outlast("cancel", "r")
    assert (result.exit_code, result.stdout) == (0, "")
    assert fake.asked[-1].path == "/api/chat/cancel"
    assert fake.asked[-1].body == {"runId": "r"}
    assert outlast("tail", "r").exit_code == 3


def test_cancel_of_an_ended_run_changes_nothing(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r").finish()
    result = outlast("cancel", "r")
    assert (result.exit_code, "ended already (completed)" in result.stderr) == (0, True)
    assert "/api/chat/cancel" not in [asked.path for asked in fake.asked]


def test_takeover_names_the_epoch_that_is_replaced(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r")
    result = outlast("takeover", "r")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "epoch 3" in result.stderr
