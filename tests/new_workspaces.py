"""New workspaces as tests make them, from sources in one allowed folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from runtime.core.workspace import SourceKind, WorkspaceSource
from runtime.errors import LaunchFailed
from runtime.sandboxes.filling import make_workspace


def fill(sources: Path, kind: str, name: str, ref: str | None = None) -> Path:
    """Return a new workspace that begins with `name`."""
    place = sources.parent / "workspaces" / "thread"
    source = WorkspaceSource(kind=SourceKind(kind), place=str(sources / name), ref=ref)
    make_workspace(place, source, [str(sources)])
    return place


def refused(sources: Path, kind: str, name: str, why: str) -> None:
    """Check that no workspace can be made of it, and that nothing is left of the attempt."""
    with pytest.raises(LaunchFailed, match=why):
        fill(sources, kind, name)
    assert list((sources.parent / "workspaces").iterdir()) == []
    assert not (sources.parent / "outside").exists()


def content(folder: Path) -> dict[str, str]:
    """Return each file's text, and each link's target, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
    return found


def git(*arguments: str, cwd: Path) -> None:
    """Run git there, as nobody in particular."""
    who = {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": os.environ["PATH"]}
    who |= {f"GIT_{whose}_{what}": "test@test" for whose in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, env=who)
