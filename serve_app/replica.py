"""One gateway process: what the instance gives to the app, and what it tells it."""

from __future__ import annotations

import asyncio

from serve_app.access import Access
from serve_app.log_reader import NoSegments, SegmentReader


class Replica:
    """A gateway process. `name` is unique for ever (it is a sender of viewer sets, P20). Setting `draining`, from the
    app's own loop, breaks every stream without a final chunk, so that clients reconnect, and every new one too. Without
    `access` everybody is the operator."""

    def __init__(self, name: str, segments: SegmentReader | None = None, access: Access | None = None) -> None:
        self.name = name
        self.segments: SegmentReader = segments or NoSegments()
        self.access = access
        self.draining = asyncio.Event()
