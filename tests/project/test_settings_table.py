"""`docs/settings.md` says what the code says."""

from __future__ import annotations

from pathlib import Path

import settings_table

from runtime.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_is_what_the_settings_are() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == settings_table.render(), "run: .venv/bin/python tools/settings_table.py"


def test_every_setting_has_a_row() -> None:
    rows = list(settings_table.rows())
    assert len(rows) == len(Settings.__struct_fields__)
    assert all(row.count(" | ") == 3 for row in rows)


def test_a_row_says_default_range_and_meaning() -> None:
    row = next(row for row in settings_table.rows() if "OUTLAST_PORT" in row)
    assert row == "| `OUTLAST_PORT` | `8000` | whole number, at least 1, at most 65535 | HTTP port. |\n"
