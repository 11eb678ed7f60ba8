"""Every error that a caller of Outlast can meet, branched by what the handler does next.

    OutlastError
    ├── RequestError            the caller may change the request and try again
    │   ├── InputInvalid            400, `code` says which rule
    │   ├── OriginRefused           403
    │   ├── RunNotFound             404
    │   ├── ThreadNotFound          404
    │   ├── RunExists               409 run_exists: this run id was used with another body
    │   ├── ThreadActive            409 thread_active: names the run that holds the thread
    │   ├── RunEnded                409 run_ended
    │   ├── OffsetGone              410 offset_gone
    │   ├── BodyTooLarge            413
    │   ├── MediaTypeUnsupported    415
    │   └── TooMany                 429 too_many_runs | too_many_viewers
    ├── OwnershipLost           you are no longer the owner: stop, and touch nothing
    │   ├── RunClaimLostError       a newer epoch drives this run (I1)
    │   ├── ShardSuperseded         a newer incarnation serves this shard (P11)
    │   └── SupervisorSuperseded    a newer supervisor decides (P6)
    ├── LogClosedError          the log has its terminal chunk; nothing follows it (I5)
    ├── SequenceConflictError   a bug: two different batches for one place of one log
    ├── StoreError              the store failed: retry, or read back before answering
    │   ├── StoreUnavailable        it may come back
    │   ├── StoreFull               no space left; nothing was written
    │   └── StoreRefused            wrong deployment, schema or shard count: a person must act
    ├── AgentError              the agent or its sandbox failed: end the run with `code`
    │   ├── LaunchFailed            launch_failed
    │   ├── SandboxLost             sandbox_lost: proven gone (P17)
    │   ├── SandboxUnreachable      not an answer; wait, then sandbox_unreachable
    │   │   ├── WorkspaceHeld       another run's sandbox still has the workspace; wait, then launch_failed
    │   │   └── NoRoom              its host's disk is full; wait, or launch_failed where nothing was launched
    │   ├── JournalUnavailable      journal_unavailable
    │   └── JournalReplayDivergedError          journal_diverged
    │       └── JournalReplayThreadIdMismatchError
    └── InstanceError           the command cannot reach or start its instance
        ├── InstanceNotFound
        ├── PortInUse
        ├── RayUnreachable
        └── DataDirRefused

External delivery logs add theirs in `delivery/errors.py`, access over HTTP in `serve_app/tokens.py`, slow bodies in
`serve_app/body.py`, on the same branches.

Facts are fields, so that a handler never parses a message. Each class pickles (`__reduce__` on the root): Ray shows
an error that does not unpickle as `UnserializableException`, and the fact would be lost. Which HTTP status a class
has is decided in one table, `serve_app/error_table.py`; whether to retry follows from the branch.
"""

from __future__ import annotations

from typing import Any


def _rebuild(cls: type[OutlastError], facts: dict[str, Any]) -> OutlastError:
    error = cls.__new__(cls)
    Exception.__init__(error, facts.get("message", ""))
    error.__dict__.update(facts)
    return error


class OutlastError(Exception):
    """Root. `message` says what to do; `code` is stable and goes on the wire."""

    code: str = "internal"
    message: str

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))

    def __str__(self) -> str:
        return self.message


# --- the caller may change the request -------------------------------------------------------------------------


class RequestError(OutlastError):
    """The request cannot be served as it is; nothing was created or changed."""


class InputInvalid(RequestError):
    """A field is missing, malformed or out of range; `code` names the rule, `field` the place if there is one."""

    code = "input_invalid"

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class OriginRefused(RequestError):
    """`Origin` or `Host` is not allowed (design 9)."""

    code = "origin_refused"


class RunNotFound(RequestError):
    """No run of this id exists for this owner."""

    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"There is no run {run_id!r}. `outlast ps` lists the runs that exist.")
        self.run_id = run_id


class ThreadNotFound(RequestError):
    """No run was ever started in this thread by this owner."""

    code = "thread_not_found"

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"There is no thread {thread_id!r}.")
        self.thread_id = thread_id


class RunExists(RequestError):
    """The run id is taken by a run with another body (I9)."""

    code = "run_exists"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id!r} exists with another body. Use a new run id, or repeat the first body to join it."
        )
        self.run_id = run_id


class ThreadActive(RequestError):
    """The thread has an active run, named in `active_run_id`, and `onBusy` is `reject`."""

    code = "thread_active"

    def __init__(self, thread_id: str, active_run_id: str) -> None:
        super().__init__(
            f"Thread {thread_id!r} is busy with run {active_run_id!r}. Wait for it, cancel it, or send "
            "forwardedProps.onBusy = 'enqueue' or 'cancel-previous'."
        )
        self.thread_id = thread_id
        self.active_run_id = active_run_id


class RunEnded(RequestError):
    """The run is over; what was asked for needs one that is not."""

    code = "run_ended"

    def __init__(self, run_id: str, status: str) -> None:
        ended = f"has ended ({status})" if status != "running" else "waits for its thread and has no driver yet"
        super().__init__(f"Run {run_id!r} {ended}.")
        self.run_id = run_id
        self.status = status


class OffsetGone(RequestError):
    """The offset is past the end of the log, or of another generation (P10)."""

    code = "offset_gone"

    def __init__(self, offset: str, tail: str) -> None:
        super().__init__(f"Offset {offset} is not in this log, which ends at {tail}. Read again from -1.")
        self.offset = offset
        self.tail = tail


class BodyTooLarge(RequestError):
    """The request body is over `OUTLAST_MAX_BODY_BYTES`."""

    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is larger than {limit} bytes. Send less, or raise OUTLAST_MAX_BODY_BYTES.")
        self.limit = limit


class MediaTypeUnsupported(RequestError):
    """The body is not declared as JSON."""

    code = "media_type_unsupported"


class TooMany(RequestError):
    """A bound on how much may exist at once is reached; try again after `retry_after_s`."""

    code = "too_many_runs"

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: int = 5) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


# --- you are no longer the owner -------------------------------------------------------------------------------


class OwnershipLost(OutlastError):
    """Someone newer has what you held. Latch shut, start no side effect, end."""

    code = "superseded"


class RunClaimLostError(OwnershipLost):
    """`held_epoch` was superseded by `current_epoch` (None: its lock was lost, nobody newer is known); nothing was
    written (I1)."""

    code = "claim_lost"

    def __init__(self, run_id: str, held_epoch: int, current_epoch: int | None) -> None:
        cause = f"Run {run_id!r} is driven by epoch {current_epoch}"
        if current_epoch is None:
            cause = f"The lock on driving run {run_id!r} was lost"
        super().__init__(f"{cause}; epoch {held_epoch} writes nothing more.")
        self.run_id = run_id
        self.held_epoch = held_epoch
        self.current_epoch = current_epoch


class ShardSuperseded(OwnershipLost):
    """This incarnation of the shard is not the newest (P11)."""

    code = "shard_superseded"

    def __init__(self, shard: int, held_epoch: int, current_epoch: int) -> None:
        super().__init__(f"log:{shard} is served by epoch {current_epoch}; epoch {held_epoch} stops.")
        self.shard = shard
        self.held_epoch = held_epoch
        self.current_epoch = current_epoch


class SupervisorSuperseded(OwnershipLost):
    """This supervisor is not the newest; its decision changed nothing (P6)."""

    code = "supervisor_superseded"

    def __init__(self, held_epoch: int, current_epoch: int) -> None:
        super().__init__(f"Supervisor epoch {current_epoch} decides; epoch {held_epoch} stops.")
        self.held_epoch = held_epoch
        self.current_epoch = current_epoch


class LogClosedError(OutlastError):
    """The log ended before this chunk came; it was not stored (I5)."""

    code = "log_closed"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"The log of run {run_id!r} is closed.")
        self.run_id = run_id


class SequenceConflictError(OutlastError):
    """A batch for `seq` differs from what is stored there, or leaves a gap before it: a bug in the caller (P7)."""

    code = "sequence_conflict"

    def __init__(self, run_id: str, seq: int, next_seq: int) -> None:
        super().__init__(f"Run {run_id!r}: a batch at {seq} does not fit a log of {next_seq} chunks.")
        self.run_id = run_id
        self.seq = seq
        self.next_seq = next_seq


# --- the store -------------------------------------------------------------------------------------------------


class StoreError(OutlastError):
    """The durable store did not do what was asked."""

    code = "store_unavailable"


class StoreUnavailable(StoreError):
    """No answer, or an ambiguous one; read back before you tell anybody anything (P7)."""


class StoreFull(StoreError):
    """No space left on the store's device. Nothing of the transaction was kept."""

    code = "store_full"


class StoreRefused(StoreError):
    """The store is of another deployment, a newer schema or another shard count; a person must act (P12)."""

    code = "store_refused"


# --- the agent -------------------------------------------------------------------------------------------------


class AgentError(OutlastError):
    """The run cannot go on; `code` is its terminal code (design 4)."""

    code = "agent_lost"


class LaunchFailed(AgentError):
    """The agent could not be started; `message` says why and what to do."""

    code = "launch_failed"


class SandboxLost(AgentError):
    """The sandbox's own host says that it does not exist (P17)."""

    code = "sandbox_lost"


class SandboxUnreachable(AgentError):
    """The sandbox's host does not answer. That is not a proof of anything (P17)."""

    code = "sandbox_unreachable"


class WorkspaceHeld(SandboxUnreachable):
    """Another run's sandbox has the thread's workspace and is not proven to be gone; wait as for a host (P18)."""

    code = "launch_failed"


class NoRoom(SandboxUnreachable):
    """The disk of the sandbox's host is full. What was launched there goes on; wait as for a host."""


class JournalUnavailable(AgentError):
    """The journal exists in name only: it cannot be read."""

    code = "journal_unavailable"


class JournalReplayDivergedError(AgentError):
    """Replayed chunk `index` is not what the log holds there. Nothing past it was delivered (P24)."""

    code = "journal_diverged"

    def __init__(self, index: int, stored: str, replayed: str) -> None:
        super().__init__(
            f"The journal's replay differs from the stored log at chunk {index}: stored {stored}, replayed {replayed}."
        )
        self.index = index
        self.stored = stored
        self.replayed = replayed


class JournalReplayThreadIdMismatchError(JournalReplayDivergedError):
    """The two differ in their thread id alone: the replay was given another thread."""

    def __init__(self, index: int, stored: str, replayed: str, stored_thread_id: str, replayed_thread_id: str) -> None:
        super().__init__(index, stored, replayed)
        self.stored_thread_id = stored_thread_id
        self.replayed_thread_id = replayed_thread_id


# --- the instance ----------------------------------------------------------------------------------------------


class InstanceError(OutlastError):
    """The instance that a command needs is not there or cannot start."""

    code = "no_instance"


class InstanceNotFound(InstanceError):
    """No running instance is described in the data directory and no --url was given."""


class PortInUse(InstanceError):
    """Another process listens on the port."""

    code = "port_in_use"


class RayUnreachable(InstanceError):
    """No Ray cluster answers at `OUTLAST_RAY_ADDRESS`, or the cluster lost a part that we need."""

    code = "ray_unreachable"


class DataDirRefused(InstanceError):
    """The data directory cannot be used: not writable, in use by a running instance, or of something else."""

    code = "data_dir_refused"


def leaves(root: type[OutlastError] = OutlastError) -> list[type[OutlastError]]:
    """Return every class of the tree below `root`, itself included, parents before children."""
    found = [root]
    for child in root.__subclasses__():
        found.extend(leaves(child))
    return found
