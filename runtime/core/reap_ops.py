"""What only the reaper asks of a record. Each rests on the supervisor's epoch (P6) and is answered `Done`."""

from __future__ import annotations

from enum import StrEnum

from runtime.core.record import Struct


class ReapStage(StrEnum):
    """What the reaper does next about a run."""

    EXPIRE = "expire"
    ACCOUNT = "account"
    PRUNE = "prune"
    DROP = "drop"
    FORGET = "forget"
    TELL = "tell"


class Expire(Struct, frozen=True, kw_only=True, tag=True):
    """Cancel the run if it is still detached, and has been for its own TTL (P22). Unchanged: it is not, or its end is
    asked for already; who asked is told by the head."""

    run_id: str
    supervisor_epoch: int


class Account(Struct, frozen=True, kw_only=True, tag=True):
    """Write down what became of a run that ended while nobody watched, once it holds nothing any more. The repeat, and
    every other run, is answered unchanged."""

    run_id: str
    supervisor_epoch: int


class PruneLog(Struct, frozen=True, kw_only=True, tag=True):
    """Give up the log of a run that ended no later than `ended_before` (UTC ms), and whose transcript is kept: from now
    on nobody is served from it, and `Store.drop_log` may remove it. Unchanged: it is not due, or was given up.

    `retention_ms` must have passed since its end by the transaction's clock, too: one clock that is wrong removes
    nothing before its time."""

    run_id: str
    supervisor_epoch: int
    ended_before: int
    retention_ms: int


class LogDropped(Struct, frozen=True, kw_only=True, tag=True):
    """Nothing is left of a log that was given up. Unchanged: that is known, it was not given up, or some is left."""

    run_id: str
    supervisor_epoch: int


class Forget(Struct, frozen=True, kw_only=True, tag=True):
    """Remove what a run said that ended no later than `ended_before`, and `retention_ms` ago (`PruneLog`); of one
    without a transcript, give up the log, which is the only copy. The record stays. Unchanged: it is not due, or has
    nothing left."""

    run_id: str
    supervisor_epoch: int
    ended_before: int
    retention_ms: int


ReapOp = Expire | Account | PruneLog | LogDropped | Forget


class BeginNotice(Struct, frozen=True, kw_only=True, tag=True):
    """Begin attempt number `attempt` to tell of a run's end. Unchanged: it is not due, or somebody has begun it."""

    run_id: str
    supervisor_epoch: int
    attempt: int


class EndNotice(Struct, frozen=True, kw_only=True, tag=True):
    """What came of an attempt: `done` have been told; `over`: nobody is left, or they are given up."""

    run_id: str
    supervisor_epoch: int
    attempt: int
    done: tuple[str, ...] = ()
    over: bool = False


NoticeOp = BeginNotice | EndNotice
