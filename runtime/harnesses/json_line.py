"""Decide whether a line of output is JSON, for every harness whose agent prints JSON lines.

The decision depends on the line alone, so that every reader of a journal makes it alike (P24); `chunk.decode` bounds
depth and numbers for that.
"""

from __future__ import annotations

import math
from typing import Any

from runtime.core import chunk


def parse(line: bytes, torn: bool) -> Any:
    """Return the JSON value of `line`, as leniently as `chunk.decode`. Raises ValueError if it is none.

    None either: a bare NaN or infinity, which no chunk could hold, and of a torn line all but a whole object (a torn
    `12` may have been `123`)."""
    value = chunk.decode(line)
    if torn and not isinstance(value, dict):
        raise ValueError("torn")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not finite")
    return value
