"""How a run ends: one finish that holds everything (P9, I5), then the sandbox goes (P4, P19).

The engine makes what the log needs to be well-formed; the translator's `Ending` says what the run was:

    chunks of the exit, closers of whatever the *log* has open, RUN_STARTED if there never was one, what the engine
    tells of the whole run, the terminal
"""

from __future__ import annotations

from copy import deepcopy

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.ids import shown_run_id
from runtime.core.launch import AgentExit
from runtime.core.open_items import OpenItems
from runtime.core.ops import Finish
from runtime.core.record import CancelReason, Head, RunError, Status
from runtime.errors import AgentError
from runtime.ports import Ending

STDERR_BYTES = 64 << 10  # P9

# What a cancel's reason becomes as the terminal code (design 4).
CANCEL_CODES = {
    CancelReason.USER: "aborted",
    CancelReason.OPERATOR: "aborted",
    CancelReason.DISCONNECT: "aborted",
    CancelReason.DETACHED_EXPIRED: "detached_expired",
}
CANCEL_MESSAGES = {
    CancelReason.USER: "The run was cancelled.",
    CancelReason.OPERATOR: "The run was cancelled by an operator.",
    CancelReason.DISCONNECT: "The run was cancelled because its last viewer left.",
    CancelReason.DETACHED_EXPIRED: "The run was ended because nobody came back for it.",
}


def failed(code: str, message: str) -> Ending:
    """Return the ending of a run that could not go on."""
    return Ending(status=Status.FAILED, error=RunError(message=message, code=code))


def failed_by(error: AgentError) -> Ending:
    """Return the ending that an agent's or sandbox's error means."""
    return failed(error.code, error.message)


def aborted(reason: CancelReason | None, code: str | None = None) -> Ending:
    """Return the ending of a cancelled run; `code` where the sandbox could not be reached (P21)."""
    reason = reason or CancelReason.USER
    error = RunError(message=CANCEL_MESSAGES[reason], code=code or CANCEL_CODES[reason])
    return Ending(status=Status.ABORTED, error=error)


def build_finish(  # noqa: PLR0913 - all that an end holds
    head: Head,
    epoch: int,
    seq: int,
    ending: Ending,
    open_items: OpenItems,
    *,
    exit: AgentExit | None = None,
    stderr: bytes = b"",
    destroy_pending: bool = True,
    last: bytes | None = None,
    keep_s: int = 0,
) -> Finish:
    """Return the finish of `ending` under `epoch`, for a log of `seq` chunks that has `open_items` open. `last` is a
    chunk to tell right before the terminal, unless the run never started (P26)."""
    chunks = list(ending.chunks)
    open_items = deepcopy(open_items)  # a refused finish changes no log
    open_items.feed(chunks)
    chunks += open_items.closers()
    terminal = ending.terminal or _terminal(head, ending)
    run_open = open_items.run_open
    if chunk.chunk_type(terminal) == chunk.RUN_FINISHED and not run_open:
        chunks.append(chunk.run_started(shown_run_id(head.run_id), head.thread_id))
        run_open = True
    if last is not None and run_open:
        chunks.append(last)
    chunks.append(terminal)
    if head.closed:  # an interrupted run's log has its terminal already; only its status can still move (P23)
        chunks = []
    data = b"\n".join(chunks)
    batch = Batch(run_id=head.run_id, seq=seq, count=len(chunks), epoch=epoch, band=Band.LIVE, data=data)
    return Finish(
        batch=batch,
        status=ending.status,
        error=ending.error,
        exit_code=exit.code if exit else None,
        signal=exit.signal if exit else None,
        usage=ending.usage,
        stderr=stderr[-STDERR_BYTES:],
        destroy_pending=destroy_pending,
        keep_s=keep_s,
    )


def _terminal(head: Head, ending: Ending) -> bytes:
    if ending.status is Status.COMPLETED:
        return chunk.run_finished(shown_run_id(head.run_id), head.thread_id)
    error = ending.error or RunError(message="The run failed.", code="agent_lost")
    return chunk.run_error(shown_run_id(head.run_id), error.message, error.code)
