"""The clients and agents from npm are pinned and hashed, free of any machine's addresses, and installed once."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import setup_agents
import setup_node
from setup_venv import SetupError

SOURCES = (setup_node.SOURCE, setup_agents.SOURCE)

FAKE_NPM = """#!/bin/sh
echo "$@" >> calls
mkdir -p node_modules
exit $(cat "$0.exit")
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a lock, and on the PATH a Node 20 and an npm that notes its calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("node", "#!/bin/sh\necho v20.1.0\n"), ("npm", FAKE_NPM)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "npm.exit").write_text("0")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    source = tmp_path / "source"
    source.mkdir()
    for name in (*setup_node.LOCKED, "client.mjs"):
        (source / name).write_text(name)
    return source


def _prepare(source: Path) -> list[str]:
    """Make ready; return the calls of npm so far."""
    target = setup_node.prepare(source.parent, source, source.parent / "target")
    return (target / "calls").read_text().split("\n")[:-1]


def _packages(source: Path) -> dict[str, Any]:
    lock = json.loads((source / "package-lock.json").read_text())
    return {path: package for path, package in lock["packages"].items() if path}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_package_is_pinned_and_hashed(source: Path) -> None:
    packages = _packages(source)
    assert len(packages) > 5
    for path, package in packages.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", package["version"]), path
        assert package["integrity"].startswith("sha512-"), path


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_lock_names_no_place_to_download_from(source: Path) -> None:
    assert [path for path, package in _packages(source).items() if "resolved" in package] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_direct_dependency_is_one_version(source: Path) -> None:
    asked = json.loads((source / "package.json").read_text())["dependencies"]
    packages = _packages(source)
    assert {name: packages[f"node_modules/{name}"]["version"] for name in asked} == asked


def test_modules_are_installed_once_and_scripts_follow_the_sources(source: Path) -> None:
    assert len(_prepare(source)) == 1
    (source / "client.mjs").rename(source / "other.mjs")
    assert len(_prepare(source)) == 1
    assert [script.name for script in (source.parent / "target").glob("*.mjs")] == ["other.mjs"]


def test_another_lock_is_installed_anew(source: Path) -> None:
    _prepare(source)
    (source / "package-lock.json").write_text("changed")
    assert len(_prepare(source)) == 2


def test_an_installation_that_failed_is_tried_again(source: Path) -> None:
    verdict = source.parent / "bin" / "npm.exit"
    verdict.write_text("1")
    with pytest.raises(SetupError, match="npm ci failed"):
        _prepare(source)
    verdict.write_text("0")
    assert len(_prepare(source)) == 2


def test_an_old_node_is_refused(source: Path) -> None:
    (source.parent / "bin" / "node").write_text("#!/bin/sh\necho v18.19.0\n")
    with pytest.raises(SetupError, match=r"Node 20 or newer is needed; .* v18\.19\.0"):
        _prepare(source)


def test_a_missing_npm_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(source))
    with pytest.raises(SetupError, match="node is not on the PATH"):
        _prepare(source)


def test_the_agents_programs_are_linked_anew_each_time(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for program in (old, new):
        program.write_text("#!/bin/sh\n")
    for program in (old, new, new):
        setup_agents.link(tmp_path / "bin", {"claude": program})
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["claude"]
    assert (tmp_path / "bin" / "claude").resolve() == new
    assert os.access(new, os.X_OK)


def test_an_agent_that_npm_did_not_bring_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no claude and no codex for linux-"):
        setup_agents.programs(tmp_path)
