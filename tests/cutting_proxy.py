"""A TCP proxy that breaks connections where a test says: what a client meets on a bad network.

Each connection takes the next cut of the list; when the list is used up, connections are left alone. A cut counts the
bytes that the server sends on that connection. A closed connection in the middle of a body is what a client sees of a
lost network; a reset is what it sees of a killed server.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

BLOCK = 65536
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


class Cut(NamedTuple):
    """Break after `after` bytes, or after the first `then` that follows `marker`."""

    after: int = 0
    marker: bytes = b""
    then: bytes = b"\n"
    reset: bool = False

    def position(self, sent: bytes) -> int | None:
        """Return how much of `sent` may pass; None while all of it may."""
        if not self.marker:
            return self.after if len(sent) >= self.after else None
        start = sent.find(self.marker)
        end = sent.find(self.then, start) if start >= 0 else -1
        return end + len(self.then) if end >= 0 else None


class CuttingProxy:
    """Listens on loopback, in front of the server at `url`. `cuts` counts the connections it has broken."""

    def __init__(self, url: str, cuts: Iterable[Cut]) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or "", parts.port or 80)
        self._left = list(cuts)
        self.cuts = 0
        self._away = False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{parts.path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening, and break what is open."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_open()

    def go(self) -> None:
        """Be away until `come`: break what is open, and what is just being opened."""
        self._away = True
        self.break_open()

    def come(self) -> None:
        """Be there again."""
        self._away = False

    def break_open(self) -> None:
        """Break what is open."""
        for sock in list(self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                cut = self._left.pop(0) if self._left else None
                threading.Thread(target=self._serve, args=(client, cut), daemon=True).start()

    def _serve(self, client: socket.socket, cut: Cut | None) -> None:
        with suppress(OSError), client, socket.create_connection(self._server) as server:
            pair = {client, server}
            self._open |= pair
            try:
                if not self._away:
                    self._copy(client, server, cut)
            finally:
                self._open -= pair

    def _copy(self, client: socket.socket, server: socket.socket, cut: Cut | None) -> None:
        sent = b""
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    source, target = key.fileobj, key.data
                    assert isinstance(source, socket.socket)
                    data = source.recv(BLOCK)
                    if not data:
                        return
                    if source is server and cut is not None:
                        may_pass = cut.position(sent + data)
                        if may_pass is not None:
                            target.sendall((sent + data)[len(sent) : may_pass])
                            self._break(client, cut)
                            return
                        sent += data
                    target.sendall(data)

    def _break(self, client: socket.socket, cut: Cut) -> None:
        self.cuts += 1
        if cut.reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


class StartProxy(Protocol):
    """Starts a proxy in front of an instance, and ends it with the test."""

    def __call__(self, cuts: Iterable[Cut], /) -> CuttingProxy: ...
