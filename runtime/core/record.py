"""The record of a run: its words, its transitions, and what is stored under which name (design 4).

Three structs, by who may change them:

    RunSpec     fixed at creation: what it takes to drive the run from anywhere
    Head        everything that changes; one row, rewritten by each operation, kept small
    Claim       one entry of a head's history: who drove when

`Status` moves only along `TRANSITIONS`; a move that is not in the table does not exist. A record on the wire is the
head and the spec merged (`to_wire`), camelCase, every field present.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from runtime.core.ids import RunId, ThreadId


class Status(StrEnum):
    """Where a run stands. `completed`, `failed`, `aborted` are terminal."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def terminal(self) -> bool:
        """True if nothing about the run can change any more."""
        return self in (Status.COMPLETED, Status.FAILED, Status.ABORTED)


# from -> to. `interrupted` ends only by the POST that resumes it (P23), a cancel, or its expiry (P22).
TRANSITIONS: frozenset[tuple[Status, Status]] = frozenset(
    {
        (Status.RUNNING, Status.COMPLETED),
        (Status.RUNNING, Status.FAILED),
        (Status.RUNNING, Status.ABORTED),
        (Status.RUNNING, Status.INTERRUPTED),
        (Status.INTERRUPTED, Status.COMPLETED),
        (Status.INTERRUPTED, Status.ABORTED),
    }
)


class ClaimReason(StrEnum):
    """Why a driver was made (design 4)."""

    START = "start"
    DRIVER_LOST = "driver_lost"
    LEASE_EXPIRED = "lease_expired"
    ATTACH = "attach"
    OPERATOR = "operator"
    DRAIN = "drain"
    RESTART = "restart"
    CANCEL = "cancel"
    REAP = "reap"


class ClaimEnd(StrEnum):
    """How a claim ended. Of a superseded one, the next claim's reason says why."""

    FINISHED = "finished"  # its driver stored the run's ending, or the run's wait for input
    HANDED_OVER = "handed_over"  # asked to, its driver stored what it had, and went
    SUPERSEDED = "superseded"  # the next driver claimed


class CancelReason(StrEnum):
    """Who wanted the run stopped; the first one stored wins, and becomes the terminal code where it is one (P9)."""

    USER = "user"
    DISCONNECT = "disconnect"
    DETACHED_EXPIRED = "detached_expired"
    OPERATOR = "operator"


class Reaped(StrEnum):
    """What became of a run that ended while nobody watched it (P22)."""

    FINALIZED = "finalized"  # it came to an end of its own
    EXPIRED = "expired"  # nobody came back within its TTL


class Kept(StrEnum):
    """How much is left of a run that has ended: less and less, as retentions pass. The record stays."""

    LOG = "log"  # all of it
    DROPPING = "dropping"  # its log is nobody's to read any more, and is being removed
    TRANSCRIPT = "transcript"  # what it said (`core/transcript.py`)
    RECORD = "record"  # that it was


class OnDisconnect(StrEnum):
    """What the last viewer's leaving means, chosen when the run starts (I6)."""

    DETACH = "detach"
    CANCEL = "cancel"


class Launch(StrEnum):
    """How far the sandbox of a run is known to have come (P15). Only forward."""

    NONE = "none"
    KEYED = "keyed"  # sandboxKey is recorded; a sandbox may or may not exist
    INTENDED = "intended"  # a launch may have happened; the launch file in the sandbox says whether


class Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of everything stored or sent: immutable, camelCase outside."""


class RunError(Struct, frozen=True, kw_only=True):
    """Why a run failed: `message` for people, `code` from design 4 or the agent's own."""

    message: str
    code: str


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds that hold for one run, fixed at creation. Seconds; 0 means none."""

    run_limit_s: int = 0
    idle_limit_s: int = 0
    detached_ttl_s: int | None = None  # None: never expires while the agent lives (detachedTtlS 0)
    max_log_bytes: int = 1 << 30
    max_line_bytes: int = 64 << 20


class RunSpec(Struct, frozen=True, kw_only=True):
    """What a run is, fixed by the transaction that creates it. `input` is the AG-UI RunAgentInput as received,
    without `forwardedProps.env` values (never stored)."""

    harness: str
    translator_version: int
    provider: str
    input: dict[str, Any]
    on_disconnect: OnDisconnect = OnDisconnect.DETACH
    limits: Limits = Limits()
    keep_alive_s: int = 0  # how long its sandbox is kept after it has completed; 0: it is destroyed as always (P19)


class Claimant(Struct, frozen=True, kw_only=True):
    """One process that may drive a run. `claimant` is random, made once per process (P1); (bootId, pid,
    pidStartedAt) names the process for ever (P5). `pidStartedAt` is in clock ticks since boot."""

    claimant: str
    actor_id: str | None = None
    node_id: str | None = None
    boot_id: str | None = None
    pid: int | None = None
    pid_started_at: int | None = None


class Claim(Struct, frozen=True, kw_only=True):
    """One epoch of a run: who held it, why, and what came of it. Times are UTC ms."""

    epoch: int
    claimant: Claimant
    reason: ClaimReason
    claimed_at: int
    first_append_at: int | None = None
    last_append_at: int | None = None
    ended_at: int | None = None
    end: ClaimEnd | None = None
    chunks: int = 0

    def to_wire(self) -> dict[str, Any]:
        """Return the claim as design 4 lists it: the claimant's fields beside its own."""
        own: dict[str, Any] = msgspec.to_builtins(self)
        return {**msgspec.to_builtins(self.claimant), **own, "claimant": self.claimant.claimant}


def pause_before_ms(claims: tuple[Claim, ...], place: int) -> int | None:
    """Return how long nothing was stored around the takeover by `claims[place]`: from the last chunk of the drivers
    before it, or the first claim if they stored none, to its own first. None: no takeover, or no chunk since."""
    first = claims[place].first_append_at
    if place == 0 or first is None:
        return None
    stored = [claim.last_append_at for claim in claims[:place] if claim.last_append_at is not None]
    if not stored and any(claim.chunks for claim in claims[:place]):
        return None  # written by a version that did not keep the time
    return max(0, first - max(stored, default=claims[0].claimed_at))


class Refused(Struct, frozen=True, kw_only=True):
    """What a superseded epoch tried while `current_epoch` had the run, `count` times: `tried` is append, finish, note,
    claim or renewal. It changed nothing, and only the memory of a shard tells of it."""

    epoch: int
    current_epoch: int
    tried: str
    count: int
    first_at: int
    last_at: int


class FinishMark(Struct, frozen=True, kw_only=True):
    """What the finish was, so that its repeat gets the first answer (P7). `digest` is hex SHA-256."""

    epoch: int
    seq: int
    digest: str


class Notice(Struct, frozen=True, kw_only=True):
    """That the end of a run is still to be told (`core/noticing.py`). Counts attempts; `done` names who knows."""

    attempts: int = 0
    due_at: int | None = None  # of the next attempt, UTC ms; None: at once
    done: tuple[str, ...] = ()


# Of all that is stored of a run: Head, RunSpec, Claim and what they hold. Raise it with each new field or value that
# decides something: older code would not see it, and do what it forbids. A backup says which it has, and a later one is
# refused (P12); a store is refused by its schema version, which is raised with it. Each has a golden head of its own.
RECORD_FORMAT: Final = 9


class Head(Struct, frozen=True, kw_only=True):
    """The changing part of a run. `next_seq` is the number of stored chunks; `version` counts writes of this row."""

    run_id: str
    thread_id: str
    owner: str
    digest: str  # of the request that created it: a repeat must have the same (I9)
    created_at: int
    status: Status = Status.RUNNING
    queued: bool = False
    queued_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    error: RunError | None = None
    exit_code: int | None = None
    signal: int | None = None
    usage: dict[str, Any] | None = None
    driver_epoch: int = 0
    next_seq: int = 0
    log_bytes: int = 0
    closed: bool = False
    finish: FinishMark | None = None
    cancel_requested: bool = False
    cancel_reason: CancelReason | None = None
    handover_epoch: int = 0  # the epoch that is asked to hand over; 0: none
    detached_since: int | None = None
    detached_ttl_s: int | None = None  # of the spec's limits; None: excluded from expiry (P22)
    reaped: Reaped | None = None
    sandbox_key: str | None = None
    launch: Launch = Launch.NONE
    heard_at: int | None = None  # when a chunk of its agent was stored last, or its launch was intended, or `heard_to`
    destroy_pending: bool = False
    sandbox_kept_until: int | None = None  # the pending destroy waits for this UTC ms: the run asked for it (P19)
    attempts_without_progress: int = 0  # drivers assigned since a claim made progress (P19)
    claims_without_progress: int = 0  # of them those that came to claim, and stored nothing
    last_assigned_at: int | None = None
    last_assignment: str = ""  # names the decision, so that its repeat gets the first answer (I9)
    claims: tuple[Claim, ...] = ()
    version: int = 0
    generation: int = 0  # of its offsets (P10)
    transcript: bool = False  # one is stored with its ending; of what earlier versions stored it is not known
    kept: Kept = Kept.LOG
    notice: Notice | None = None  # of its end, as long as somebody is to be told
    heard_to: int = 0  # the place in its journal up to which bytes that made no chunk are told of in `heard_at`

    @property
    def log_gone(self) -> bool:
        """True if nobody is served from the log any more: its retention is over."""
        return self.kept is not Kept.LOG

    @property
    def to_destroy(self) -> bool:
        """True if a supervisor is to see to its sandbox's end; an interrupted run has given it back, too (P19, P23)."""
        return self.closed and self.destroy_pending

    @property
    def to_give_back(self) -> bool:
        """True if its sandbox should be gone by now, and is not known to be: a kept one need not."""
        return self.destroy_pending and self.sandbox_kept_until is None

    @property
    def active(self) -> bool:
        """True if this run holds its thread (P12): not terminal and not queued."""
        return not self.status.terminal and not self.queued

    @property
    def needs_driver(self) -> bool:
        """True if I7 demands a driver: running and not waiting in the queue."""
        return self.status is Status.RUNNING and not self.queued

    def with_(self, **changes: Any) -> Head:
        """Return a copy with `changes`, as the next version of the row."""
        return msgspec.structs.replace(self, version=self.version + 1, **changes)


def to_wire(head: Head, spec: RunSpec, *, claims: bool, refusals: Sequence[Refused] = ()) -> dict[str, Any]:
    """Return the record of design 4 as JSON-ready values; `claims` adds the history in epoch order, with `refusals`.

    Never holds internals of the log's bookkeeping (`digest` is there as `requestDigest`)."""
    record: dict[str, Any] = {
        "runId": head.run_id,
        "threadId": head.thread_id,
        "status": head.status.value,
        "createdAt": head.created_at,
        "startedAt": head.started_at,
        "finishedAt": head.finished_at,
        "error": msgspec.to_builtins(head.error),
        "exitCode": head.exit_code,
        "signal": head.signal,
        "usage": head.usage,
        "driverEpoch": head.driver_epoch,
        "queued": head.queued,
        "cancelRequested": head.cancel_requested,
        "cancelReason": head.cancel_reason.value if head.cancel_reason else None,
        "detachedSince": head.detached_since,
        "reaped": head.reaped.value if head.reaped else None,
        "sandboxKey": head.sandbox_key,
        "sandboxKeptUntil": head.sandbox_kept_until,
        "harness": spec.harness,
        "translatorVersion": spec.translator_version,
        "provider": spec.provider,
        "input": spec.input,
        "onDisconnect": spec.on_disconnect.value,
        "limits": msgspec.to_builtins(spec.limits),
        "launch": head.launch.value,
        "requestDigest": head.digest,
        "owner": head.owner,
        "chunks": head.next_seq,
        "closed": head.closed,
        "kept": _told(head).value,
        "attemptsWithoutProgress": head.attempts_without_progress,
    }
    if claims:
        record["claims"] = [
            {**claim.to_wire(), "pauseMs": pause_before_ms(head.claims, place)}
            for place, claim in enumerate(head.claims)
        ]
        record["refusals"] = msgspec.to_builtins(refusals)
    return record


def _told(head: Head) -> Kept:
    """Return what of a run can be asked for: that a log is not removed to its end yet is nobody's matter."""
    if head.kept is not Kept.DROPPING:
        return head.kept
    return Kept.TRANSCRIPT if head.transcript else Kept.RECORD


__all__ = [
    "RECORD_FORMAT",
    "TRANSITIONS",
    "CancelReason",
    "Claim",
    "ClaimEnd",
    "ClaimReason",
    "Claimant",
    "FinishMark",
    "Head",
    "Kept",
    "Launch",
    "Limits",
    "Notice",
    "OnDisconnect",
    "Reaped",
    "Refused",
    "RunError",
    "RunId",
    "RunSpec",
    "Status",
    "Struct",
    "ThreadId",
    "pause_before_ms",
    "to_wire",
]
