"""A receiver of webhooks on loopback, which answers as a test says, and may be down at first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks.webhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_SECRET = "whsec_" + "B" * 32


class Receiver:
    """Takes POSTs on `port`: 0 until it was up once. `statuses` are answered in turn to the posts of one id, the last
    one for ever; None: no answer at all until `let_go`."""

    def __init__(self, *statuses: int | None) -> None:
        self.statuses = statuses or (200,)
        self.headers: dict[str, str] = {}  # of the answers
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.let_go = threading.Event()
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/runs"

    def messages(self, secret: str = SECRET) -> list[dict[str, Any]]:
        """Return what came, each checked as a receiver checks it. Raises WebhookVerificationError."""
        return [Webhook(secret).verify(body, headers) for headers, body in self.got]

    def up(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.take({name.lower(): text for name, text in self.headers.items()}, body)
                if status is None:
                    receiver.let_go.wait()
                    return
                self.send_response(status)
                for name, text in receiver.headers.items():
                    self.send_header(name, text)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, headers: dict[str, str], body: bytes) -> int | None:
        with self._lock:
            self.got.append((headers, body))
            times = sum(other["webhook-id"] == headers["webhook-id"] for other, _body in self.got)
            return self.statuses[min(times, len(self.statuses)) - 1]

    def ids_of(self, run_id: str) -> list[str]:
        """Return the id of each post that told of a run; all of them are signed."""
        messages = zip(self.got[:], self.messages(), strict=False)
        return [headers["webhook-id"] for (headers, _body), message in messages if message["data"]["runId"] == run_id]

    def down(self) -> None:
        """Refuse connections from now on."""
        self.let_go.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def receiving(*statuses: int | None) -> Iterator[Receiver]:
    """Yield a receiver that is up."""
    receiver = Receiver(*statuses)
    receiver.up()
    try:
        yield receiver
    finally:
        receiver.down()


def write_webhooks(path: Path, *lines: str) -> None:
    """Write the file as an operator does."""
    path.touch(0o600)
    path.chmod(0o600)
    path.write_text("\n".join(lines) + "\n")
