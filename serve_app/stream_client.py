"""Read a run's stream to its end, over as many connections as it takes, each chunk once and in order (I3).

Every connection asks for what follows the last offset that was seen; what comes all the same is dropped. A stream that
ends is believed only if the record agrees: the run is not running, and as many chunks came as were stored. So neither
a cut in mid-body, nor a clean end at the wrong place, nor an instance that restarts on another port loses anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import httpx

from runtime.core import chunk
from runtime.core.ids import START, Offset
from runtime.core.record import Status
from runtime.errors import InstanceNotFound
from serve_app.http_client import Instance
from serve_app.trials import Lost, Refusal, Trial

NO_CONTENT = 204
STREAM = "/api/chat/ndjson"


class Envelope(NamedTuple):
    """One line of a stream: the chunk, the offset after it (None if the line has none), and the line as it came."""

    id: str | None
    chunk: chunk.Event
    line: bytes


class LineBuffer:
    """Cuts bytes into lines at 0x0A, however they are split, in time linear in their number."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, block: bytes) -> list[bytes]:
        """Return the lines that `block` completes, without their ends."""
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts = []
        self._parts.append(rest)
        return lines

    @property
    def partial(self) -> bool:
        """Return whether a line has begun and not ended."""
        return any(self._parts)


def parse(line: bytes) -> Envelope:
    """Return one line of NDJSON as an envelope. Raises ValueError if it is no JSON object."""
    value = chunk.decode_chunk(line)
    offset, inner = value.get("id"), value.get("chunk")
    if isinstance(offset, str) and isinstance(inner, dict) and "type" not in value:
        return Envelope(offset, inner, line)
    return Envelope(None, value, line)


class RunStream:
    """The chunks of one run past the offset `after`. With `body`, the first request starts the run or joins it.

    `record` is the run's record once the stream has ended; None if the instance went away right after the terminal
    chunk, which is `terminal` then."""

    def __init__(
        self,
        instance: Instance,
        run_id: str,
        *,
        body: bytes | None = None,
        after: Offset = START,
        notice: Callable[[str], None],
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`notice` hears of trouble that is tried again; `begun` of each request that the instance took."""
        self._instance = instance
        self._body = body
        self._notice = notice
        self._begun = begun
        self._after = after
        self.run_id = run_id
        self.last_id: str | None = None
        self.terminal: chunk.Event | None = None
        self.record: dict[str, Any] | None = None

    @property
    def position(self) -> int:
        """Return how many chunks of the run lie before the next one."""
        return (Offset.parse(self.last_id) or START).position if self.last_id else self._after.position

    def batches(self) -> Generator[list[Envelope], None, None]:
        """Yield what comes, in batches as they came, until the run has ended. Raises Refusal, InstanceNotFound."""
        trial = self._instance.trial(begun=False)
        while True:
            try:
                yield from self._attempt(trial)
                if self._complete():
                    return
                raise Lost("The stream ended before the run did.", sent=True)
            except Lost as lost:
                trial.wait(lost, self._notice)

    def _attempt(self, trial: Trial) -> Iterator[list[Envelope]]:
        with self._open() as response:
            trial.begin()
            self._begun()
            if response.status_code == NO_CONTENT:
                return
            lines = LineBuffer()
            for block in response.iter_bytes():
                trial.hear()
                batch = self._fresh(lines.feed(block))
                if batch:
                    trial.move()
                    yield batch
            if lines.partial:
                raise Lost("The stream was cut in the middle of a line.", sent=True)

    def _open(self) -> AbstractContextManager[httpx.Response]:
        headers = {"Accept": "application/x-ndjson"}
        silence_s = self._instance.patience.silence_s
        if self._body is not None and self.last_id is None:
            headers["X-Run-Id"] = self.run_id
            return self._instance.open("POST", STREAM, headers=headers, content=self._body, silence_s=silence_s)
        params = {"runId": self.run_id, "offset": self.last_id or str(self._after)}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        return self._instance.open("GET", STREAM, params=params, headers=headers, silence_s=silence_s)

    def _fresh(self, lines: list[bytes]) -> list[Envelope]:
        """Return what was not seen before. Raises Lost for a line that is no envelope, and has then seen nothing."""
        try:
            envelopes = [parse(line) for line in lines if line.strip()]  # a blank line is a heartbeat
        except ValueError as error:
            raise Lost("The stream has a line that is no JSON object.", sent=True) from error
        batch = []
        for envelope in envelopes:
            if envelope.id is not None:
                if self.last_id is not None and envelope.id <= self.last_id:
                    continue
                self.last_id = envelope.id
            elif self.last_id is not None:
                continue  # the terminal chunk once more, without the id by which others have dropped it
            self.terminal = envelope.chunk if envelope.chunk.get("type") in chunk.TERMINAL_TYPES else None
            batch.append(envelope)
        return batch

    def _complete(self) -> bool:
        try:
            record = self._instance.record(self.run_id, begun=True)
        except (InstanceNotFound, Refusal):
            if self.terminal is None:
                raise
            return True
        if record.get("status") == Status.RUNNING or self.position < int(record.get("chunks") or 0):
            return False
        self.record = record
        return True
