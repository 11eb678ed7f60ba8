"""A made-up kind of agent: a seeded script of what it prints, and a harness that translates it.

Its lines exercise what an engine can get wrong: lines that make no chunk, one, or several; items left open; a line
over the bound; text that is no UTF-8; a last line without a newline; a result, then an exit that never comes.

    start ID        opens a message          say ID TEXT     one chunk of it          end ID      closes it
    many N TEXT     N chunks                 mute TEXT       no chunk                 result      the last word
    ask             the last word, too: a question, for which the run is interrupted
    anything else   one CUSTOM chunk
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.core import chunk
from runtime.core.aside import put_aside, take_up
from runtime.core.framing import Framer
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.record import RunError, RunSpec, Status
from runtime.ports import Ending, LaunchSpec, Translator

MAX_LINE_BYTES = 2048


@dataclass(slots=True)
class Script:
    """What one agent does: writes pieces (delay in s, bytes), then ends."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    code: int | None = 0
    signal: int | None = None
    hangs: bool = False  # never exits by itself
    recorder_dies_after: int | None = None  # pieces; then nothing is recorded any more
    stderr: bytes = b""

    @property
    def output(self) -> bytes:
        """Return everything it would write."""
        return b"".join(piece for _, piece in self.pieces)


# How often each fate of an agent, and each kind of line, is drawn.
_FATES = {"well": 80, "fails": 5, "signal": 3, "hangs": 4, "recorder dies": 5, "nothing": 3}
_LINES = {"start": 10, "say": 45, "end": 10, "many": 10, "mute": 10, "long": 2, "empty": 2, "other": 11}


def write_script(rng: random.Random, lines: int, seconds: float) -> Script:
    """Return a script of about `lines` lines that takes about `seconds`; most end well, some do not."""
    fate = _draw(rng, _FATES)
    text = b"".join(_line(rng, at) for at in range(lines)) if fate != "nothing" else b""
    if fate == "hangs" or rng.randrange(10):
        text += b"result\n"
    if rng.randrange(5) == 0:
        text += b"torn " + b"x" * rng.randrange(40)
    script = Script(stderr=b"warning: made up\n" * rng.randrange(2))
    while text:
        size = 1 + int(rng.expovariate(1 / 60))
        script.pieces.append((rng.random() ** 3, text[:size]))
        text = text[size:]
    scale = seconds / (1.0 + sum(weight for weight, _ in script.pieces))
    script.pieces = [(weight * scale, piece) for weight, piece in script.pieces]
    match fate:
        case "fails":
            script.code = rng.randrange(1, 4)
        case "signal":
            script.code, script.signal = None, 9
        case "hangs":
            script.hangs = True
        case "recorder dies":
            script.recorder_dies_after = rng.randrange(len(script.pieces) + 1)
    return script


def _line(rng: random.Random, at: int) -> bytes:
    message = b"m%d" % (at // 7)
    match _draw(rng, _LINES):
        case "start":
            return b"start " + message + b"\n"
        case "say":
            return b"say " + message + b" word %d \xff\n" % at
        case "end":
            return b"end " + message + b"\n"
        case "many":
            return b"many %d line %d\n" % (rng.randrange(2, 9), at)
        case "mute":
            return b"mute %d\n" % at
        case "long":
            return b"y" * (MAX_LINE_BYTES + 1 + rng.randrange(500)) + b"\n"
        case "empty":
            return b"\n"
        case _:
            return b"line %d\n" % at


def _draw(rng: random.Random, weights: Mapping[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


class SimHarness:
    """The harness `sim`."""

    name = "sim"
    translator_version = 1

    def validate(self, input: Mapping[str, Any]) -> None:
        """Accept everything."""

    def launch(
        self,
        run_id: str,
        spec: RunSpec,
        env: Mapping[str, str],
        workspace: str,  # noqa: ARG002 - the port's form
        history: Sequence[Mapping[str, Any]],  # noqa: ARG002 - the port's form
    ) -> LaunchSpec:
        """Return an argv that names the run."""
        return LaunchSpec(argv=("sim", run_id), env=dict(env), max_log_bytes=spec.limits.max_log_bytes)

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        """Return a fresh translator."""
        return SimTranslator(run_id, str(spec.input.get("threadId", "")))


class SimTranslator:
    """Pure and deterministic, as every translator."""

    def __init__(self, run_id: str, thread_id: str) -> None:
        self._run_id = run_id
        self._thread_id = thread_id
        self._started = False
        self._made = 0
        self._result = False
        self._asks = False

    @property
    def has_result(self) -> bool:
        """True after `result` or `ask`."""
        return self._result or self._asks

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        """Return the chunks of one line, RUN_STARTED before the first that makes any."""
        chunks = self._chunks(line.decode("utf-8", "replace"), torn)
        if chunks and not self._started:
            self._started = True
            return [chunk.run_started(self._run_id, self._thread_id), *chunks]
        return chunks

    def _chunks(self, text: str, torn: bool) -> list[bytes]:
        word, _, rest = text.partition(" ")
        identity, _, said = rest.partition(" ")
        self._made += 1
        match word:
            case "mute":
                return []
            case "result":
                self._result = True
                return []
            case "ask" if not torn:
                self._asks = True
                return []
            case "start":
                return [chunk.encode({"type": "TEXT_MESSAGE_START", "messageId": identity, "role": "assistant"})]
            case "say":
                return [chunk.encode({"type": "TEXT_MESSAGE_CONTENT", "messageId": identity, "delta": said})]
            case "end":
                return [chunk.encode({"type": "TEXT_MESSAGE_END", "messageId": identity})]
            case "many" if identity.isdecimal():
                return [chunk.custom("part", {"of": self._made, "part": part}) for part in range(int(identity))]
            case _:
                return [chunk.custom("line", {"text": text, "torn": torn, "number": self._made})]

    def state(self) -> bytes:
        """Return what the lines so far have left behind."""
        return put_aside([self._started, self._made, self._result, self._asks])

    def restore(self, state: bytes) -> None:
        """Take that."""
        self._started, self._made, self._result, self._asks = take_up(state)

    def finish(self, exit: AgentExit, stderr: bytes) -> Ending:
        """Return completed after a result and an exit with 0 (or none), else failed."""
        ended_well = (exit.kind is ExitKind.EXITED and exit.code == 0) or exit.kind is ExitKind.NO_EXIT
        farewell = (chunk.custom("farewell", {"lines": self._made, "stderr": len(stderr)}),)
        if self._asks and ended_well:
            outcome = {"type": "interrupt", "interrupts": [{"id": f"{self._run_id}-0", "reason": "confirmation"}]}
            last = chunk.run_finished(self._run_id, self._thread_id, outcome=outcome)
            return Ending(status=Status.INTERRUPTED, chunks=farewell, terminal=last)
        if self._result and ended_well:
            return Ending(status=Status.COMPLETED, chunks=farewell)
        code = "agent_lost" if exit.kind is ExitKind.LOST else "agent_exit"
        return Ending(status=Status.FAILED, chunks=farewell, error=RunError(message=str(exit.kind), code=code))


def translate(run_id: str, thread_id: str, journal: bytes) -> list[bytes]:
    """Return what the journal band of a log must hold for a whole journal: every line once, in order.

    Written without the engine, to check it by."""
    translator = SimTranslator(run_id, thread_id)
    framer = Framer(0, MAX_LINE_BYTES)
    made: list[bytes] = []
    for framed in (framer.feed(journal), framer.finish()):
        for line, end in zip(framed.lines, framed.ends, strict=True):
            if end in framed.skipped:
                made.append(chunk.line_skipped(*framed.skipped[end]))
            else:
                made += translator.feed(line, framed.torn)
    return made
