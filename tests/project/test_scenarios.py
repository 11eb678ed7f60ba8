"""Every scenario of docs/scenarios.md has tests, and they are defined where it says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "scenarios.md"
WANTED: Mapping[str, Sequence[int]] = {
    "Takeover": range(1, 8),
    "Journal": range(8, 16),
    "Reaper": range(16, 25),
    "Durable run fields": range(25, 31),
    "Run and message stores": range(32, 40),
    "Reclaim": (217, 222, 224, 226, 230, 232, 234, 235, 237),
}
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/.]+)::(test_\w+)`")


def _sections(text: str) -> dict[str, dict[int, str]]:
    """Return section -> number of the scenario -> the cell of its tests."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        title: {int(number): tests for number, _, tests in ROW.findall(body)}
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _undefined(root: Path, cell: str) -> list[str]:
    named = TEST.findall(cell)
    return [
        f"{path}::{test}"
        for path, test in named
        if not (root / path).is_file() or not re.search(rf"def {test}\(", (root / path).read_text())
    ] or ([] if named else ["no test"])


def test_every_scenario_has_its_row() -> None:
    assert {title: sorted(rows) for title, rows in _sections(DOCUMENT.read_text()).items()} == {
        title: list(numbers) for title, numbers in WANTED.items()
    }


def test_every_test_of_a_scenario_is_defined() -> None:
    missing = {
        number: undefined
        for rows in _sections(DOCUMENT.read_text()).values()
        for number, cell in rows.items()
        if (undefined := _undefined(ROOT, cell))
    }
    assert missing == {}


def test_a_scenario_without_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_real(): ...\n# test_gone is not here\n")
    named = "`test_it.py::test_real` `test_it.py::test_gone`"
    rows = _sections(f"## A\n\n| 1 | this | {named} |\n| 2 | that | soon |\n")["A"]
    assert {number: _undefined(tmp_path, cell) for number, cell in rows.items()} == {
        1: ["test_it.py::test_gone"],
        2: ["no test"],
    }
