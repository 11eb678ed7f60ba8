"""What a shard can tell of its drivers beside their claims: what it refused to superseded ones, and how long takeovers
took.

A refusal writes nothing (I1), so it is kept here, in memory, within bounds, and is gone with the process. A pause is
in the record too, and is only counted here. Both begin anew with each incarnation of the shard, as counters may.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from runtime.core.ops import Append, Appended, ClaimRun, Finish, Finished, Note, Op, Outcome, Superseded
from runtime.core.record import Head, Refused, pause_before_ms
from runtime.ports import Clock

log = logging.getLogger("outlast.shard")

MAX_RUNS = 512  # of which refusals are kept; the run that was refused something longest ago goes first
MAX_OF_RUN = 16  # lines of one run; the oldest goes first
# Upper bounds in seconds: a warm takeover, a cold one, a hang, a node, a sandbox that came back.
PAUSE_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
RENEWAL = "renewal"
_TRIED = {Append: "append", Finish: "finish", Note: "note", ClaimRun: "claim"}


class Story:
    """Hears of every answer of one shard."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: OrderedDict[str, OrderedDict[tuple[int, str], Refused]] = OrderedDict()
        self._refusals = dict.fromkeys((*_TRIED.values(), RENEWAL), 0)
        self._pauses: dict[str, list[float]] = {}
        self.listener: Callable[[Op, Outcome], None] = lambda _op, _outcome: None  # for hooks; waits for nothing

    def hear(self, op: Op, outcome: Outcome) -> None:
        """Take note of one operation's answer."""
        self.listener(op, outcome)
        match outcome:
            case Superseded(held_epoch=held, current_epoch=current):
                tried = _TRIED.get(type(op))
                if tried is not None:
                    self.refuse(outcome.run_id, held, current, tried)
            case Appended(head=head, repeat=False) if isinstance(op, Append):
                self._resumed(head, op.batch.count)
            case Finished(head=head, repeat=False) if isinstance(op, Finish):
                self._resumed(head, op.batch.count)

    def refuse(self, run_id: str, held: int, current: int, tried: str) -> None:
        """Take note of a refusal: once in the log for each kind, however often it is tried."""
        self._refusals[tried] += 1
        of_run = self._refused.setdefault(run_id, OrderedDict())
        self._refused.move_to_end(run_id)
        now = self._clock.wall_ms()
        before = of_run.pop((held, tried), None)
        if before is None:
            log.warning("run %s: epoch %d was refused: %s. Epoch %d drives the run.", run_id, held, tried, current)
        of_run[held, tried] = Refused(
            epoch=held,
            current_epoch=current,
            tried=tried,
            count=before.count + 1 if before else 1,
            first_at=before.first_at if before else now,
            last_at=now,
        )
        if len(of_run) > MAX_OF_RUN:
            of_run.popitem(last=False)
        if len(self._refused) > MAX_RUNS:
            self._refused.popitem(last=False)

    def refusals(self, run_id: str) -> list[Refused]:
        """Return what was refused to superseded drivers of the run, oldest first."""
        return sorted(self._refused.get(run_id, {}).values(), key=lambda refused: refused.first_at)

    def _resumed(self, head: Head, chunks: int) -> None:
        """Count the pause that ended with a claim's first append: `chunks` are then all that it has."""
        if not head.claims or head.claims[-1].chunks != chunks:
            return
        pause_ms = pause_before_ms(head.claims, len(head.claims) - 1)
        if pause_ms is None:
            return
        counts = self._pauses.setdefault(head.claims[-1].reason.value, [0.0] * (len(PAUSE_BOUNDS_S) + 2))
        counts[bisect_left(PAUSE_BOUNDS_S, pause_ms / 1000)] += 1
        counts[-1] += pause_ms / 1000

    def stats(self) -> dict[str, Any]:
        """Return `refusals` by what was tried, and `pauses` by the claim's reason: how many of each bound of
        PAUSE_BOUNDS_S, how many above, and the sum in seconds."""
        pauses = {reason: list(counts) for reason, counts in self._pauses.items()}
        appends = self._refusals["append"] + self._refusals["finish"]
        return {"refusals": dict(self._refusals), "appends_refused": appends, "pauses": pauses}
