"""Put plain values aside as bytes and take them up again, exactly: what a checkpoint's states are made of (P25).

Not the canonical form of chunks: infinities, numbers of any length, lone surrogates and the order of keys come back as
they were, since what an agent prints may hold them and its replay must not notice that it was interrupted.
"""

from __future__ import annotations

import json
from typing import Any


def put_aside(value: Any) -> bytes:
    """Return the bytes for a value of dicts with str keys, lists, str, int, float, bool and None."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def take_up(data: bytes) -> Any:
    """Return the value. Raises ValueError or RecursionError for bytes that are none."""
    return json.loads(data)
