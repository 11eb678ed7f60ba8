"""The table of endings: what the agent said against how it exited."""

from __future__ import annotations

import pytest
from agent_runs import RUN, exited

from runtime.core import chunk
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.record import RunError, Status
from runtime.harnesses.endings import STDERR_BYTES, Said, conclude, fault, stderr_end

GOOD = Said({"type": "RUN_FINISHED"}, Status.COMPLETED, {"said": "good"}, "test", usage={"n": 1})
BAD = Said({"type": "RUN_ERROR"}, Status.FAILED, {"said": "bad"}, "test", RunError(message="m", code="own"))
WORDS = {"good": GOOD, "bad": BAD, "nothing": None}
EXITS = {
    "0": exited(0),
    "1": exited(1),
    "signal": exited(signal=15),
    "neither": exited(),
    **{kind.value: exited(kind=kind) for kind in ExitKind if kind is not ExitKind.EXITED},
}

# said -> exit -> code; "" is a success
TABLE = {
    "good": {"0": "", "1": "agent_exit", "signal": "agent_signal", "neither": "agent_lost", "no_exit": ""},
    "bad": {"0": "own", "1": "own", "signal": "own", "neither": "own", "no_exit": "agent_no_exit"},
    "nothing": {
        "0": "agent_no_result",
        "1": "agent_exit",
        "signal": "agent_signal",
        "neither": "agent_lost",
        "no_exit": "agent_no_exit",
    },
}
BROKEN = {"lost": "agent_lost", "log_limit": "log_limit", "killed": "agent_signal", "spawn_failed": "launch_failed"}


@pytest.mark.parametrize("said", WORDS)
@pytest.mark.parametrize("exit", EXITS)
def test_the_table(said: str, exit: str) -> None:
    code = {**TABLE[said], **BROKEN}[exit]
    word = WORDS[said]
    ending = conclude(RUN, word, EXITS[exit], b"", (b"first",))
    assert ending.terminal is not None
    terminal = chunk.decode_chunk(ending.terminal)
    if code == "":
        assert (ending.status, ending.error, ending.chunks) == (Status.COMPLETED, None, (b"first",))
        assert terminal == GOOD.event
        assert ending.usage == {"n": 1}
        return
    assert ending.status is Status.FAILED
    assert ending.error is not None
    assert ending.error.code == code
    stands = word is not None and word.error == ending.error
    assert terminal == (BAD.event if stands else chunk.decode_chunk(chunk.run_error(RUN, ending.error.message, code)))
    overruled = [] if word is None or stands else [chunk.raw_event(word.printed, "test")]
    assert list(ending.chunks) == [b"first", *overruled]


def test_every_kind_of_exit_is_in_the_table() -> None:
    assert {exit.kind for exit in EXITS.values()} == set(ExitKind)


def test_signals_have_their_names_where_they_have_one() -> None:
    named, unnamed = fault(exited(signal=9), b""), fault(exited(signal=250), b"")
    assert named is not None
    assert unnamed is not None
    assert named.message == "The agent was ended by signal 9 (SIGKILL)."
    assert unnamed.message == "The agent was ended by signal 250."


def test_a_spawn_failure_says_why() -> None:
    error = fault(AgentExit(kind=ExitKind.SPAWN_FAILED, journal_length=0, message="claude: not found"), b"")
    assert error is not None
    assert error.message.endswith("could not be started: claude: not found")


def test_the_end_of_stderr_is_whole_lines() -> None:
    assert stderr_end(b"") == ""
    assert stderr_end(b" a\nb\n") == "a\nb"
    long = b"".join(b"line %04d\n" % number for number in range(1000))
    assert stderr_end(long).startswith("line ")
    assert stderr_end(long).endswith("line 0999")
    assert len(stderr_end(long)) <= STDERR_BYTES
    assert len(stderr_end(b"x" * 5000)) == STDERR_BYTES
    assert stderr_end(b"x" * 5000 + b"\n") == "x" * (STDERR_BYTES - 1)
    assert stderr_end(b"\xff\xfe") == "\ufffd\ufffd"
