"""`outlast`: where the console script enters. The commands are in `program.py`.

A folder `runtime/` of a user's own, earlier on Python's path, breaks every import of ours. So nothing of ours is
imported before that can be said in a line.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

REFUSED = 6  # `commands/exits.py`, which cannot be imported then


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        from serve_app.program import cli  # noqa: PLC0415 - see above
    except ImportError as error:
        foreign = shadow()
        if foreign is None:
            raise
        print(  # noqa: T201 - click may be what is missing
            f"outlast: Python takes the package 'runtime' from {foreign}, which is not Outlast's ({error}). "
            "Take that folder off PYTHONPATH, or rename yours.",
            file=sys.stderr,
        )
        sys.exit(REFUSED)
    cli.main(prog_name="outlast")


def shadow() -> Path | None:
    """Return where `runtime` comes from if that is not beside this package."""
    spec = find_spec("runtime")
    place = Path(spec.origin).parent if spec and spec.origin else None
    return None if place is None or place.parent == Path(__file__).parent.parent else place


if __name__ == "__main__":
    main()
