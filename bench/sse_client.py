"""An HTTP/1.1 client that notes when each byte of a stream came, and understands nothing of it until later.

Chunked transfer is decoded properly: HAProxy cuts at its own buffer size, in the middle of an SSE line, and a client
that takes an HTTP chunk for a whole event loses events. What a piece means is found out after the measurement, by
`events`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

STAMP = re.compile(rb"@@(\d+)(?::(\d+))?@@")
# Above what any wait of the benchmark should take; a hang is a failure with a name.
PATIENCE_S = 90.0


class BenchError(Exception):
    """A measurement could not be made, or what came is not what was to come."""


class Event(NamedTuple):
    """One SSE event: when its last byte came, its position in the log, its chunk."""

    came_ns: int
    position: int
    data: bytes

    @property
    def number(self) -> int | None:
        """Return the number of the agent's text piece in it, None if there is none."""
        found = STAMP.search(self.data)
        return int(found[1]) if found else None

    @property
    def written_ns(self) -> int | None:
        """Return when the agent wrote it, None if it carries no time."""
        found = STAMP.search(self.data)
        return int(found[2]) * 1000 if found and found[2] else None


class ChunkedDecoder:
    """Decodes one chunked body however its bytes are cut."""

    def __init__(self) -> None:
        self.done = False
        self._held = b""
        self._left = 0  # bytes of the current chunk, its CRLF included

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes in `data`."""
        data = self._held + data if self._held else data
        self._held = b""
        out: list[bytes] = []
        at = 0
        while at < len(data) and not self.done:
            if self._left:
                body = min(max(0, self._left - 2), len(data) - at)
                out.append(data[at : at + body])
                taken = min(self._left, len(data) - at)
                self._left -= taken
                at += taken
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._held = data[at:]
                break
            size = int(data[at:end].partition(b";")[0], 16)
            self.done = size == 0
            self._left = size + 2
            at = end + 2
        return b"".join(out)


class Stream(asyncio.Protocol):
    """One request and its response. Times are `time.time_ns`, as the agents' stamps are."""

    def __init__(self, request: bytes) -> None:
        self.status = 0
        self.sent_ns = 0
        self.pieces: list[tuple[int, bytes]] = []  # of the body
        self.ended = False
        self.clean = False  # the body ended as HTTP says it should
        self._request = request
        self._head: bytes | None = b""
        self._decoder: ChunkedDecoder | None = None
        self._length: int | None = None
        self._moved = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note the time, and take the bytes."""
        now_ns = time.time_ns()
        if self._head is not None:
            data = self._read_head(data)
        if data and self._decoder is not None:
            data = self._decoder.feed(data)
        if data:
            self.pieces.append((now_ns, data))
        self._finish_if_complete()
        self._moved.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Take note; `clean` says whether the body was complete."""
        del error
        self.ended = True
        self._moved.set()

    def _read_head(self, data: bytes) -> bytes:
        head, blank, rest = ((self._head or b"") + data).partition(b"\r\n\r\n")
        if not blank:
            self._head = head
            return b""
        self._head = None
        self.status = int(head.split(b" ", 2)[1])
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"transfer-encoding" and b"chunked" in value:
                self._decoder = ChunkedDecoder()
            elif name.lower() == b"content-length":
                self._length = int(value)
        return rest

    def _finish_if_complete(self) -> None:
        if self._head is not None:
            return
        complete = self._decoder.done if self._decoder is not None else self._size() == self._length
        if complete or self.status == 204:
            self.clean = self.ended = True
            self.close()

    def _size(self) -> int:
        return sum(len(piece) for _, piece in self.pieces)

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.close()

    @property
    def body(self) -> bytes:
        """Return the body so far."""
        return b"".join(piece for _, piece in self.pieces)

    async def until(self, wanted: bytes) -> int:
        """Return when the body held `wanted` for the first time. Raises BenchError if it ends without."""
        seen = 0
        before = b""
        while True:
            while seen < len(self.pieces):
                came_ns, piece = self.pieces[seen]
                if wanted in before + piece:
                    return came_ns
                before = (before + piece)[-len(wanted) :]
                seen += 1
            if self.ended:
                raise BenchError(f"HTTP {self.status}, ended without {wanted!r}: {self.body[-300:]!r}")
            await self._more()

    async def end(self) -> None:
        """Return when the stream has ended. Raises BenchError if it was cut."""
        while not self.ended:
            await self._more()
        if not self.clean:
            raise BenchError(f"the stream was cut after {self.body[-200:]!r}")

    async def _more(self) -> None:
        self._moved.clear()
        try:
            await asyncio.wait_for(self._moved.wait(), PATIENCE_S)
        except TimeoutError:
            raise BenchError(f"nothing came for {PATIENCE_S} s after {self.body[-200:]!r}") from None

    def events(self) -> Iterator[Event]:
        """Yield the SSE events of what came."""
        held = b""
        for came_ns, piece in self.pieces:
            *whole, held = (held + piece).split(b"\n\n")
            for event in whole:
                offset, newline, data = event.partition(b"\ndata: ")
                if newline:
                    yield Event(came_ns, int(offset.rpartition(b"_")[2]), data)


async def open_stream(
    url: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Stream:
    """Send a request; the clock of a POST starts before its connection is made."""
    where = urlsplit(url)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {where.netloc}", "Accept: text/event-stream", "Connection: close"]
    content = b"" if body is None else json.dumps(body).encode()
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    request = "\r\n".join(lines).encode() + b"\r\n\r\n" + content
    sent_ns = time.time_ns()
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(request), where.hostname or "", where.port or 80)
    stream.sent_ns = sent_ns
    return stream


async def fetch(url: str, method: str, path: str, body: Any = None) -> bytes:
    """Return the body of a short answer. Raises BenchError unless its status is 2xx."""
    stream = await open_stream(url, method, path, body)
    await stream.end()
    if not 200 <= stream.status < 300:
        raise BenchError(f"{method} {path}: HTTP {stream.status} {stream.body[:300]!r}")
    return stream.body
