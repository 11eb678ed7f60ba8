"""`outlast reap`: what a person is told of a sweep."""

from __future__ import annotations

from typing import Any

from serve_app.commands.reap import lines


def _report(*runs: dict[str, Any], dry_run: bool = False, **facts: Any) -> dict[str, Any]:
    outcomes = {"finalized": 0, "expired": 0, "producing": 0}
    for run in runs:
        outcomes[run["outcome"]] += 1
    return {
        "at": 1,
        "dryRun": dry_run,
        "considered": len(runs),
        "outcomes": outcomes,
        "runs": list(runs),
        "pruned": {"logs": 0, "transcripts": 0},
        **facts,
    }


def _run(run_id: str, outcome: str, **facts: Any) -> dict[str, Any]:
    return {"runId": run_id, "outcome": outcome, "status": None, "exitCode": None, "error": None, **facts}


def test_each_run_has_a_line_and_the_last_one_counts_them() -> None:
    report = _report(
        _run("r-1", "finalized", status="completed", exitCode=0),
        _run("r-2", "expired", status="aborted"),
        _run("r-3", "producing"),
        failures=["log:1 does not say what is due"],
        kept={"local/m/d/r-9": "unknown-run"},
    )
    assert list(lines(report)) == [
        "r-1  finalized  (completed, exit code 0)",
        "r-2  expired  (aborted)",
        "r-3  producing",
        "3 detached runs: 1 finalized, 1 expired, 1 producing",
        "kept local/m/d/r-9: unknown-run",
        "left out: log:1 does not say what is due",
    ]


def test_a_look_says_that_it_was_one() -> None:
    assert list(lines(_report(dry_run=True, failures=[], kept={}))) == ["0 detached runs, only looked: nothing to do"]


def test_what_was_too_old_to_be_kept_is_told() -> None:
    report = _report(failures=[], kept={}, pruned={"logs": 2, "transcripts": 0})
    assert list(lines(report))[-1] == "removed, too old to be kept: 2 logs"
    report = _report(failures=[], kept={}, pruned={"logs": 1, "transcripts": 3}, dry_run=True)
    assert list(lines(report))[-1] == "to remove, too old to be kept: 1 logs, 3 transcripts"
