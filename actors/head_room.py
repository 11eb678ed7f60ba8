"""Asks Ray's autoscaler for nodes before they are needed, so that a takeover does not wait for one.

What is asked for: room for every active run, for as many again as the largest node holds (it may be lost), and a few
more. So new nodes come before new runs are refused (`actors/slots.py`). Without an autoscaler nobody reads it.

The request is one for the whole cluster: another application that uses `request_resources` there would be at odds with
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ray.autoscaler.sdk import request_resources

from actors.slots import RUN_MEMORY
from runtime.engine.placing import Node

log = logging.getLogger("outlast.supervisor")

SPARE = 4


class HeadRoom:
    """Remembers what was asked for."""

    def __init__(self) -> None:
        self._asked = 0

    async def ask(self, runs: int, nodes: Sequence[Node]) -> None:
        """Ask for room for `runs` and the head-room, if that is not what was asked for last."""
        wanted = bundles(runs, nodes)
        if wanted == self._asked:
            return
        await asyncio.to_thread(request_resources, bundles=[{"memory": RUN_MEMORY}] * wanted)
        self._asked = wanted


def bundles(runs: int, nodes: Sequence[Node]) -> int:
    """Return for how many run actors there should be room."""
    largest = max((node.slots for node in nodes), default=0) if len(nodes) > 1 else 0
    return runs + largest + SPARE
