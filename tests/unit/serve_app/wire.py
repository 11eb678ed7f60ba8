"""A real uvicorn on loopback, and a client that sees the bytes of HTTP/1.1 as they are."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from waiting import until


class Wire:
    """A server's port, and the connections that a test has opened to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lines: list[Line] = []

    async def line(self, receive_buffer: int | None = None) -> Line:
        """Open a connection; it is closed with the server at the latest."""
        self.lines.append(await Line.open(self.port, receive_buffer))
        return self.lines[-1]


@asynccontextmanager
async def served(app: ASGIApp, http: Any = "httptools") -> AsyncIterator[Wire]:
    """Serve `app` in this loop. Its lifespan is the caller's."""
    config = uvicorn.Config(app, lifespan="off", log_level="critical", http=http, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started, "uvicorn")
        wire = Wire(port)
        try:
            yield wire
        finally:
            for line in wire.lines:
                line.close()
            server.should_exit = True
            await serving


class Line:
    """One connection. `seen` is everything that came; `eof` is true once the server has closed it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen = b""
        self.eof = False
        self._reader = reader
        self._writer = writer
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, port: int, receive_buffer: int | None = None) -> Line:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer)

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(65536):
                self.seen += data
        except ConnectionResetError:
            pass
        self.eof = True

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> None:
        """Send a request."""
        raw = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(raw)}"]
        if body is not None:
            lines.append("Content-Type: application/json")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    def pause(self) -> None:
        """Read nothing more, so that the server's buffers fill up."""
        self._reading.cancel()

    async def has(self, text: bytes, times: int = 1) -> None:
        await until(lambda: self.seen.count(text) >= times, f"{times} x {text!r} in {self.seen[-300:]!r}")

    async def closed(self) -> bytes:
        """Wait for the server's end of the connection; return everything that came."""
        await until(lambda: self.eof, "the server to close the connection")
        return self.seen

    def close(self, *, reset: bool = False) -> None:
        """Close with FIN, or with RST."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._reading.cancel()
        self._writer.close()
