"""`python -m runtime.testing.simulate --schedules N --seed S`: play N seeded histories, from seed S on.

Exits with 1 at the first history that breaks an invariant, after printing what broke, the end of its trace, and the
one command that plays it again.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence

from runtime.testing.simulator import Report, simulate

TRACE_LINES = 60
TELL_EVERY = 5000
PORTION = 20  # histories that a process is given at once


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m runtime.testing.simulate", description=__doc__)
    parser.add_argument("--schedules", "--runs", type=int, default=1000, help="how many histories (1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of each history")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes play; 0: one for each CPU (1)")
    asked = parser.parse_args(argv)
    begun = time.perf_counter()
    failed = 0
    lines = 0
    postgres = 0
    reports = _reports(range(asked.seed, asked.seed + asked.schedules), asked.jobs or os.cpu_count() or 1)
    for played, report in enumerate(reports, 1):
        lines += len(report.trace)
        postgres += report.plan.postgres
        if played % TELL_EVERY == 0:
            _say(f"{played} played in {time.perf_counter() - begun:.0f} s, {failed} failed")
        if asked.trace:
            _say("\n".join(report.trace))
        if report.breaches:
            failed += 1
            _say(describe(report))
            if not asked.go_on:
                return 1
    seconds = time.perf_counter() - begun
    _say(
        f"{asked.schedules} histories from seed {asked.seed}: {failed} failed; {lines} events, {seconds:.1f} s; "
        f"{postgres} on PostgreSQL"
    )
    return 1 if failed else 0


def _reports(seeds: range, jobs: int) -> Iterator[Report]:
    """Play the histories, and yield each in the order of the seeds."""
    if jobs == 1:
        _settle()
        yield from map(simulate, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _settle) as players:
        yield from players.imap(simulate, seeds, PORTION)


def _settle() -> None:
    """Let garbage collection forget what stays for ever, which is nearly all there is."""
    gc.collect()
    gc.freeze()


def describe(report: Report) -> str:
    """Return what a person needs to look into a failed history."""
    return "\n".join(
        [
            f"seed {report.seed} breaks, after {report.virtual_s:.1f} virtual seconds:",
            *(f"  {breach}" for breach in report.breaches),
            f"  kinds of trouble: {', '.join(report.plan.kinds)}",
            "the end of its trace:",
            *(f"  {line}" for line in report.trace[-TRACE_LINES:]),
            f"again: {report.repeat}",
        ]
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
