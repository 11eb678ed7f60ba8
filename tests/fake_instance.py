"""An instance without Ray: a real HTTP server on loopback that speaks the routes of the design, for the command line.

It streams what a test puts into its runs, and fails as it is told to: `faults` has one entry for each stream request to
come, and what is not spoilt by an entry is served well. It stops listening and comes back on another port, as a restart
does. It drives nothing and stores nothing.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from runtime.process import current
from serve_app import instance_file
from serve_app.instance_file import InstanceInfo

WAIT_S = 20.0  # of a stream with nothing new: longer than any test
Event = dict[str, Any]
ACCEPTED: Event = {"type": "CUSTOM", "name": "run.accepted", "value": {}}


@dataclass(frozen=True)
class Cut:
    """Spoil a stream after `after` chunks: `torn` cuts inside of the next line, `clean` ends the body properly."""

    after: int
    torn: bool = False
    clean: bool = False


@dataclass(frozen=True)
class Refuse:
    """Answer with an error; in the shape of an instance, unless `body` is something else."""

    status: int
    code: str = "refused"
    message: str = "No."
    body: bytes | None = None
    retry_after: str | None = None


@dataclass(frozen=True)
class Beats:
    """Begin a stream with so many heartbeats, then serve it."""

    count: int


Fault = Cut | Refuse | Beats


@dataclass
class Asked:
    """One request, as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class FakeRun:
    """A run: its record, and the chunks of its log."""

    record: dict[str, Any]
    chunks: list[Event] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, *events: Event) -> None:
        """Append to the log."""
        with self.changed:
            self.chunks.extend(events)
            self.changed.notify_all()

    def finish(self, status: str = "completed", error: dict[str, str] | None = None) -> None:
        """End the run with the terminal chunk that goes with `status`."""
        end: Event = {"type": "RUN_FINISHED"} if error is None else {"type": "RUN_ERROR", **error}
        with self.changed:
            self.chunks.append(end)
            self.record.update(status=status, error=error, finishedAt=1_700_000_009_000)
            self.changed.notify_all()

    @property
    def wire(self) -> dict[str, Any]:
        """Return the record as it is sent."""
        return {**self.record, "chunks": len(self.chunks)}

    def past(self, position: int) -> list[Event]:
        """Return what follows `position`; waits until there is something or the run has ended."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.chunks) > position or self.ended, WAIT_S)
            return self.chunks[position:]

    @property
    def ended(self) -> bool:
        """Return whether the log is closed."""
        return bool(self.record["status"] != "running")


def text(words: str) -> Event:
    """Return a piece of a message."""
    return {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": words}


class FakeInstance:
    """The instance. `script` is the log of every run that is started, or None for one that goes on after its start."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.runs: dict[str, FakeRun] = {}
        self.script: list[Event] | None = [text("hello\n")]
        self.faults: deque[Fault] = deque()
        self.refusals: dict[str, Refuse] = {}
        self.asked: list[Asked] = []
        self.readiness: tuple[int, dict[str, Any]] = (200, {"ready": True, "checks": []})
        self.ends_on_cancel = True
        self.page = 100
        self._server: ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()

    @property
    def url(self) -> str:
        """Return the address."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}"

    def up(self) -> None:
        """Listen on a new port, and say so in instance.json."""
        fake = self

        class Bound(_Handler):
            instance = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True).start()
        self.describe()

    def describe(self, pid: int | None = None, pid_started_at: int = 0) -> None:
        """Write instance.json; it names no living process unless a test says one."""
        me = current()
        info = InstanceInfo(
            url=self.url,
            ray_address="",
            ray_temp_dir="",
            namespace="outlast",
            pid=pid or me.pid,
            started_at=time.time_ns() // 1_000_000,
            version="0",
            boot_id=me.boot_id,
            pid_started_at=pid_started_at,
        )
        instance_file.write(self.data_dir, info)

    def down(self) -> None:
        """Stop listening, and break every connection."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in list(self._open):
                drop(connection)
            self._server = None

    def start(self, run_id: str, thread: str = "t", status: str = "running") -> FakeRun:
        """Make a run with nothing but its first chunk."""
        record = {
            "runId": run_id,
            "threadId": thread,
            "status": status,
            "createdAt": 1_700_000_000_000 + len(self.runs),
            "startedAt": 1_700_000_001_000,
            "finishedAt": None,
            "error": None,
            "harness": "shell",
            "claims": [{"epoch": 1, "reason": "start", "claimedAt": 1_700_000_001_000, "chunks": 3, "pid": 7}],
        }
        self.runs[run_id] = run = FakeRun(record, [ACCEPTED])
        return run

    def streams(self) -> list[Asked]:
        """Return the stream requests."""
        return [asked for asked in self.asked if asked.path == "/api/chat/ndjson"]


def drop(connection: socket.socket) -> None:
    """Break a connection, wherever it stands."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    instance: FakeInstance

    def setup(self) -> None:
        super().setup()
        self.instance._open.add(self.connection)

    def finish(self) -> None:
        self.instance._open.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        where = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        query = {name: values[0] for name, values in parse_qs(where.query).items()}
        asked = Asked(self.command, where.path, query, dict(self.headers), body)
        self.instance.asked.append(asked)
        try:
            self._route(asked)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, asked: Asked) -> None:
        fake = self.instance
        refusal = fake.refusals.get(asked.path)
        run = re.fullmatch(r"/api/runs/([^/]+)(/takeover)?", asked.path)
        if refusal is not None:
            self._refuse(refusal)
        elif asked.path == "/api/chat/ndjson":
            self._stream(asked)
        elif asked.path == "/api/runs":
            self._page(asked)
        elif run and run[1] not in fake.runs:
            self._refuse(Refuse(404, "run_not_found", f"There is no run {run[1]!r}."))
        elif run and run[2] and fake.runs[run[1]].ended:
            self._refuse(Refuse(409, "run_ended", f"Run {run[1]!r} has ended (completed)."))
        elif run:
            self._json(*((202, {"runId": run[1], "fromEpoch": 3}) if run[2] else (200, fake.runs[run[1]].wire)))
        elif asked.path == "/api/chat/cancel":
            if fake.ends_on_cancel:
                fake.runs[asked.body["runId"]].finish("aborted", {"message": "Cancelled.", "code": "aborted"})
            self._send(204, b"")
        elif asked.path == "/readyz":
            self._json(*fake.readiness)
        else:
            self._refuse(Refuse(404, "not_found", "There is nothing at this path."))

    def _page(self, asked: Asked) -> None:
        runs = [run.wire for run in reversed(self.instance.runs.values())]
        runs = [run for run in runs if asked.query.get("status") in (None, run["status"])]
        runs = [run for run in runs if asked.query.get("threadId") in (None, run["threadId"])]
        start, size = int(asked.query.get("cursor", 0)), min(int(asked.query["limit"]), self.instance.page)
        following = str(start + size) if start + size < len(runs) else None
        self._json(200, {"runs": runs[start : start + size], "next": following})

    # --- streams ---

    def _stream(self, asked: Asked) -> None:
        fake = self.instance
        fault = fake.faults.popleft() if fake.faults else None
        run_id = asked.headers.get("X-Run-Id") or asked.query["runId"]
        if isinstance(fault, Refuse):
            self._refuse(fault)
            return
        if asked.method == "POST" and run_id not in fake.runs:
            run = fake.start(run_id, asked.body["threadId"])
            if fake.script is not None:
                run.add(*fake.script)
                run.finish()
        if run_id not in fake.runs:
            self._refuse(Refuse(404, "run_not_found", f"There is no run {run_id!r}."))
            return
        place = asked.headers.get("Last-Event-ID") or asked.query.get("offset", "-1")
        position = 0 if place == "-1" else int(place.rpartition("_")[2])
        if position > len(fake.runs[run_id].chunks):
            self._refuse(Refuse(410, "offset_gone", f"Offset {place} is not in this log."))
            return
        self._log(fake.runs[run_id], position, fault)

    def _log(self, run: FakeRun, position: int, fault: Cut | Beats | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if isinstance(fault, Beats):
            for _ in range(fault.count):
                self._piece(b"\n")
        again = position == len(run.chunks) and run.ended
        if again:
            position -= 1  # the terminal chunk once more, under its own id, and then without one
        left = fault.after if isinstance(fault, Cut) else len(run.chunks) + 1_000_000
        while left and (events := run.past(position)[:left]):
            for event in events:
                position += 1
                self._piece(_line(position, event))
            left -= len(events)
        if again:
            self._piece(json.dumps(run.chunks[-1]).encode() + b"\n")
        if isinstance(fault, Cut) and not fault.clean:
            if fault.torn and position < len(run.chunks):
                self._piece(_line(position + 1, run.chunks[position])[:-9])
            self.close_connection = True
            self.wfile.flush()
            drop(self.connection)
            return
        self.wfile.write(b"0\r\n\r\n")

    def _piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    # --- answers ---

    def _refuse(self, refuse: Refuse) -> None:
        body = json.dumps({"error": {"code": refuse.code, "message": refuse.message}}).encode()
        self._send(refuse.status, body if refuse.body is None else refuse.body, refuse.retry_after)

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode())

    def _send(self, status: int, body: bytes, retry_after: str | None = None) -> None:
        self.send_response(status)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _line(position: int, event: Event) -> bytes:
    envelope = {"id": f"{0:016d}_{position:016d}", "chunk": event}
    return json.dumps(envelope, separators=(",", ":")).encode() + b"\n"
