"""Break an instance on purpose, in every way there is, while runs are watched; write `build/chaos.json`.

    make chaos FAULTS=100 RUNS=8 NODES=1 SEED=0        one `outlast serve` on this machine
    make chaos FAULTS=500 RUNS=20 NODES=3 SEED=0       three hosts in network namespaces; needs root

The seed fixes what happens when. Exit code 0 only if nothing was lost, doubled, foreign or stuck (`tally.py` says what
these mean).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from faults import Fault
from load import FEW_LINES, LAUNCHES, LINES, Load, Run
from plan import Planned, plan
from sites import Ground, ground
from tally import (
    Made,
    Tally,
    as_json,
    check_clients,
    check_launches,
    check_lines,
    check_record,
    check_rows,
    pauses,
    spread,
    takeovers,
)

BUILD = Path("build")
# After the last fault and its mending: the longest run, its sandbox's return, and time to spare on a busy machine.
BOUND_S = 300.0
FEW_FAULTS = 20
TARGET_S = 60.0  # how long a fault waits for somebody whom it can meet
WHOLE = ("kill_everything", "restart_head")  # nothing is left to break beside these: the schedule waits for their end
log = logging.getLogger("chaos")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 at four zeros, else 1."""
    parser = argparse.ArgumentParser(prog="chaos", description="Break an instance; write build/chaos.json.")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="postgres", help="on three nodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds of faults, by commas; all by default")
    parser.add_argument("--build", type=Path, default=BUILD)
    asked = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)7d %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    log.info("chaos: seed %d, %d faults, %d runs, %d node(s)", asked.seed, asked.faults, asked.runs, asked.nodes)
    asked.build.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        where = stack.enter_context(ground(asked.nodes, asked.build.resolve(), asked.store))
        lines = LINES if asked.faults > FEW_FAULTS else FEW_LINES
        load = Load(where.site.url, asked.runs, asked.seed, where.site.enter_network, lines)
        kinds = {name: kind for name, kind in where.kinds.items() if not asked.only or name in asked.only.split(",")}
        load.start()
        faults = _make(plan(asked.seed, asked.faults, kinds), where.faults(load))
        where.mend()
        log.info("all faults made and mended; %d runs go on", len(load.active()))
        load.wind_down(BOUND_S)
        tally, records = _check(where, load)
    return _report(asked, tally, faults, load, records)


def _make(planned: Sequence[Planned], table: Mapping[str, Fault]) -> list[Made]:
    """Make the faults at their times, those that hold side by side; return when the last has ended.

    One that meets nobody, or cannot be made, is said and left out."""
    made: list[Made] = []
    begun = time.monotonic()
    with ThreadPoolExecutor(32, "fault") as pool:
        pending: list[Future[None]] = []
        for one in planned:
            time.sleep(max(0.0, begun + one.at_s - time.monotonic()))
            future = pool.submit(_make_one, one, table[one.kind], made)
            pending.append(future)
            if one.kind in WHOLE:
                future.result()
                begun += time.monotonic() - begun - one.at_s
        for future in pending:
            future.result()
    return sorted(made, key=lambda fault: fault.at)


def _make_one(planned: Planned, fault: Fault, made: list[Made]) -> None:
    give_up = time.monotonic() + TARGET_S
    while time.monotonic() < give_up:
        at, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        try:
            with fault(planned) as met:
                if met is not None:
                    made.append(Made(planned.number, planned.kind, at, at_ms, planned.hold_s, met.what, met.run_id))
                    log.info("%4d %-18s %5.1f s  %s", planned.number, planned.kind, planned.hold_s, met.what)
                    time.sleep(planned.hold_s)
                    return
        except Exception:
            log.exception("fault %d (%s) could not be made", planned.number, planned.kind)
            return
        time.sleep(0.5)
    log.info("%4d %-18s met nobody", planned.number, planned.kind)


def _check(where: Ground, load: Load) -> tuple[Tally, dict[str, dict[str, Any]]]:
    tally = Tally()
    if load.failed is not None:
        raise load.failed
    records: dict[str, dict[str, Any]] = {}
    runs = [run for run in load.runs if run.watchers[0].seen]
    for run in load.runs:
        if not run.watchers[0].seen:
            tally.add("stuck", f"{run.run_id}: never began")
    for run in runs:
        records[run.run_id] = where.record(run.run_id)
        check_clients(tally, run)
        check_record(tally, run, records[run.run_id], where.excuses(records[run.run_id]))
        if run.final is not None and run.final.ended:
            check_lines(tally, run, run.final.lines, records[run.run_id]["status"] == "completed")
    for run_id, rows in where.stored([run.run_id for run in runs]).items():
        check_rows(tally, run_id, rows)
    check_launches(tally, runs, where.launches(LAUNCHES))
    return tally, records


def _report(
    asked: argparse.Namespace,
    tally: Tally,
    faults: Sequence[Made],
    load: Load,
    records: Mapping[str, Mapping[str, Any]],
) -> int:
    of_takeovers = takeovers(faults, records)
    of_pauses = pauses(faults, load.runs)
    endings: dict[str, int] = {}
    for record in records.values():
        ending = record["status"] + (f" {record['error']['code']}" if record["error"] else "")
        endings[ending] = endings.get(ending, 0) + 1
    refusals = [refusal for run in load.runs for watcher in run.watchers for refusal in watcher.refusals]
    figures = {
        "takeoverMs": spread([pause for values in of_takeovers.values() for pause in values]),
        "takeoverMsBy": {kind: spread(values) for kind, values in sorted(of_takeovers.items())},
        "pauseMs": spread([pause for values in of_pauses.values() for pause in values]),
        "pauseMsBy": {kind: spread(values) for kind, values in sorted(of_pauses.items())},
        "asked": asked.faults,
        "runs": len(records),
        "endings": endings,
        "refusedClients": len(refusals),
        "nodes": asked.nodes,
        "load": list(os.getloadavg()),
    }
    (asked.build / "chaos.json").write_text(as_json(tally, asked.seed, len(faults), figures) + "\n")
    found = {run_id: record for run_id, record in records.items() if any(run_id in text for text in tally.findings)}
    (asked.build / "chaos-findings.json").write_text(json.dumps(found, indent=1) + "\n")
    _print(tally, figures, faults, refusals, _runs_line(load.runs))
    print(f"seed {asked.seed}: {'clean' if tally.clean else 'NOT CLEAN'}")
    return 0 if tally.clean else 1


def _runs_line(runs: Sequence[Run]) -> str:
    chunks = sum(watcher.last for run in runs for watcher in run.watchers)
    return f"{len(runs)} runs, {chunks} chunks given to clients"


def _print(
    tally: Tally, figures: Mapping[str, Any], faults: Sequence[Made], refusals: Sequence[str], runs: str
) -> None:
    for finding in [*tally.findings, *(f"refused: {text[:160]}" for text in refusals[:20])]:
        print(finding)
    print(f"{'':22}{'count':>6}{'p50':>8}{'p99':>8}{'max':>8}   ms")
    for title, key in (("pause", "pauseMsBy"), ("takeover", "takeoverMsBy")):
        for kind, row in figures[key].items():
            print(f"{title} {kind:<{21 - len(title)}}{row['count']:>6}{row['p50']:>8}{row['p99']:>8}{row['max']:>8}")
    print(f"endings: {figures['endings']}; refused clients: {len(refusals)}; {runs}")
    print("  ".join(f"{kind} {count}" for kind, count in tally.counts.items()), f" of {len(faults)} faults")


if __name__ == "__main__":
    sys.exit(main())
