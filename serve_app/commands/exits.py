"""What the exit code of `outlast` says (design 8), decided in one place."""

from __future__ import annotations

from enum import IntEnum

from runtime.core.record import Status
from runtime.errors import InputInvalid, InstanceError, OutlastError, RunNotFound, ThreadNotFound
from serve_app.trials import Refusal


class Exit(IntEnum):
    """The exit codes. `doctor` ends with FAILED if a check failed."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    ABORTED = 3
    NOT_FOUND = 4
    NO_INSTANCE = 5
    REFUSED = 6
    BUG = 70
    DETACHED = 130  # Ctrl-C: 128 and the number of SIGINT, as shells have it
    UNREAD = 141  # nobody reads stdout any more: 128 and the number of SIGPIPE


OF_STATUS: dict[str, Exit] = {
    Status.COMPLETED: Exit.DONE,
    Status.INTERRUPTED: Exit.DONE,
    Status.FAILED: Exit.FAILED,
    Status.ABORTED: Exit.ABORTED,
    Status.RUNNING: Exit.DONE,  # `tail --no-follow` of one that goes on
}

_OF_HTTP = {400: Exit.USAGE, 404: Exit.NOT_FOUND}


def of_error(error: OutlastError | Refusal) -> Exit:
    """Return the exit code that `error` ends a command with."""
    match error:
        case Refusal():
            return _OF_HTTP.get(error.status, Exit.REFUSED)
        case InputInvalid():
            return Exit.USAGE
        case RunNotFound() | ThreadNotFound():
            return Exit.NOT_FOUND
        case InstanceError():
            return Exit.NO_INSTANCE
        case _:
            return Exit.REFUSED
