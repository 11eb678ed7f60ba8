"""One agent's run through a translator, for tests of harnesses: the run's spec, and the whole log as events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runtime.core import chunk
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.record import RunSpec
from runtime.ports import Ending, Harness

RUN = "run-1"
THREAD = "thread-1"
OK = AgentExit(kind=ExitKind.EXITED, journal_length=0, code=0)

Event = dict[str, Any]


@dataclass(frozen=True)
class Log:
    """What a run left: the chunks of its lines, and its ending."""

    fed: list[bytes]
    ending: Ending

    @property
    def chunks(self) -> list[bytes]:
        """Return every chunk, the terminal one last."""
        return [*self.fed, *self.ending.chunks, *([self.ending.terminal] if self.ending.terminal else [])]

    @property
    def events(self) -> list[Event]:
        """Return every chunk as an event."""
        return events(self.chunks)

    @property
    def types(self) -> list[str]:
        """Return the types of all events."""
        return [event["type"] for event in self.events]

    @property
    def terminal(self) -> Event:
        """Return the terminal event."""
        assert self.ending.terminal is not None
        return chunk.decode_chunk(self.ending.terminal)

    def of(self, *types: str) -> list[Event]:
        """Return the events of these types."""
        return [event for event in self.events if event["type"] in types]


def events(chunks: Iterable[bytes]) -> list[Event]:
    """Return chunks as events."""
    return [chunk.decode_chunk(data) for data in chunks]


def spec(harness: str, text: str = "hello", provider: str = "docker", **forwarded: Any) -> RunSpec:
    """Return a run of `harness` whose last message is `text` and whose forwardedProps are `forwarded`."""
    return RunSpec(harness=harness, translator_version=1, provider=provider, input=request(text, **forwarded))


def request(text: Any = "hello", **forwarded: Any) -> dict[str, Any]:
    """Return a RunAgentInput."""
    return {
        "threadId": THREAD,
        "runId": RUN,
        "messages": [{"id": "u1", "role": "user", "content": text}],
        "forwardedProps": forwarded,
    }


def exited(code: int | None = None, signal: int | None = None, kind: ExitKind = ExitKind.EXITED) -> AgentExit:
    """Return an exit record."""
    return AgentExit(kind=kind, journal_length=0, code=code, signal=signal)


def play(
    harness: Harness,
    run: RunSpec,
    lines: Iterable[bytes],
    exit: AgentExit = OK,
    *,
    stderr: bytes = b"",
    torn: bytes | None = None,
) -> Log:
    """Feed `lines` to a fresh translator and end it."""
    translator = harness.translator(RUN, run)
    fed = [data for line in lines for data in translator.feed(line)]
    if torn is not None:
        fed += translator.feed(torn, torn=True)
    return Log(fed, translator.finish(exit, stderr))
