"""Decide how a run ended, for every harness: the exit record and the agent's own last word must agree.

    what the agent said     exit                                          the run
    ----------------------  --------------------------------------------  ------------------------------------------
    anything                lost, log_limit, killed, spawn_failed         failed: agent_lost, log_limit, agent_signal,
                                                                          launch_failed
    success                 code that agrees (0)                          as it said
    success                 another code, a signal                        failed: agent_exit, agent_signal
    success                 no_exit (result, then it hung)                as it said
    failure                 any code, a signal                            failed with its own code
    failure                 no_exit                                       failed: agent_no_exit
    nothing                 code 0                                        failed: agent_no_result
    nothing                 another code, a signal                        failed: agent_exit, agent_signal
    nothing                 no_exit                                       failed: agent_no_exit

Neither alone is believed: a real agent was recorded that says `success` and exits 1, and one that exits 0 in the
middle of its work says nothing. Codes are those of design 4.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from runtime.core import chunk
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.record import RunError, Status
from runtime.ports import Ending

# Of stderr, into a message that people read and every client gets; the whole tail is stored beside the record (P9).
STDERR_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Said:
    """The agent's own last word: the terminal event that it makes, and the status.

    `printed` is the word as it came and `source` who said it, kept as a RAW chunk if the exit overrules it (nothing an
    agent prints is lost, design 6). `agreeing` are the exit codes that do not contradict a success."""

    event: dict[str, Any]
    status: Status
    printed: Any
    source: str
    error: RunError | None = None
    usage: dict[str, Any] | None = None
    agreeing: frozenset[int] = frozenset({0})


def conclude(run_id: str, said: Said | None, exit: AgentExit, stderr: bytes, chunks: tuple[bytes, ...] = ()) -> Ending:
    """Return the ending by the table above. `chunks` go before the terminal chunk, which is always made here."""
    error = _judge(said, exit, stderr)
    usage = said.usage if said is not None else None
    if said is not None and said.error == error:
        return Ending(status=said.status, chunks=chunks, terminal=chunk.encode(said.event), error=error, usage=usage)
    assert error is not None  # without a word of the agent there is always one
    if said is not None:
        chunks = (*chunks, chunk.raw_event(said.printed, said.source))
    terminal = chunk.run_error(run_id, error.message, error.code)
    return Ending(status=Status.FAILED, chunks=chunks, terminal=terminal, error=error, usage=usage)


def fault(exit: AgentExit, stderr: bytes) -> RunError | None:
    """Return what the exit alone says against the run; None for code 0, and where no exit came at all."""
    match exit.kind:
        case ExitKind.EXITED if exit.signal is not None:
            return _error("agent_signal", f"The agent was ended by signal {_signal_name(exit.signal)}.", stderr)
        case ExitKind.EXITED if exit.code is not None:
            if exit.code == 0:
                return None
            return _error("agent_exit", f"The agent exited with code {exit.code}.", stderr)
        case ExitKind.KILLED:
            return _error("agent_signal", "The agent was ended before its work was done.", stderr)
        case ExitKind.LOG_LIMIT:
            text = "The agent was ended because its output reached the bound of a run (OUTLAST_MAX_LOG_BYTES)."
            return _error("log_limit", text, stderr)
        case ExitKind.SPAWN_FAILED:
            why = exit.message or "no reason was recorded"
            return _error("launch_failed", f"The agent's program could not be started: {why}", stderr)
        case ExitKind.NO_EXIT:
            return None
        case _:
            return _error("agent_lost", "The agent's recorder is gone, so how the agent ended is not known.", stderr)


def _judge(said: Said | None, exit: AgentExit, stderr: bytes) -> RunError | None:
    """Return the error that the table gives, or None where what was said stands as a success."""
    found = fault(exit, stderr)
    hung = exit.kind is ExitKind.NO_EXIT
    if found is not None and exit.kind is not ExitKind.EXITED:
        return found
    if said is None:
        if hung:
            return _error("agent_no_exit", "The agent had to be ended and gave no result.", stderr)
        return found or _error("agent_no_result", "The agent exited with code 0 but gave no result.", stderr)
    if said.error is not None:
        if not hung:
            return said.error
        message = f"{said.error.message} (code {said.error.code}; then the agent did not exit and was ended)"
        return RunError(message=message, code="agent_no_exit")
    if found is None or (exit.signal is None and exit.code in said.agreeing):
        return None
    return found


def _error(code: str, sentence: str, stderr: bytes) -> RunError:
    tail = stderr_end(stderr)
    return RunError(message=f"{sentence}\n{tail}" if tail else sentence, code=code)


def stderr_end(stderr: bytes) -> str:
    """Return the end of stderr as text: whole lines where it had to be cut, unless one line fills it."""
    cut = stderr[-STDERR_BYTES:]
    if len(stderr) > STDERR_BYTES:
        _, newline, rest = cut.partition(b"\n")
        cut = rest if newline and rest.strip() else cut
    return cut.decode("utf-8", "replace").strip()


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
