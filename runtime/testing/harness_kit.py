"""The kit that every harness must pass, ours and those that others plug in (OUTLAST_HARNESSES).

Subclass `HarnessKit`, say which harness and which transcripts, and pytest finds the tests:

    class TestMyHarness(HarnessKit):
        def harness(self) -> Harness: ...
        def spec(self) -> RunSpec: ...
        def transcripts(self) -> list[Transcript]: ...

What it holds: the same lines give the same bytes (P24), chunks are canonical, no line raises, a terminal chunk comes
from `finish` alone and once (I5), a strict client takes the whole log (P26), every kind of exit has an ending, and
work that was put aside goes on as if it had not been (P25; for translators that can be).

Deliberately not: how bytes are cut into lines. That is the framer's matter, and its own tests'.
"""

# ruff: noqa: D102 - a test's name states the fact

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, runtime_checkable

import msgspec

from runtime.core import chunk
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.open_items import OpenItems
from runtime.core.record import RunSpec, Status
from runtime.errors import InputInvalid
from runtime.ports import Ending, Harness, Resumable, Translator
from runtime.testing.event_order import order_faults

RUN_ID = "run-kit"

# Lines that broke a translator, here or elsewhere. No harness may raise on any of them.
HOSTILE_LINES = (
    b"",
    b" ",
    b"\r",
    b"null",
    b"42",
    b"-0.0",
    b"1e400",
    b"NaN",
    b"9" * 5000,
    b'"text"',
    b"[]",
    b"{}",
    b'{"type":null}',
    b'{"type":["RUN_STARTED"]}',
    b'{"type":"RUN_STARTED"}',
    b'{"type":"no such type","x":1}',
    b'{"type":"RAW","event":"\\ud800"}',
    b'{"\\udfff":1,"type":"RAW"}',
    b'{"type":"CUSTOM","name":"x","value":[NaN,Infinity,-Infinity,1e999]}',
    b'{"type":"CUSTOM","type":"RAW"}',
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b"[" * 100_000,
    b"\xef\xbb\xbf{}",
    b"\xff\xfe\x00",
    b'{"type":"CUSTOM","name":"\xff"}',
    b"\x00\x1b[31m",
    "\u2028\u2029\x85".encode(),
    b'{"type":"RUN_FINISHED","metadata":5}',
    b'{"type":"RUN_ERROR","message":{},"code":{},"error":[]}',
)

_EXITS = (
    AgentExit(kind=ExitKind.EXITED, journal_length=0, code=0),
    AgentExit(kind=ExitKind.EXITED, journal_length=0, code=1),
    AgentExit(kind=ExitKind.EXITED, journal_length=0, code=143),
    AgentExit(kind=ExitKind.EXITED, journal_length=0, signal=9),
    AgentExit(kind=ExitKind.EXITED, journal_length=0, signal=250),
    AgentExit(kind=ExitKind.EXITED, journal_length=0),
    *(AgentExit(kind=kind, journal_length=0) for kind in ExitKind if kind is not ExitKind.EXITED),
    AgentExit(kind=ExitKind.SPAWN_FAILED, journal_length=0, message="no such file"),
)
# After these the agent cannot have done its work, whatever it said.
_BROKEN = frozenset({ExitKind.LOST, ExitKind.LOG_LIMIT, ExitKind.KILLED, ExitKind.SPAWN_FAILED})


@dataclass(frozen=True)
class Transcript:
    """What one agent printed, and how it ended. `torn` is an unterminated last line."""

    name: str
    lines: tuple[bytes, ...]
    torn: bytes | None = None
    exit: AgentExit = field(default_factory=lambda: _EXITS[0])


@runtime_checkable
class ResumableTranslator(Translator, Resumable, Protocol):
    """Both in one."""


class HarnessKit:
    """Subclass it; see the module. `in_order` is False for a harness that passes on what an agent prints in any order;
    `clockless` is False for one that keeps an agent's own time stamps, `resumable` for one without checkpoints."""

    in_order = True
    clockless = True
    resumable = True

    def harness(self) -> Harness:
        """Return the harness."""
        raise NotImplementedError

    def spec(self) -> RunSpec:
        """Return a run that the harness can launch."""
        raise NotImplementedError

    def transcripts(self) -> list[Transcript]:
        """Return what such agents print; at least one whole run."""
        raise NotImplementedError

    def bad_inputs(self) -> Mapping[str, dict[str, Any]]:
        """Return inputs that `validate` must refuse, by what is wrong with them."""
        return {}

    # --- translation ---

    def test_the_same_lines_give_the_same_bytes(self) -> None:
        for script in self.transcripts():
            first, second = self._translator(), self._translator()
            assert _fed(first, script) == _fed(second, script), script.name
            assert first.finish(script.exit, b"err") == second.finish(script.exit, b"err"), script.name

    def test_every_translator_that_is_kept_can_be_made_and_is_deterministic(self) -> None:
        harness, spec = self.harness(), self.spec()
        kept = getattr(harness, "translator_versions", (harness.translator_version,))
        assert harness.translator_version in kept
        for version in kept:
            older = msgspec.structs.replace(spec, translator_version=version)
            for script in self.transcripts():
                first, second = (harness.translator(RUN_ID, older) for _ in range(2))
                assert _fed(first, script) == _fed(second, script), f"{script.name}: translator {version}"

    def test_a_prefix_of_the_lines_gives_a_prefix_of_the_chunks(self) -> None:
        for script in self.transcripts():
            whole = _fed(self._translator(), script)
            for cut in _cuts(len(script.lines)):
                part = _fed(self._translator(), Transcript(script.name, script.lines[:cut]))
                assert whole[: len(part)] == part, f"{script.name}: {cut} lines"

    def test_chunks_are_canonical(self) -> None:
        for script in [*self.transcripts(), Transcript("hostile", HOSTILE_LINES)]:
            for data in self._log(script):
                assert chunk.encode(chunk.decode_chunk(data)) == data, script.name

    def test_no_line_raises(self) -> None:
        for script in self.transcripts():
            translator = self._translator()
            for line in _broken(script.lines):
                translator.feed(line)
            for line in HOSTILE_LINES:
                translator.feed(line)
                self._translator().feed(line, torn=True)
            translator.finish(script.exit, b"\xff" * 100_000)

    def test_chunks_hold_no_time(self) -> None:
        if not self.clockless:
            return
        for script in self.transcripts():
            assert not [data for data in self._log(script) if "timestamp" in chunk.decode_chunk(data)], script.name

    def test_a_strict_client_takes_the_whole_log(self) -> None:
        if not self.in_order:
            return
        for script in self.transcripts():
            assert order_faults(self._log(script)) == [], script.name
            broken = Transcript(script.name, tuple(_broken(script.lines)))
            assert order_faults(self._log(broken)) == [], f"{script.name}, broken"

    # --- putting aside (P25) ---

    def test_work_that_was_put_aside_goes_on_as_if_it_had_not_been(self) -> None:
        """At every cut of the lines, twice in a row: the same chunks and the same ending, byte for byte."""
        for script in self._scripts_to_cut():
            whole = self._resumable()
            if whole is None:
                return
            fed = [whole.feed(line) for line in script.lines]
            ending = whole.finish(script.exit, b"err")
            for cut in _cuts(len(script.lines)):
                translator = self._put_aside_at((cut // 2, cut), script)
                where = f"{script.name}, put aside after {cut} lines"
                for number, (line, expected) in enumerate(zip(script.lines[cut:], fed[cut:], strict=True), cut):
                    assert translator.feed(line) == expected, f"{where}: line {number}, {line[:200]!r}"
                assert translator.finish(script.exit, b"err") == ending, where

    def test_what_is_put_aside_follows_from_the_lines_alone(self) -> None:
        for script in self._scripts_to_cut():
            first, second = self._resumable(), self._resumable()
            if first is None or second is None:
                return
            for line in script.lines:
                first.feed(line)
                second.feed(line)
            state = first.state()
            assert (state, second.state()) == (second.state(), state), script.name
            third = self._put_aside_at((len(script.lines),), script)
            assert third.state() == state, script.name
            assert third.has_result == first.has_result, script.name

    def _scripts_to_cut(self) -> list[Transcript]:
        scripts = self.transcripts()
        broken = [Transcript(f"{script.name}, broken", tuple(_broken(script.lines))) for script in scripts]
        hostile = Transcript("hostile", HOSTILE_LINES)
        mixed = [
            Transcript(f"{script.name} and hostile", tuple(_mixed(script.lines, HOSTILE_LINES))) for script in scripts
        ]
        return [*scripts, *broken, hostile, *mixed]

    def _put_aside_at(self, cuts: tuple[int, ...], script: Transcript) -> ResumableTranslator:
        """Return a translator that was fed the lines up to the last cut, and put aside at each."""
        translator, begun = self._resumable(), 0
        assert translator is not None
        for cut in cuts:
            for line in script.lines[begun:cut]:
                translator.feed(line)
            state, begun = translator.state(), cut
            translator = self._resumable()
            assert translator is not None
            translator.restore(state)
        return translator

    def _resumable(self) -> ResumableTranslator | None:
        """Return a fresh translator, or None if this kind cannot be put aside: then its runs have no checkpoints."""
        translator = self._translator()
        if not self.resumable:
            return None
        assert isinstance(translator, ResumableTranslator), (
            "no state() and restore(): say resumable = False if so meant"
        )
        return translator

    # --- endings ---

    def test_the_terminal_chunk_is_the_last_and_comes_from_the_exit(self) -> None:
        for script in self.transcripts():
            log = self._log(script)
            terminals = [at for at, data in enumerate(log) if chunk.chunk_type(data) in chunk.TERMINAL_TYPES]
            assert terminals[-1] == len(log) - 1, script.name
            for at in terminals[:-1]:
                assert chunk.chunk_type(log[at + 1]) == chunk.RUN_STARTED, script.name

    def test_every_exit_has_an_ending(self) -> None:
        for script in self.transcripts():
            for cut in _cuts(len(script.lines)):
                for exit in _EXITS:
                    translator = self._translator()
                    fed = _fed(translator, Transcript(script.name, script.lines[:cut]))
                    ending = translator.finish(exit, b"what went wrong\n")
                    where = f"{script.name}, {cut} lines, {exit}"
                    _check_ending(ending, exit, where)
                    if self.in_order:
                        assert order_faults(_stored(fed, ending)) == [], where

    def test_a_run_without_a_word_still_starts(self) -> None:
        ending = self._translator().finish(_EXITS[1], b"")
        types = [chunk.chunk_type(data) for data in ending.chunks]
        assert types[:1] == [chunk.RUN_STARTED]

    # --- launch ---

    def test_a_launch_is_an_argv_with_the_environment_it_was_given(self) -> None:
        harness, spec = self.harness(), self.spec()
        harness.validate(spec.input)
        env = {"PATH": "/bin", "HOME": "/nowhere", "ODD": "a b\nc"}
        launch = harness.launch(RUN_ID, spec, env, "/workspace", [])
        assert launch.argv
        assert not [part for part in launch.argv if "\0" in part]
        assert env.items() <= launch.env.items()
        assert launch.max_log_bytes == spec.limits.max_log_bytes
        assert launch == harness.launch(RUN_ID, spec, env, "/workspace", [])

    def test_bad_inputs_are_refused_with_their_place(self) -> None:
        for name, bad in self.bad_inputs().items():
            error = _refusal(self.harness(), bad)
            assert error is not None, f"{name}: was not refused"
            assert error.code in ("option_invalid", "message_invalid"), name
            assert error.field, name
            assert error.message.endswith("."), name

    # --- parts ---

    def _translator(self) -> Translator:
        return self.harness().translator(RUN_ID, self.spec())

    def _log(self, script: Transcript) -> list[bytes]:
        translator = self._translator()
        fed = _fed(translator, script)
        return _stored(fed, translator.finish(script.exit, b""))


def _refusal(harness: Harness, input: dict[str, Any]) -> InputInvalid | None:
    try:
        harness.validate(input)
    except InputInvalid as error:
        return error
    return None


def _fed(translator: Translator, script: Transcript) -> list[bytes]:
    chunks = [data for line in script.lines for data in translator.feed(line)]
    if script.torn is not None:
        chunks += translator.feed(script.torn, torn=True)
    return chunks


def _stored(fed: list[bytes], ending: Ending) -> list[bytes]:
    """Return the log that the engine makes of these: closers of what is open go before the terminal chunk (P9)."""
    open_items = OpenItems()
    chunks = [*fed, *ending.chunks]
    open_items.feed(chunks)
    return [*chunks, *open_items.closers(), *([ending.terminal] if ending.terminal else [])]


def _cuts(length: int) -> list[int]:
    """Return some lengths from 0 to `length`, the first lines and the ends closer together."""
    near = {0, 1, 2, 3, length - 2, length - 1, length, *(length * part // 8 for part in range(8))}
    return sorted(cut for cut in near if 0 <= cut <= length)


def _broken(lines: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield lines like `lines`, many of them damaged, some lost, some doubled; the same ones every time."""
    chance = Random(len(lines))
    for line in lines:
        match chance.randrange(6):
            case 0:
                yield line[: chance.randrange(len(line) + 1)]
            case 1:
                at = chance.randrange(len(line) + 1)
                yield line[:at] + bytes([chance.randrange(256)]) + line[at + 1 :]
            case 2:
                yield line
                yield line
            case 3:
                pass
            case _:
                yield line


def _mixed(lines: tuple[bytes, ...], others: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield `lines` with one of `others` here and there, the same ones every time."""
    chance = Random(len(lines) + len(others))
    for line in lines:
        yield line
        if chance.randrange(3) == 0:
            yield chance.choice(others)


def _check_ending(ending: Ending, exit: AgentExit, where: str) -> None:
    ended_well = ending.status in (Status.COMPLETED, Status.INTERRUPTED)
    assert ending.status is not Status.RUNNING, where
    assert (ending.error is None) == ended_well, where
    if ending.error is not None:
        assert ending.error.code, where
        assert ending.error.message, where
    if exit.kind in _BROKEN:
        assert ending.status is Status.FAILED, where
    if ending.terminal is not None:
        event = chunk.decode_chunk(ending.terminal)
        assert event["type"] in chunk.TERMINAL_TYPES, where
        tanstack = event["metadata"]["tanstack"]
        if event["type"] == chunk.RUN_ERROR:
            assert ending.error is not None, where
            assert (event["message"], event["code"]) == (ending.error.message, ending.error.code), where
            assert tanstack["runId"] == RUN_ID, where
        else:
            assert event["runId"] == RUN_ID, where
            assert "finishReason" in tanstack, where
    kinds = [chunk.chunk_type(data) for data in ending.chunks]
    assert not chunk.TERMINAL_TYPES.intersection(kinds), where
