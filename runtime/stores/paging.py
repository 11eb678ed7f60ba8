"""The cursor of a page of runs: the ordinal of the last run on it, behind a letter so that nobody counts with it."""

from __future__ import annotations

import re

from runtime.errors import InputInvalid

MAX_PAGE = 500  # runs; a spec may be as large as a request body
_CURSOR = re.compile(r"r([0-9]{1,18})", re.ASCII)  # 18 digits fit a signed 64-bit column
_START = 10**18


def encode_cursor(ordinal: int) -> str:
    """Return the cursor of the page after the run with this ordinal (its place in the order of creation)."""
    return f"r{ordinal}"


def decode_cursor(cursor: str | None) -> int:
    """Return the ordinal below which the page begins. Raises InputInvalid `cursor_invalid`."""
    if cursor is None:
        return _START
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InputInvalid(
            "cursor must be the `next` of the page before, as it was sent.", code="cursor_invalid", field="cursor"
        )
    return int(match[1])


def page_limit(limit: int) -> int:
    """Return how many runs a page holds: `limit`, at least 1 and at most MAX_PAGE."""
    return max(1, min(limit, MAX_PAGE))
