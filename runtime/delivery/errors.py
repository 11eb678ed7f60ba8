"""What can go wrong with an external delivery log, on the branches of `runtime/errors.py`.

OutlastError
├── RequestError
│   └── LogGone                         unknown, expired or evicted
│       └── NoFirstChunk                    nobody began to write it in time
├── OwnershipLost
│   ├── RunClaimLostError               (runtime/errors.py) had the claim, and lost it
│   ├── RunClaimNotAcquiredError        never had it: unknown | terminal | superseded
│   └── LogNotQuietError                had it, and another host writes all the same
└── RunDriverPipeOutsideClaimError      a bug in the caller: a write without a claim

Each pickles and has its HTTP status (`serve_app/error_table.py`), like all others.
"""

from __future__ import annotations

from enum import StrEnum

from runtime.errors import OutlastError, OwnershipLost, RequestError


class LogGone(RequestError):
    """There is no such log, or not any more. Nothing was created by asking for it."""

    code = "log_gone"

    def __init__(self, run_id: str, why: str = "is unknown or has expired") -> None:
        super().__init__(f"The log of run {run_id!r} {why}.")
        self.run_id = run_id


class NoFirstChunk(LogGone):
    """A reader waited `deadline_ms` for a log's first chunk, and nobody wrote one."""

    code = "no_first_chunk"

    def __init__(self, run_id: str, deadline_ms: int) -> None:
        super().__init__(run_id, f"had no chunk within {deadline_ms} ms: it is unknown or has expired")
        self.deadline_ms = deadline_ms


class NotAcquired(StrEnum):
    """Why a claim was refused."""

    UNKNOWN = "unknown"  # there is no such run
    TERMINAL = "terminal"  # it has ended; an interrupted run can be claimed
    SUPERSEDED = "superseded"  # another claim came between our look at the record and our own


class RunClaimNotAcquiredError(OwnershipLost):
    """The run is not ours to drive, for `reason`; nothing was written."""

    code = "claim_not_acquired"

    def __init__(self, run_id: str, reason: NotAcquired) -> None:
        super().__init__(f"Run {run_id!r} cannot be claimed: {reason.value}.")
        self.run_id = run_id
        self.reason = reason


class LogNotQuietError(OwnershipLost):
    """The log went on growing under a new claim: another host still drives. Nothing was written to it."""

    code = "log_not_quiet"

    def __init__(self, run_id: str, probes: int, quiet_ms: int) -> None:
        super().__init__(
            f"The log of run {run_id!r} grew in each of {probes} windows of {quiet_ms} ms: another host still drives."
        )
        self.run_id = run_id
        self.probes = probes
        self.quiet_ms = quiet_ms


class RunDriverPipeOutsideClaimError(OutlastError):
    """A write without a claim: before the claim was taken, after it was given back, or by a mere reader of the log."""

    code = "pipe_outside_claim"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id!r} is written to outside its claim. Write within `async with driver.claim(...)`."
        )
        self.run_id = run_id
