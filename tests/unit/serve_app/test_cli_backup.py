"""`outlast backup` and `outlast restore` as a person meets them: one line each, and exit codes that say which kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import Outlast

from actors.compose import store_path
from runtime.settings import Settings
from serve_app.store_setup import prepare_store


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    settings = Settings(data_dir=str(tmp_path / "data"))
    settings.data_path.mkdir()
    prepare_store(settings)
    return settings.data_dir


def test_a_store_goes_into_a_file_and_back(outlast: Outlast, data_dir: str, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    made = outlast("backup", file, "--data-dir", data_dir)
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("0 runs (0 of them not ended), 0 chunks, ")
    assert outlast("restore", "--check", file).stdout == made.stdout
    restored = outlast("restore", file, "--data-dir", data_dir, "--json")
    assert restored.exit_code == 0, restored.output
    told = json.loads(restored.stdout)
    assert (told["runs"], told["store"], told["newGeneration"] > 0) == (0, "sqlite", True)
    assert told["replaced"] == f"{store_path(Settings(data_dir=data_dir))}.replaced-{told['newGeneration']}"


def test_what_cannot_be_done_is_a_line_and_leaves_nothing(outlast: Outlast, data_dir: str, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    refused = outlast("backup", str(tmp_path / "file"), "--data-dir", str(nowhere))
    assert (refused.exit_code, "There is no store" in refused.output) == (6, True)
    assert outlast("restore", str(tmp_path / "file"), "--data-dir", str(nowhere)).exit_code == 6
    (tmp_path / "file").write_text("mine")
    taken = outlast("backup", str(tmp_path / "file"), "--data-dir", data_dir)
    assert (taken.exit_code, "--force" in taken.output) == (2, True)
    foreign = outlast("restore", str(tmp_path / "file"), "--data-dir", data_dir)
    assert (foreign.exit_code, "is no backup" in foreign.output) == (6, True)
    assert (tmp_path / "file").read_text() == "mine"
    assert outlast("backup", str(tmp_path / "gone" / "file"), "--data-dir", data_dir).exit_code == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]
