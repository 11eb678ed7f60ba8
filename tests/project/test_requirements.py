"""The pins are whole: hashed, the same for instances and tests, and free of any machine's addresses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETS = ("run", "dev")


def _pins(which: str) -> dict[str, list[str]]:
    """Return `name==version` -> its hashes."""
    text = (ROOT / "requirements" / f"{which}.txt").read_text().replace("\\\n", " ")
    entries = [line.split() for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    return {entry[0]: entry[1:] for entry in entries}


@pytest.mark.parametrize("which", SETS)
def test_every_requirement_is_pinned_and_hashed(which: str) -> None:
    for pin, hashes in _pins(which).items():
        assert re.fullmatch(r"[a-z0-9-]+(\[[a-z,]+\])?==\S+", pin)
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", value) for value in hashes), pin


def test_tests_run_on_the_versions_that_instances_run_on() -> None:
    run, dev = _pins("run"), _pins("dev")
    assert {pin: dev.get(pin) for pin in run} == run


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for which, wanted in (("run", project["dependencies"]), ("dev", project["optional-dependencies"]["dev"])):
        names = {pin.partition("==")[0].partition("[")[0] for pin in _pins(which)}
        asked = {re.split(r"[\[<>=~! ]", entry)[0].lower() for entry in wanted}
        assert asked <= names


def test_what_builds_the_package_is_pinned() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    built = [line for line in (ROOT / "requirements" / "build.in").read_text().split("\n") if line and line[0] != "#"]
    assert built == asked
