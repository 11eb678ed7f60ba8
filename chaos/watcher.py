"""A client of one run as a browser's EventSource is one, that keeps all it was given and checks it as it comes.

It reconnects with the last id that it has seen. What follows an id must be the next position, with the bytes it had
before if it was seen before; anything else is noted in `breaches`. It shares no code with the gateway.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TERMINAL = (b'"type":"RUN_FINISHED"', b'"type":"RUN_ERROR"')
TEXT = b'"type":"TEXT_MESSAGE_CONTENT"'
RETRY_S = 0.2
CONNECT_S = 5.0
ANSWER_S = 15.0
SILENCE_S = 8.0  # heartbeats included: then a client takes the connection for dead
TRY_AGAIN = (429, 503)  # of a start, which may be asked for again
STAY_S = (2.0, 10.0)  # how long a restless client stays connected


class Refused(Exception):
    """An answer at which a browser's client gives up: it never retries one that is not 200."""


class Breach(NamedTuple):
    """What must not be: `kind` is `lost` or `doubled`."""

    kind: str
    what: str


class Watcher:
    """Watches one run until its terminal chunk."""

    def __init__(self, url: str, run_id: str, body: Any = None, restless: random.Random | None = None) -> None:
        """With `body` it starts the run by a POST. A `restless` one leaves and comes back, with any id it has seen."""
        where = urlsplit(url)
        self.run_id = run_id
        self.seen: dict[int, bytes] = {}  # position: digest of the chunk
        self.came: list[tuple[float, int]] = []  # when each new position came, on the monotonic clock
        self.ended = False
        self.began = asyncio.Event()  # the first chunk came
        self.refusals: list[str] = []
        self.breaches: list[Breach] = []
        self.connections = 0
        self.deltas: list[str] = []  # of the agent's text, as it came
        self._host, self._port = where.hostname or "", where.port or 80
        self._body = body
        self._restless = restless
        self._expected = 1

    @property
    def last(self) -> int:
        """Return the last position that came; 0 before the first."""
        return len(self.seen)

    @property
    def lines(self) -> list[str]:
        """Return the agent's whole lines."""
        return "".join(self.deltas).split("\n")[:-1]

    async def watch(self) -> None:
        """Watch to the end; whatever is dropped is connected again."""
        while not self.ended:
            try:
                async with asyncio.timeout(self._stay_s()):
                    await self._connect()
            except Refused as error:
                self.refusals.append(str(error))
            except (OSError, EOFError, TimeoutError, ValueError):
                pass
            if not self.ended:
                await asyncio.sleep(RETRY_S)

    def _stay_s(self) -> float | None:
        return self._restless.uniform(*STAY_S) if self._restless and self.seen else None

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(self._request())
            async with asyncio.timeout(ANSWER_S):
                status = await _read_head(reader)
            if status != 200:
                if status in TRY_AGAIN and not self.seen and self._body is not None:
                    return
                raise Refused(f"HTTP {status}: {(await reader.read(300)).decode(errors='replace')}")
            self.connections += 1
            await self._take(reader)
        finally:
            writer.close()

    def _request(self) -> bytes:
        headers = [f"Host: {self._host}:{self._port}", "Accept: text/event-stream", "Connection: close"]
        content = b""
        if self._body is not None and not self.seen:
            first = "POST /api/chat HTTP/1.1"
            content = json.dumps(self._body).encode()
            headers += [f"X-Run-Id: {self.run_id}", "Content-Type: application/json", f"Content-Length: {len(content)}"]
            self._expected = 1
        else:
            first = f"GET /api/chat?runId={self.run_id}&offset=-1 HTTP/1.1"
            after = self._restless.randint(0, self.last) if self._restless else self.last
            self._expected = after + 1
            if after:
                headers.append(f"Last-Event-ID: {0:016d}_{after:016d}")
        return "\r\n".join([first, *headers, "", ""]).encode() + content

    async def _take(self, reader: asyncio.StreamReader) -> None:
        async for position, data in _events(reader):
            self._note(position, data)
            if self.ended:
                return
        raise Refused("a clean end without a terminal chunk")

    def _note(self, position: int, data: bytes) -> None:
        terminal = any(mark in data for mark in TERMINAL)
        digest = blake2b(data, digest_size=16).digest()
        if position > self._expected:
            self.breaches.append(Breach("lost", f"{self.run_id}: {self._expected} was due, {position} came"))
        elif position < self._expected and not (terminal and position == self._expected - 1):
            self.breaches.append(Breach("doubled", f"{self.run_id}: {self._expected} was due, {position} came"))
        if self.seen.setdefault(position, digest) != digest:
            self.breaches.append(Breach("doubled", f"{self.run_id}: another chunk at {position} than before"))
        elif not self.came or self.came[-1][1] < position:
            self.came.append((time.monotonic(), position))
            if TEXT in data:
                self.deltas.append(json.loads(data)["delta"])
        self._expected = position + 1
        self.ended = terminal
        self.began.set()


async def _read_head(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1])


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (position, chunk) of each SSE event with an id. Returns at a clean end; raises EOFError at a cut."""
    held = b""
    while piece := await _piece(reader):
        *whole, held = (held + piece).split(b"\n\n")
        for event in whole:
            offset, newline, data = event.partition(b"\ndata: ")
            if newline and offset.startswith(b"id: "):
                yield int(offset.rpartition(b"_")[2]), data


async def _piece(reader: asyncio.StreamReader) -> bytes:
    """Return the next chunk of a chunked body; empty at its clean end."""
    async with asyncio.timeout(SILENCE_S):
        size = await reader.readuntil(b"\r\n")
        body = await reader.readexactly(int(size.partition(b";")[0], 16) + 2)
    return body[:-2]
