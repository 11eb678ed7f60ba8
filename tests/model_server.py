"""A stub of a model's API on loopback: it plays the scripts of `model_scripts` to real coding agents.

    server = ModelServer()          on a free port, in OS threads of this process
    server.url                      http://127.0.0.1:PORT; Codex wants /v1 behind it
    server.hold("run-1")            the hold of that player: `reached` before it is opened, `open()` lets it go on
    server.asked                    what was asked of it, in order

It is the agents' proxy for everything else too, and refuses: what they would have sent to the world is in `foreign`.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import model_wire as wire
from model_scripts import HOLD, Cut, Fail, Play, Turn
from waiting import wait_until

HOLD_S = 60.0  # nobody comes: the test that held has failed by now


class Seen(NamedTuple):
    """One request that a script answered."""

    run: str
    script: str
    turn: int
    credential: str


class Api(NamedTuple):
    """How one API is read and spoken."""

    asked: Callable[[wire.Json], wire.Asked]
    answer: Callable[[wire.Json, int, Turn], wire.Answer]
    error: Callable[[int], wire.Json]


MESSAGES = Api(wire.asked_of_messages, wire.answer_in_messages, wire.messages_error)
RESPONSES = Api(wire.asked_of_responses, wire.answer_in_responses, wire.responses_error)
APIS = {"/v1/messages": MESSAGES, "/v1/responses": RESPONSES}


@dataclass
class Hold:
    """Where the answer to one player stops, once in a life."""

    _reached: threading.Event = field(default_factory=threading.Event)
    _opened: threading.Event = field(default_factory=threading.Event)

    def reached(self, within_s: float = 40.0) -> None:
        """Return once the player is there."""
        wait_until(self._reached.is_set, "the answer that stops at its hold", within_s)

    def open(self) -> None:
        """Let it go on."""
        self._opened.set()

    def stop(self) -> None:
        """Say that the player is there; return when it may go on."""
        self._reached.set()
        self._opened.wait(HOLD_S)


class ModelServer(ThreadingHTTPServer):
    """The stub, listening until it is closed."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), _Request)
        self.url = f"http://{host}:{self.server_port}"
        self.asked: list[Seen] = []
        self.foreign: list[str] = []
        self.closing = threading.Event()
        self._holds: dict[str, Hold] = {}
        self._times: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="models", daemon=True)
        self._thread.start()

    def hold(self, run: str) -> Hold:
        """Return the hold of one player."""
        with self._lock:
            return self._holds.setdefault(run, Hold())

    def of(self, run: str) -> list[Seen]:
        """Return what one player asked."""
        return [seen for seen in list(self.asked) if seen.run == run]

    def happens(self, step: Fail | Cut, play: Play, turn: int) -> bool:
        """Return whether a failure of the script happens this time."""
        with self._lock:
            self._times[play.run, turn] += 1
            return self._times[play.run, turn] <= step.times

    def close(self) -> None:
        """End it, and every answer that is still held."""
        self.closing.set()
        for hold in list(self._holds.values()):
            hold.open()
        self.shutdown()
        self.server_close()
        self._thread.join(5.0)

    def handle_error(self, request: object, client_address: object) -> None:
        """A killed agent leaves in mid-answer; anything else is a bug of the stub, which the agent's test shows."""


class _Request(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        api = APIS.get(self.path.partition("?")[0])
        try:
            request = json.loads(body) if api is not None else None
        except ValueError:
            request = None
        if api is None or not isinstance(request, dict):
            self._refuse()
            return
        play, turn = api.asked(request)
        if play is None:
            self._refuse()
            return
        credential = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
        self.server.asked.append(Seen(play.run, play.name, turn, credential.removeprefix("Bearer ")))
        steps = play.turn(turn)
        for step in steps:
            if isinstance(step, Fail) and self.server.happens(step, play, turn):
                self._say(step.status, api.error(step.status))
                return
        self._stream(api.answer(request, turn, steps), play, turn)

    def _refuse(self) -> None:
        self.server.foreign.append(f"{self.command} {self.path}")
        self._say(404, {"error": {"type": "not_found_error", "message": "No script is played here."}})

    def do_GET(self) -> None:
        if self.path.partition("?")[0] in APIS:  # by a WebSocket, which Codex tries first
            self._say(426, {"error": {"type": "upgrade_required", "message": "Ask by POST."}})
        else:
            self._refuse()

    def do_HEAD(self) -> None:
        self._refuse()

    def do_CONNECT(self) -> None:
        self._refuse()

    def _say(self, status: int, value: wire.Json) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, answer: wire.Answer, play: Play, turn: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in answer:
            if isinstance(part, wire.Event):
                if play.delay_s:
                    self.server.closing.wait(play.delay_s)
                data = json.dumps({"type": part.type, **part.data})
                self._write(f"event: {part.type}\ndata: {data}\n\n".encode())
            elif isinstance(part, Cut):
                if self.server.happens(part, play, turn):
                    self._break_off()
                    return
            elif part == HOLD and play.holds:
                self.server.hold(play.run).stop()
        self._write(b"")

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _break_off(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: what was asked is in the server's lists."""


def main() -> None:
    """Serve on the port that is named until the end of the process: for a container of its own."""
    import sys  # noqa: PLC0415 - only here

    ModelServer("127.0.0.1", int(sys.argv[1])).closing.wait()


if __name__ == "__main__":
    main()
