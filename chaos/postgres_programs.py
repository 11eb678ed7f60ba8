"""Where the programs of a PostgreSQL server lie on this machine.

In `$OUTLAST_TEST_POSTGRES` (a folder), where Debian puts them, or on the PATH, whichever has all that are asked for.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

FOLDER = "OUTLAST_TEST_POSTGRES"


@cache
def folder_with(*names: str) -> Path | None:
    """Return the folder that has all of these programs, of Debian's the newest; None if there is none."""
    given = [Path(os.environ[FOLDER])] if os.environ.get(FOLDER) else []
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = [Path(place) for place in os.environ.get("PATH", "").split(":") if place]
    for folder in [*given, *debian, *on_path]:
        if all(os.access(folder / name, os.X_OK) for name in names):
            return folder.resolve()
    return None
