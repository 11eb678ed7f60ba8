"""Importing this makes the modules of `tests/` and `chaos/` importable: they start servers and hosts of their own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("tests", "chaos"))
