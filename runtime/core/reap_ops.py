"""What only the reaper asks of a record. Each rests on the supervisor's epoch (P6) and is answered `Done`."""

from __future__ import annotations

from enum import StrEnum

from runtime.core.record import Struct


class ReapStage(StrEnum):
    """What the reaper does next about a run."""

    EXPIRE = "expire"
    ACCOUNT = "account"
    PRUNE = "prune"


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
