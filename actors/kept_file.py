"""A file that an operator keeps for us, which says who is who or holds secrets: read whole, at once, or refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from runtime.errors import InputInvalid

MAX_BYTES = 1 << 20  # some ten thousand lines


def read_kept(path: Path, invalid: Callable[[Path, str], InputInvalid], forbidden: int, why: str) -> list[str]:
    """Return the lines of a file that is ours or root's, and whose mode has no `forbidden` bit.

    Raises what `invalid` makes of the path and what is wrong with it: `why`, if somebody else may do too much."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in (os.getuid(), 0) or found.st_mode & forbidden:
                raise invalid(path, why)
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise invalid(path, f"cannot be read ({error.strerror})") from None
    if len(raw) > MAX_BYTES:
        raise invalid(path, f"is larger than {MAX_BYTES} bytes")
    return raw.decode(errors="replace").splitlines()
