"""Which files the package is made of: hashed to know when to install it again, copied to build it from.

It is built from a copy, never in the checkout: setuptools leaves a `build/lib` behind whose stale modules would be in
the next wheel, long after they were deleted. Standard library only, since set-up runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

METADATA = ("pyproject.toml", "README.md", "LICENSE")
PACKAGES = ("runtime", "actors", "serve_app")


def listed(root: Path) -> list[Path]:
    """Return the files, relative to `root`, in a fixed order."""
    found = [Path(name) for name in METADATA if (root / name).is_file()]
    for package in PACKAGES:
        files = (path for path in sorted((root / package).rglob("*")) if path.is_file())
        found += [path.relative_to(root) for path in files if "__pycache__" not in path.parts]
    return found


def digest(root: Path) -> str:
    """Return a hash over the names and bytes of all files."""
    total = hashlib.sha256()
    for path in listed(root):
        content = (root / path).read_bytes()
        total.update(f"{path} {len(content)}\n".encode() + content)
    return total.hexdigest()


def copy(root: Path, target: Path) -> None:
    """Copy the files below `target`."""
    for path in listed(root):
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, place)
