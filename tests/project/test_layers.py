"""The layers of the design hold, and each contract notices when they do not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("runtime", "actors", "serve_app")

# One breach of each contract of pyproject.toml, by its id.
BREACHES = {
    "top": ("runtime/engine/breach_top.py", "import serve_app"),
    "runtime": ("runtime/core/breach_up.py", "import runtime.ports"),
    "delivery": ("runtime/delivery/breach_store.py", "import runtime.stores"),
    "no-ray-no-http": ("runtime/engine/breach_ray.py", "import ray"),
    "no-http-in-actors": ("actors/breach_http.py", "import fastapi"),
    "pure-core": ("runtime/core/breach_loop.py", "import asyncio"),
    "kits": ("runtime/testing/breach_kit.py", "import runtime.sandboxes"),
    "kits-are-not-production": ("actors/breach_kit.py", "import runtime.testing"),
    "processes": ("runtime/engine/breach_process.py", "import runtime.process"),
}


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([program, "--no-cache", "--no-logo"], cwd=folder, capture_output=True, text=True, check=False)


def test_the_layers_hold() -> None:
    result = _lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_contract_notices_its_breach(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, line in BREACHES.values():
        (tmp_path / path).write_text(line + "\n")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["id"] for contract in contracts} == set(BREACHES)
    output = _lint(tmp_path).stdout
    for contract in contracts:
        assert f"{contract['name']} BROKEN" in " ".join(output.split()), output


def test_a_module_of_runtime_without_a_layer_is_refused(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "runtime" / "loose.py").touch()
    assert "loose" in _lint(tmp_path).stdout
