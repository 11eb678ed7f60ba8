"""The receivers of webhooks as the process of hooks knows them: the file as it is, but for removals.

added, changed   from the next look on
removed          once the file was seen without it, unchanged, for STEADY_S: what is being written is not all there
broken, gone     nothing changes
at first         until the file was seen unchanged for STEADY_S, there may be others: who began now has seen no other
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from actors.webhooks_file import Endpoint, read_webhooks, stamp_of
from runtime.errors import InputInvalid

log = logging.getLogger("outlast.hooks")

STEADY_S = 10.0


class Receivers:
    """Of one file; without one there are none."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.trouble = ""
        self._path = path
        self._clock = clock
        self._stamp: tuple[int, int, int] | None = None
        self._seen_at = 0.0
        self._known = False
        self._written: dict[str, Endpoint] = {}
        self._all: dict[str, Endpoint] = {}

    @property
    def known(self) -> bool:
        """Return whether whoever is not named is no receiver."""
        return self._path is None or self._known

    @property
    def names(self) -> frozenset[str]:
        """Return who they are, by the last look."""
        return frozenset(self._all)

    def find(self, name: str) -> Endpoint | None:
        """Return one of them, by the last look."""
        return self._all.get(name)

    def look(self) -> None:
        """Look at the file, and read it if it has changed. Never raises: `known` and `trouble` say how it went."""
        if self._path is None:
            return
        stamp = stamp_of(self._path)
        if stamp is None or stamp != self._stamp:
            try:
                found = read_webhooks(self._path)
            except InputInvalid as error:
                self._complain(error.message)
                return
            self._stamp, self._seen_at = stamp, self._clock()
            self._written = {endpoint.name: endpoint for endpoint in found}
        self.trouble = ""
        if self._clock() - self._seen_at >= STEADY_S:
            self._all, self._known = self._written, True
        else:
            self._all = self._all | self._written

    def _complain(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("%s The receivers that were read before it hold.", trouble)
        self.trouble = trouble
        self._seen_at = self._clock()
