"""Deliberate faults of pruning, made like those in `mutants.py`."""

from __future__ import annotations

from sim.mutants import Patch

from runtime.core import reaping
from runtime.core.decision import View
from runtime.core.ops import Op
from runtime.core.reap_ops import LogDropped, ReapOp, ReapStage
from runtime.core.record import Head
from runtime.engine import pruning
from runtime.engine.questions import Questions
from runtime.engine.tails import Tail

FAR = 1 << 60


def prune_before_the_time(patch: Patch) -> None:
    """Whatever has ended is old."""
    pruned, reapable = reaping.pruned, Questions.reapable

    async def everything(self: Questions, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:
        return await reapable(self, stage, before_ms if stage is ReapStage.EXPIRE else FAR, limit)

    patch.setattr(Questions, "reapable", everything)
    patch.setattr(reaping, "pruned", lambda head, stage, _before: pruned(head, stage, FAR))


def close_without_dropping(patch: Patch) -> None:
    """A log that was given up is said to be gone, and is there."""

    async def nothing(_self: Questions, _run_id: str) -> int:
        return 0

    patch.setattr(Questions, "drop_log", nothing)


def believe_that_it_is_gone(patch: Patch) -> None:
    """Nobody looks whether some of a log is left, neither who removes it nor who writes down that it is gone."""
    close_without_dropping(patch)
    changed = reaping._changed

    def believing(view: View, head: Head, op: ReapOp, now_ms: int) -> Head | None:
        if isinstance(op, LogDropped):
            return reaping.pruned(head, ReapStage.DROP, now_ms)
        return changed(view, head, op, now_ms)

    patch.setattr(reaping, "_changed", believing)


def never_close(patch: Patch) -> None:
    """Nobody writes down that nothing is left."""
    decide = pruning._Turn._decide

    async def forgetful(self: pruning._Turn, op: Op) -> Head | None:
        return None if isinstance(op, LogDropped) else await decide(self, op)

    patch.setattr(pruning._Turn, "_decide", forgetful)


def serve_from_memory(patch: Patch) -> None:
    """A shard's memory does not hear that a log is given up."""
    adopt = Tail.adopt

    def deaf(self: Tail, head: Head) -> None:
        if self.head is None or not head.log_gone:
            adopt(self, head)

    patch.setattr(Tail, "adopt", deaf)
