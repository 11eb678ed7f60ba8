"""A connection to a program in a container, whose requests and answers are those of `attendant.py`.

Chunk path 2/6 where the agent is in a container, the outer half. Before: `attendant.py` sends the journal. After: the
driver cuts what is yielded into lines.

The engine passes on what the program writes in frames that say whether it was stdout or stderr. Its end says nothing
about the program or its run, only that this connection is over (P17): an engine that restarts ends them all. One
whose machine is gone ends none: over TCP the kernel asks after it, and a word of ours must be acknowledged in time.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

FRAME_HEAD = 8
STDOUT, STDERR = b"\1\0\0\0", b"\2\0\0\0"
COMPLAINT_BYTES = 2000
RECEIVE_BYTES = 128 << 10
GONE_S = 60  # a machine that acknowledges nothing for so long is
PROBE_S = 20  # how long nothing is said before it is asked, and how often
PROBES = 2


class LineLost(Exception):
    """The connection is over; the message is the last that the program or the engine complained of."""


class Line:
    """One connection. `raw` is what `Engine.attach` returned; `word_s`: how often, at least, the program hears of us
    while we wait for it."""

    def __init__(self, raw: Any, word_s: float) -> None:
        self._word_s = word_s
        self._sent_at = 0.0
        self._receiving: asyncio.Future[bytes] | None = None
        self._raw = raw
        self._socket: socket.socket = getattr(raw, "_sock", raw)
        self._socket.setblocking(False)
        _watch(self._socket)
        self._frames = bytearray()
        self._text = bytearray()
        self._complaint = b""

    def close(self) -> None:
        """End the connection, and with it the program. Not from outside the loop while an answer is waited for."""
        if self._receiving is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._receiving.cancel()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for one in (getattr(self._raw, "_response", None), self._raw, self._socket):
            if one is not None:
                one.close()

    async def ask(self, op: str, **facts: Any) -> None:
        """Send a request. Raises LineLost."""
        await self.send(json.dumps({"op": op, **facts}).encode() + b"\n")

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises LineLost."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise LineLost(str(error)) from error
        self._sent_at = loop.time()

    async def answer(self) -> tuple[dict[str, Any], bytes]:
        """Return the next answer: its facts and its bytes. Raises LineLost."""
        while (end := self._text.find(b"\n")) < 0:
            await self._receive()
        try:
            facts: dict[str, Any] = json.loads(self._text[:end])
            size = int(facts["bytes"])
        except (ValueError, KeyError, TypeError) as error:  # the engine's own words, or the agent's in a command
            raise LineLost(self._text.decode(errors="replace").strip()) from error
        while len(self._text) - end - 1 < size:
            await self._receive()
        data = bytes(self._text[end + 1 : end + 1 + size])
        del self._text[: end + 1 + size]
        return facts, data

    async def _receive(self) -> None:
        """Take the next frame of stdout."""
        while True:
            head = await self._exactly(FRAME_HEAD)
            if head[:4] not in (STDOUT, STDERR):  # the engine's own words, in no frame
                raise LineLost((head + bytes(self._frames)).decode(errors="replace").strip())
            data = await self._exactly(int.from_bytes(head[4:], "big"))
            if head[:4] == STDOUT:
                self._text += data
                return
            self._complaint = (self._complaint + data)[-COMPLAINT_BYTES:]

    async def _exactly(self, size: int) -> bytes:
        while len(self._frames) < size:
            self._frames += await self._received()
        data = bytes(self._frames[:size])
        del self._frames[:size]
        return data

    async def _received(self) -> bytes:
        """Return what comes next, and give word of us meanwhile. Raises LineLost.

        A receive that is under way is never cancelled for that: it may have what it waited for already."""
        loop = asyncio.get_running_loop()
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(loop.sock_recv(self._socket, RECEIVE_BYTES))
        while True:
            if loop.time() - self._sent_at >= self._word_s:
                await self.send(b"\n")
            if (await asyncio.wait((self._receiving,), timeout=self._word_s))[0]:
                break
        receiving, self._receiving = self._receiving, None
        try:
            received = receiving.result()
        except OSError as error:
            raise LineLost(str(error)) from error
        if not received:
            raise LineLost(self._complaint.decode(errors="replace").strip() or "the connection has ended")
        return received


def _watch(connection: socket.socket) -> None:
    """Have the kernel end a connection whose other machine is gone; to one on this machine that cannot happen."""
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, PROBE_S),
            (socket.TCP_KEEPINTVL, PROBE_S),
            (socket.TCP_KEEPCNT, PROBES),
            (socket.TCP_USER_TIMEOUT, GONE_S * 1000),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
