"""Where our three packages come from: a user's own `runtime/` folder must not shadow ours."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import actors
import runtime
import serve_app
from runtime.errors import InstanceError


def package_origins() -> dict[str, str]:
    """Return the folder of each of our packages as imported in this process."""
    return {module.__name__: str(Path(module.__file__ or "").parent) for module in (runtime, actors, serve_app)}


def check_package_origin() -> None:
    """Raise InstanceError unless the three packages are the installed distribution's."""
    folders = {Path(folder).parent for folder in package_origins().values()}
    version = importlib.metadata.version("outlast")
    if len(folders) != 1:
        raise InstanceError(
            f"runtime, actors and serve_app come from different places ({package_origins()}), so one of them is not "
            f"outlast {version}'s. Start from another folder, or rename yours."
        )
