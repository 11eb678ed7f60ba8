"""A TCP proxy that loses answers or keeps questions back when a test says so: a network at its worst moment.

lose_answers   what the server sends from now on is thrown away, and each connection it came for is broken
keep_questions what clients send from now on is kept; `deliver` hands it to the server after all, even if the client
               has gone meanwhile
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

BLOCK = 65536


class HoldingProxy:
    """Listens on loopback, in front of `port`."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.lost = 0  # answers
        self.kept = 0  # questions
        self._losing = threading.Event()
        self._keeping = threading.Event()
        self._delivered = threading.Event()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def lose_answers(self) -> None:
        """Lose the next answer of each connection, and the connection with it."""
        self._losing.set()

    def keep_questions(self) -> None:
        """Keep back what comes from clients, of connections that are open now and later."""
        self._delivered.clear()
        self._keeping.set()

    def heal(self) -> None:
        """Let everything that comes from now on pass; what was kept stays kept."""
        self._losing.clear()
        self._keeping.clear()

    def deliver(self) -> None:
        """Hand what was kept to the server."""
        self._delivered.set()

    def close(self) -> None:
        """Stop listening, and break what is open."""
        self._delivered.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for end in self._open:
            end.close()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                for work in (self._ask, self._answer):
                    self._start(work, client, server)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(BLOCK):
                if self._keeping.is_set():
                    self.kept += 1
                    self._delivered.wait(60)
                server.sendall(data)
        self._end(server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(BLOCK):
                if self._losing.is_set():
                    self.lost += 1
                    break
                client.sendall(data)
        self._end(client)

    def _end(self, other: socket.socket) -> None:
        """Break the other side, whose OS thread then ends too."""
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
