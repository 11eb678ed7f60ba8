"""Runs that begin on a host of the test's choice: wherever the spread puts them, until one is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from afterwards import stored_rows
from host import Host
from load import LAUNCHES
from many_hosts import ManyHosts
from shell_runs import numbered, unique
from watching import Watch, check_whole

TRIES = 9


@contextmanager
def start_on(many: ManyHosts, host: Host, lines: int, per_second: float) -> Iterator[Watch]:
    """Start a run whose driver and sandbox are on `host`; yield who watches it.

    Those that began elsewhere go on until one is there, since a new one goes where there are the fewest."""
    script = f"echo $$ >> {LAUNCHES}; {numbered(lines, per_second)}"
    elsewhere: list[str] = []
    try:
        for _ in range(TRIES):
            with Watch(many, unique(f"on-{host.number}"), script) as watch:
                watch.until_lines(1)
                if many.driver(watch.run_id)[0] is host:
                    _cancel(many, elsewhere)
                    yield watch
                    return
                elsewhere.append(watch.run_id)
    finally:
        _cancel(many, elsewhere)
    raise AssertionError(f"of {TRIES} runs none began on host {host.number}")


def _cancel(many: ManyHosts, runs: list[str]) -> None:
    while runs:
        many.ask("POST", "/api/chat/cancel", json={"runId": runs.pop()})


def check_completed(many: ManyHosts, watch: Watch, lines: int) -> None:
    """Check that the run completed: each line once, one agent, and no row of an epoch after one of a newer epoch."""
    check_whole(watch, lines)
    record = many.record(watch.run_id)
    assert (record["status"], record["exitCode"]) == ("completed", 0)
    assert len([line for line in many.launches(LAUNCHES) if watch.run_id in line]) == 1
    epochs = [epoch for _, _, epoch in stored_rows(many, [watch.run_id])[watch.run_id]]
    assert epochs == sorted(epochs), "a foreign row"
