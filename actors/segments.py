"""Sealed segments in Ray's object store: a cache, since objects die with the shard that put them (P14)."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError

GET_TIMEOUT_S = 0.5


class RaySegments:
    """Puts segments, on a shard's side."""

    def put(self, data: bytes) -> Any:
        """Return a ref to `data`, or None if the object store takes nothing."""
        try:
            return ray.put(data)
        except RayError:
            return None


class RaySegmentReader:
    """Gets segments, on a reader's side."""

    async def get(self, ref: Any) -> bytes | None:
        """Return the segment's bytes, or None if they did not come within 500 ms: then read inline (P14)."""
        try:
            data: bytes = await asyncio.wait_for(ref, GET_TIMEOUT_S)
        except (RayError, TimeoutError):
            return None
        return data
