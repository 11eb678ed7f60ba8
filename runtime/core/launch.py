"""Launch and exit records: the two small files that lie beside a journal (P15, P16).

    <journal>           the agent's stdout, byte for byte; written by the recorder alone
    <journal>.launch    made once by link(2), locked (flock) by the recorder while it lives
    <journal>.exit      made before the agent starts, overwritten in place at its end
    <journal>.err       the agent's stderr

The recorder is a program without our packages on its path, so it writes these formats itself; the golden files in
`tests/golden/` hold both sides to one form.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from runtime.core.record import Struct


class ExitKind(StrEnum):
    """Who says how the agent ended."""

    EXITED = "exited"  # the recorder saw the exit code or signal
    LOST = "lost"  # the recorder is gone and recorded nothing
    LOG_LIMIT = "log_limit"  # the recorder ended the agent at MAX_LOG_BYTES
    KILLED = "killed"  # the recorder was told to end the agent
    NO_EXIT = "no_exit"  # the result came, the exit did not within the grace; the driver ended the agent
    SPAWN_FAILED = "spawn_failed"  # the agent's program could not be started; `message` says why


class AgentExit(Struct, frozen=True, kw_only=True):
    """How the agent ended. Nothing after `journal_length` bytes belongs to the run."""

    kind: ExitKind
    journal_length: int
    code: int | None = None
    signal: int | None = None
    message: str | None = None


class LaunchRecord(Struct, frozen=True, kw_only=True):
    """Who recorded: the recorder's process identity (P5). `pid_started_at` in clock ticks since boot."""

    boot_id: str
    pid: int
    pid_started_at: int
    version: int = 1


# Fixed size, so that the record can be written over itself on a full disk: JSON, padded with spaces, then a newline.
EXIT_RECORD_BYTES = 512
RUNNING = b'{"state":"running"}'


def encode_exit(exit: AgentExit) -> bytes:
    """Return the exit file's bytes."""
    text = msgspec.json.encode(exit)
    return text.ljust(EXIT_RECORD_BYTES - 1) + b"\n"


def decode_exit(data: bytes) -> AgentExit | None:
    """Return the exit, or None for `running` and for a record that is not whole yet."""
    text = data.strip()
    if not text or text == RUNNING:
        return None
    try:
        return msgspec.json.decode(text, type=AgentExit)
    except msgspec.DecodeError:
        return None


def decode_launch(data: bytes) -> LaunchRecord | None:
    """Return the launch record, or None if it is not whole."""
    try:
        return msgspec.json.decode(data.strip(), type=LaunchRecord)
    except msgspec.DecodeError:
        return None
