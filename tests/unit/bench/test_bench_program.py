"""The benchmark is a program that starts: in tests its modules are found on another path than by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_the_program_finds_all_of_its_measurements() -> None:
    asked = subprocess.run(
        [sys.executable, str(BENCH), "--only", "speed"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (asked.returncode, asked.stderr[:18]) == (1, "bench: no row spee"), asked.stderr
