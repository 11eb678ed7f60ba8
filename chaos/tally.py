"""What came of it: the checks of every run, and the figures.

lost      a line of a run that completed, or a chunk that a client was not given, or a run that ended otherwise
          than what happened to it explains
doubled   a chunk or a line that came twice, another chunk at a position than before, an agent launched twice
foreign   a stored row of an epoch after the first row of a newer one
stuck     a run without an end, or a client that was not told of it, within the bound after the last fault
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from load import LAUNCHES, Run
from watcher import Watcher

from runtime.core.names import folder_name

BESIDE_S = 2.0  # a fault has its effect on a client within this, so a pause that begins later is another's
KINDS = ("lost", "doubled", "foreign", "stuck")


@dataclass
class Made:
    """One fault as it was made: on the monotonic clock, and on the wall's in ms."""

    number: int
    kind: str
    at: float
    at_ms: int
    hold_s: float
    what: str
    run_id: str | None


@dataclass
class Tally:
    """Counts and findings."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    findings: list[str] = field(default_factory=list)

    def add(self, kind: str, what: str) -> None:
        """Count one."""
        self.counts[kind] += 1
        self.findings.append(f"{kind}: {what}")

    @property
    def clean(self) -> bool:
        """Return whether all four are zero."""
        return not any(self.counts.values())


def check_clients(tally: Tally, run: Run) -> None:
    """Check what each client of the run was given against what a fresh one was."""
    final = run.final
    watchers = [*run.watchers, *([final] if final is not None else [])]
    for watcher in watchers:
        for breach in watcher.breaches:
            tally.add(breach.kind, breach.what)
        if not watcher.ended:
            tally.add("stuck", f"{run.run_id}: a client was not told of the end; it has {watcher.last} chunks")
    if final is None or not final.ended:
        return
    for watcher in run.watchers:
        for position in final.seen.keys() - watcher.seen.keys() if watcher.ended else ():
            tally.add("lost", f"{run.run_id}: a client was not given {position}")
        for position, digest in watcher.seen.items():
            if final.seen.get(position) != digest:
                tally.add("doubled", f"{run.run_id}: a client was given another chunk at {position}")


def check_record(tally: Tally, run: Run, record: Mapping[str, Any], excuses: Sequence[str]) -> None:
    """Check how the run ended; `excuses` are the codes that what happened to its host explains."""
    status = record["status"]
    if status not in ("completed", "failed", "aborted"):
        tally.add("stuck", f"{run.run_id}: still {status}, claims {story(record)}")
    elif status != "completed":
        code = str((record["error"] or {}).get("code"))
        if code not in excuses:
            tally.add("lost", f"{run.run_id}: ended {status} ({record['error']}), claims {story(record)}")


def story(record: Mapping[str, Any]) -> list[str]:
    """Return the claims in short."""
    return [f"{claim['epoch']} {claim['reason']} {claim['chunks']}" for claim in record["claims"]]


def check_lines(tally: Tally, run: Run, lines: Sequence[str], completed: bool) -> None:
    """Check the agent's lines in the log: 1, 2, 3, to the last if it completed."""
    due = 1
    for line in lines:
        if line.isdecimal() and int(line) < due:
            tally.add("doubled", f"{run.run_id}: line {line} again")
        elif line != str(due):
            tally.add("lost", f"{run.run_id}: line {due} was due, {line!r} came")
            return
        else:
            due += 1
    if completed and due <= run.lines:
        tally.add("lost", f"{run.run_id}: completed with {due - 1} of {run.lines} lines")


def check_rows(tally: Tally, run_id: str, rows: Sequence[Sequence[int]]) -> None:
    """Check stored rows `(seq, count, epoch)`, in order of the log."""
    due = newest = 0
    for seq, count, epoch in rows:
        if seq != due:
            tally.add("lost", f"{run_id}: a row at {seq}, {due} was due")
        if epoch < newest:
            tally.add("foreign", f"{run_id}: a row of epoch {epoch} at {seq}, after one of {newest}")
        due, newest = seq + count, max(newest, epoch)


def check_launches(tally: Tally, runs: Iterable[Run], launches: Iterable[str]) -> None:
    """Check that no agent was launched twice: `launches` are the lines `<workspace> <pid>` of every host."""
    count: dict[str, int] = defaultdict(int)
    for line in launches:
        count[line.split()[0]] += 1
    for run in runs:
        if (times := count[folder_name(run.thread_id)]) > 1:
            tally.add("doubled", f"{run.run_id}: its agent was launched {times} times ({LAUNCHES})")


# --- figures ---------------------------------------------------------------------------------------------------


def pauses(faults: Iterable[Made], runs: Iterable[Run]) -> dict[str, list[int]]:
    """Return, by kind of fault, the longest time without a new chunk at each client around each fault, in ms."""
    found: dict[str, list[int]] = defaultdict(list)
    streams = [(run.run_id, run.watchers[0]) for run in runs if run.watchers]
    for fault in faults:
        for run_id, watcher in streams:
            if fault.run_id in (None, run_id) and (longest := _longest(watcher, fault)) is not None:
                found[fault.kind].append(longest)
    return found


def _longest(watcher: Watcher, fault: Made) -> int | None:
    times = [at for at, _ in watcher.came]
    if not times or times[-1] < fault.at or times[0] > fault.at:
        return None
    gaps = [after - before for before, after in pairwise(times) if after >= fault.at and before <= fault.at + BESIDE_S]
    return round(max(gaps) * 1000) if gaps else None


def takeovers(faults: Sequence[Made], records: Mapping[str, Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the pause of each takeover in the log, in ms, by the kind of the last fault before its claim that can have
    caused it."""
    found: dict[str, list[int]] = defaultdict(list)
    for run_id, record in records.items():
        for claim in record["claims"][1:]:
            if claim.get("pauseMs") is None:
                continue
            causes = [fault for fault in faults if fault.at_ms <= claim["claimedAt"] and fault.run_id in (None, run_id)]
            found[causes[-1].kind if causes else "none"].append(claim["pauseMs"])
    return found


def spread(values: Sequence[int]) -> dict[str, int]:
    """Return p50, p99, max and how many there are."""
    if not values:
        return {"p50": 0, "p99": 0, "max": 0, "count": 0}
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50": round(statistics.median(ordered)), "p99": high, "max": ordered[-1], "count": len(ordered)}


def as_json(tally: Tally, seed: int, faults: int, figures: Mapping[str, Any]) -> str:
    """Return `build/chaos.json`."""
    return json.dumps({"faults": faults, **tally.counts, **figures, "seed": seed, "findings": tally.findings}, indent=1)
