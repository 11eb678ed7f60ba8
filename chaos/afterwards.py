"""What is read of an instance past its API: what agents left in their workspaces, and the epochs of stored rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

STORED = Path(__file__).with_name("stored.py")


class Beside(Protocol):
    """Runs programs where the instance's store can be opened."""

    def run_beside(self, program: list[str], input: str) -> str:
        """Run a program of this Python; return what it printed."""


def stored_rows(where: Beside, run_ids: Sequence[str]) -> dict[str, list[list[int]]]:
    """Return `[seq, count, epoch]` of each run's stored batches, in order of the log."""
    said = where.run_beside([str(STORED)], "".join(f"{run_id}\n" for run_id in run_ids))
    rows: dict[str, list[list[int]]] = {}
    for line in said.split("\n"):
        if line.startswith("{"):
            rows |= json.loads(line)
    return rows


def read_workspaces(data_dir: Path, file: str) -> list[str]:
    """Return the lines of `file` of every workspace below `data_dir`: `<workspace> <line>`."""
    found = []
    for path in sorted((data_dir / "workspaces").glob(f"*/{file}")):
        found += [f"{path.parent.name} {line}" for line in path.read_text().split("\n") if line]
    return found
