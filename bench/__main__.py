"""Measure the product from outside, as its users meet it; write `build/bench.json` and print a table.

    make bench                                          every row, some ten minutes
    make bench ARGS='--only takeover_p50_ms --quick'    one row, few trials: a look, no figure to quote

Every row but translation and alignment goes through `outlast serve`: real Ray, Serve, HTTP, SQLite on disk, agents as
processes. Each measurement's module says what its clock starts and stops at. Client, agents and system share the cores
of this machine; so the load and the machine are printed with the figures. Exit code 1: a row is missed or not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Awaitable, Sequence
from pathlib import Path

from measurements import Group, choose
from rows import ROWS, Figures, Row, as_json, as_text
from served import instance

BUILD = Path("build")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for; return 1 if a row has no figure. A missed target is said and is no failure."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure the product; write build/bench.json.")
    parser.add_argument("--only", default="", help="rows, by commas; a row brings those that are measured with it")
    parser.add_argument("--quick", action="store_true", help="few trials: to see that it works")
    chosen = parser.parse_args(arguments)
    groups = [group for group in choose([name for name in chosen.only.split(",") if name]) if _can_be_made(group)]
    names = {name for group in groups for name in group.rows}
    rows = [row for row in ROWS if row.name in names]
    begun, load = time.monotonic(), os.getloadavg()
    build = BUILD.resolve() / "bench"
    build.mkdir(parents=True, exist_ok=True)
    figures = asyncio.run(_measure(groups, build, chosen.quick))
    _report(rows, figures, begun, load)
    return 0 if all(row.name in figures for row in rows) else 1


def _can_be_made(group: Group) -> bool:
    why = group.missing()
    if why is not None:
        print(f"  left out: {', '.join(group.rows)}: {why}", file=sys.stderr, flush=True)
    return why is None


async def _measure(groups: Sequence[Group], build: Path, quick: bool) -> Figures:
    figures: Figures = {}
    for kind in (False, True):
        served_groups = [group for group in groups if group.measure is not None and group.cold is kind]
        if served_groups:
            settings = {"warm_workers": 0} if kind else {}
            async with instance(build, **settings) as served:
                for group in served_groups:
                    assert group.measure is not None
                    await _one(group, group.measure(served, quick), figures)
    for group in groups:
        if group.alone is not None:
            await _one(group, group.alone(quick), figures)
    return figures


async def _one(group: Group, work: Awaitable[Figures], figures: Figures) -> None:
    """One measurement that fails costs its own rows only."""
    begun = time.monotonic()
    try:
        found = await work
    except Exception:  # noqa: BLE001 - whatever it is, the other rows are worth having
        traceback.print_exc()
        found = {}
    figures |= found
    shown = ", ".join(f"{name} {figure.value:,.1f}" for name, figure in found.items())
    took = f"{time.monotonic() - begun:.0f} s, load {os.getloadavg()[0]:.1f}"
    print(f"  {shown or 'FAILED: ' + ', '.join(group.rows)}  ({took})", file=sys.stderr, flush=True)


def _report(rows: Sequence[Row], figures: Figures, begun: float, load: tuple[float, float, float]) -> None:
    BUILD.mkdir(exist_ok=True)
    (BUILD / "bench.json").write_text(json.dumps(as_json(rows, figures), indent=1) + "\n")
    print(as_text(rows, figures))
    after = os.getloadavg()
    print(
        f"{os.cpu_count()} cores of {_processor()}, {platform.release()}, Python {platform.python_version()}; "
        f"load {load[0]:.1f} before, {after[0]:.1f} after; took {time.monotonic() - begun:.0f} s"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().split("\n"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
