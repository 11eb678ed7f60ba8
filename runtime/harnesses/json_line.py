"""Decide whether a line of output is JSON, for every harness whose agent prints JSON lines.

The decision must be the same in every process that ever reads the line (P24), so it may not depend on how deep the
reader's own stack happens to be: nesting beyond a fixed depth makes a line no JSON, long before Python's recursion
limit would.
"""

from __future__ import annotations

import math
from typing import Any

from runtime.core import chunk

# Real agents nest below 30. Encoding a value that only the slow codec takes costs two frames a level, and 512 of
# Python's 1,000 leave room for any caller.
MAX_DEPTH = 256


def parse(line: bytes, torn: bool) -> Any:
    """Return the JSON value of `line`, as leniently as chunk.decode. Raises ValueError if it is none.

    None either: a value nested deeper than MAX_DEPTH, a bare NaN or infinity, and of a torn line all but a whole
    object (a torn `12` may have been `123`)."""
    try:
        value = chunk.decode(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if torn and not isinstance(value, dict):
        raise ValueError("torn")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not finite")
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise ValueError("nested too deep")
    return value


def _deeper(value: Any, limit: int) -> bool:
    """Return whether `value` nests deeper than `limit`, level by level, without recursion."""
    level = [value]
    for _ in range(limit + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(child for child in item.values() if isinstance(child, dict | list))
            elif isinstance(item, list):
                below.extend(child for child in item if isinstance(child, dict | list))
        if not below:
            return False
        level = below
    return True
