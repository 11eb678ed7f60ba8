"""`make chaos` itself: a small one on one host ends clean, writes its figures, and can be repeated by its seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).resolve().parents[2] / "chaos" / "chaos.py"
KEYS = {"faults", "lost", "doubled", "foreign", "stuck", "takeoverMs", "seed"}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ten_faults_over_four_runs_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    order = ["--faults", "10", "--runs", "4", "--nodes", "1", "--seed", "3", "--build", str(tmp_path)]
    done = subprocess.run([sys.executable, CHAOS, *order], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 3: clean" in done.stdout
    figures = json.loads((tmp_path / "chaos.json").read_text())
    assert figures.keys() >= KEYS
    assert [figures[key] for key in ("faults", "lost", "doubled", "foreign", "stuck", "seed")] == [10, 0, 0, 0, 0, 3]
    assert figures["takeoverMs"].keys() >= {"p50", "p99", "max"}
    assert figures["endings"] == {"completed": figures["runs"]}
