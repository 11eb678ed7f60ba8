"""Recorder and `runtime/core/launch.py` write and read one form: that of the golden files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from runtime import process
from runtime.core.launch import EXIT_RECORD_BYTES, AgentExit, ExitKind, decode_exit, decode_launch, encode_exit
from runtime.sandboxes import recorder

GOLDEN = Path(__file__).parents[1] / "golden"
EXITS = (
    AgentExit(kind=ExitKind.EXITED, journal_length=12, code=0),
    AgentExit(kind=ExitKind.KILLED, journal_length=0, signal=9),
    AgentExit(kind=ExitKind.SPAWN_FAILED, journal_length=0, message="/nowhere/é: No such file or directory"),
)


def test_both_sides_write_the_golden_exit_records() -> None:
    golden = (GOLDEN / "exit_record.json").read_bytes()
    assert len(golden) == EXIT_RECORD_BYTES * len(EXITS)
    assert b"".join(encode_exit(exit) for exit in EXITS) == golden
    written = (recorder.exit_record(str(e.kind), e.journal_length, e.code, e.signal, e.message) for e in EXITS)
    assert b"".join(written) == golden


def test_golden_exit_records_are_read() -> None:
    golden = (GOLDEN / "exit_record.json").read_bytes()
    for number, exit in enumerate(EXITS):
        assert decode_exit(golden[number * EXIT_RECORD_BYTES :][:EXIT_RECORD_BYTES]) == exit


def test_the_launch_record_has_the_golden_form() -> None:
    golden = (GOLDEN / "launch_record.json").read_bytes()
    read = decode_launch(golden)
    assert read is not None
    assert (read.pid, read.pid_started_at, read.version) == (4242, 152893, 1)
    assert msgspec.json.encode(read) + b"\n" == golden
    written = recorder.launch_record()
    own = decode_launch(written)
    assert own is not None
    assert msgspec.json.encode(own) + b"\n" == written
    assert (own.boot_id, own.pid) == (process.boot_id(), os.getpid())
    assert own.pid_started_at == process.started_at(os.getpid())


@pytest.mark.parametrize("message", ["x" * 10_000, '"' * 10_000, "\0\n" * 5_000, "é" * 5_000, "\udcff", "🙂" * 5_000])
def test_no_message_outgrows_the_exit_record(message: str) -> None:
    record = recorder.exit_record("spawn_failed", 10**18, None, None, message)
    assert len(record) == EXIT_RECORD_BYTES
    read = decode_exit(record)
    assert read is not None
    assert read.message


def test_both_sides_agree_on_sizes_and_words() -> None:
    assert recorder.EXIT_RECORD_BYTES == EXIT_RECORD_BYTES
    assert decode_exit(b'{"state":"running"}'.ljust(EXIT_RECORD_BYTES - 1) + b"\n") is None
    for torn in range(len(EXITS)):
        assert decode_exit(encode_exit(EXITS[0])[: 10 + torn]) is None
