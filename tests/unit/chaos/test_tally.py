"""The tally finds what is lost, doubled, foreign and stuck, and nothing in what is whole."""

from __future__ import annotations

from typing import Any

import pytest
from load import Run
from tally import (
    Made,
    Tally,
    check_clients,
    check_launches,
    check_lines,
    check_record,
    check_rows,
    pauses,
    spread,
    takeovers,
)
from watcher import Watcher

URL = "http://127.0.0.1:1"
OTHER = b"another chunk"


def text(line: int) -> bytes:
    return b'{"delta":"%d\\n","type":"TEXT_MESSAGE_CONTENT"}' % line


END = b'{"type":"RUN_FINISHED"}'


def watched(*chunks: bytes) -> Watcher:
    watcher = Watcher(URL, "run")
    for position, data in enumerate(chunks, 1):
        watcher._note(position, data)
    return watcher


def a_run(first: Watcher, final: Watcher | None = None, lines: int = 2) -> Run:
    return Run("run", lines, 0.0, [first], final or watched(text(1), text(2), END))


def found(run: Run) -> dict[str, int]:
    tally = Tally()
    check_clients(tally, run)
    return {kind: count for kind, count in tally.counts.items() if count}


def test_a_client_that_was_given_everything_once_is_no_finding() -> None:
    assert found(a_run(watched(text(1), text(2), END))) == {}


def test_the_terminal_chunk_once_more_at_the_end_of_a_closed_log_is_no_finding() -> None:
    watcher = watched(text(1), text(2), END)
    watcher._note(3, END)
    assert found(a_run(watcher)) == {}


@pytest.mark.parametrize(
    ("positions", "kind"),
    [([(1, text(1)), (3, END)], "lost"), ([(1, text(1)), (1, text(1)), (2, text(2)), (3, END)], "doubled")],
)
def test_a_gap_is_lost_and_a_repeat_is_doubled(positions: list[tuple[int, bytes]], kind: str) -> None:
    watcher = Watcher(URL, "run")
    for position, data in positions:
        watcher._note(position, data)
    assert found(a_run(watcher))[kind] >= 1


def test_another_chunk_at_a_position_than_the_log_has_is_doubled() -> None:
    assert found(a_run(watched(text(1), OTHER, END))) == {"doubled": 1}


def test_a_client_without_an_end_is_stuck() -> None:
    assert found(a_run(watched(text(1)))) == {"stuck": 1}


@pytest.mark.parametrize(
    ("lines", "completed", "kinds"),
    [
        (["1", "2"], True, {}),
        (["1"], False, {}),
        (["1"], True, {"lost"}),
        (["1", "3"], True, {"lost"}),
        (["1", "1", "2"], True, {"doubled"}),
    ],
)
def test_lines_must_be_counted_to_the_last_if_the_run_completed(
    lines: list[str], completed: bool, kinds: set[str]
) -> None:
    tally = Tally()
    check_lines(tally, a_run(watched()), lines, completed)
    assert {kind for kind, count in tally.counts.items() if count} == set(kinds)


def test_a_row_of_an_epoch_after_the_first_row_of_a_newer_one_is_foreign() -> None:
    tally = Tally()
    check_rows(tally, "run", [[0, 1, 0], [1, 5, 1], [6, 2, 2]])
    assert tally.clean
    check_rows(tally, "run", [[0, 1, 0], [1, 5, 2], [6, 2, 1]])
    assert tally.counts == {"lost": 0, "doubled": 0, "foreign": 1, "stuck": 0}
    check_rows(tally, "run", [[0, 1, 0], [2, 5, 1]])
    assert tally.counts["lost"] == 1


def test_an_agent_that_was_launched_twice_is_doubled() -> None:
    tally = Tally()
    runs = [a_run(watched())]
    check_launches(tally, runs, ["t-run 100"])
    assert tally.clean
    check_launches(tally, runs, ["t-run 100", "t-run 7"])
    assert tally.counts["doubled"] == 1


def record(status: str, code: str | None = None, **more: Any) -> dict[str, Any]:
    return {"status": status, "error": {"code": code, "message": ""} if code else None, "claims": [], **more}


def test_an_ending_that_nothing_explains_is_lost_and_no_ending_is_stuck() -> None:
    tally = Tally()
    run = a_run(watched())
    check_record(tally, run, record("completed"), ())
    check_record(tally, run, record("failed", "agent_lost"), ("agent_lost",))
    assert tally.clean
    check_record(tally, run, record("failed", "agent_lost"), ())
    check_record(tally, run, record("running"), ("agent_lost",))
    assert tally.counts == {"lost": 1, "doubled": 0, "foreign": 0, "stuck": 1}


def test_a_pause_belongs_to_the_fault_that_it_begins_beside() -> None:
    watcher = watched(text(1), text(2), END)
    watcher.came = [(10.0, 1), (10.3, 2), (14.0, 3), (14.2, 4)]
    runs = [a_run(watcher)]
    early, here, late = (Made(0, kind, at, 0, 0.0, "", None) for kind, at in (("a", 5.0), ("b", 10.4), ("c", 14.1)))
    assert pauses([early, here, late], runs) == {"b": [3700], "c": [200]}
    elsewhere = Made(0, "d", 10.4, 0, 0.0, "", "another-run")
    assert pauses([elsewhere], runs) == {}


def test_a_takeover_is_put_down_to_the_last_fault_before_its_claim() -> None:
    claims = [{"claimedAt": 100, "pauseMs": None}, {"claimedAt": 900, "pauseMs": 250}]
    faults = [
        Made(0, "a", 0, 500, 0.0, "", None),
        Made(1, "b", 0, 800, 0.0, "", "other"),
        Made(2, "c", 0, 950, 0, "", None),
    ]
    assert takeovers(faults, {"run": record("completed") | {"claims": claims}}) == {"a": [250]}


def test_a_spread_of_nothing_is_zeros() -> None:
    assert spread([]) == {"p50": 0, "p99": 0, "max": 0, "count": 0}
    assert spread([3, 1, 2]) == {"p50": 2, "p99": 3, "max": 3, "count": 3}
