"""An ASGI client that sees a response while it comes, and can leave in the middle. httpx's own waits for the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Message
from waiting import until

from serve_app.stream import StreamCut

HOST = "127.0.0.1:8000"


class Call:
    """One request under way. `body` grows; `ended` is true after a clean end, `cut` after a broken one."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.writes: list[bytes] = []
        self.ended = False
        self.cut = False
        self.lost: Exception | None = None  # what receiving raises once it left
        self.task: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self.asked_for_body = False
        self._room = asyncio.Event()
        self._room.set()
        self._body = asyncio.Event()
        self._body.set()

    def stall(self) -> None:
        """Take nothing more, as a client whose window is full."""
        self._room.clear()

    def resume(self) -> None:
        """Take bytes again."""
        self._room.set()

    def hold(self) -> None:
        """Send no body yet, as a client that is slow."""
        self._body.clear()

    def send_body(self) -> None:
        """Send what was held."""
        self._body.set()

    def leave(self, error: Exception | None = None) -> None:
        """Close the connection; `error` is what the server's side then raises."""
        self.lost = error
        self._left.set()

    async def done(self) -> Call:
        """Wait until the app is through with the request."""
        assert self.task is not None
        await until(self.task.done, "the request's end")
        return self

    async def has(self, text: bytes) -> Call:
        """Wait until the body holds `text`."""
        await until(lambda: text in self.body, f"{text!r} in the body, which is {self.body[-300:]!r}")
        return self

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Return the code of an error."""
        code: str = self.json()["error"]["code"]
        return code

    def ids(self) -> list[str]:
        """Return the offsets of the frames so far, of either format."""
        if "ndjson" in self.headers["content-type"]:
            lines = [json.loads(line) for line in self.body.split(b"\n") if line]
            return [line["id"] for line in lines if "id" in line]
        return [line[4:].decode() for line in self.body.split(b"\n") if line.startswith(b"id: ")]

    def chunks(self) -> list[dict[str, Any]]:
        """Return the chunks so far, of either format."""
        if "ndjson" in self.headers["content-type"]:
            lines = [json.loads(line) for line in self.body.split(b"\n") if line]
            return [line.get("chunk", line) for line in lines]
        return [json.loads(line[6:]) for line in self.body.split(b"\n") if line.startswith(b"data: ")]

    async def run(self, app: ASGIApp, scope: dict[str, Any], parts: list[bytes], *, unfinished: bool = False) -> None:
        sent = list(parts)

        async def receive() -> Message:
            self.asked_for_body = True
            await self._body.wait()
            if sent:
                part = sent.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(sent) or unfinished}
            await self._left.wait()
            if self.lost is not None:
                raise self.lost
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await self._room.wait()
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                self.writes.append(message.get("body", b""))
                self.body += self.writes[-1]
                self.ended = not message.get("more_body", False)

        try:
            await app(scope, receive, send)
        except StreamCut:
            self.cut = True


def open_call(
    app: ASGIApp,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    json_body: Any = None,
    raw: bytes | list[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    unfinished: bool = False,
) -> Call:
    """Send a request and return at once. `unfinished`: its body never ends."""
    sent = {"host": HOST, **{name.lower(): value for name, value in (headers or {}).items()}}
    if json_body is not None:
        raw = json.dumps(json_body).encode()
        sent.setdefault("content-type", "application/json")
    parts = raw if isinstance(raw, list) else [raw or b""]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": urlencode(query or {}).encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items() if value],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }
    call = Call()
    call.task = asyncio.create_task(call.run(app, scope, parts, unfinished=unfinished))
    return call


async def fetch(app: ASGIApp, method: str, path: str, **request: Any) -> Call:
    """Send a request and return when its response has ended."""
    return await open_call(app, method, path, **request).done()


def chat_body(thread_id: str = "t-1", text: str = "echo hi", **more: Any) -> dict[str, Any]:
    """Return a body that starts a run."""
    return {"threadId": thread_id, "messages": [{"id": "u-1", "role": "user", "content": text}], **more}


def post(app: ASGIApp, run_id: str | None = "r-1", path: str = "/api/chat", **request: Any) -> Call:
    """Start a run and return while it streams."""
    headers = {**({"X-Run-Id": run_id} if run_id else {}), **request.pop("headers", {})}
    body = request.pop("json_body", None) or chat_body()
    return open_call(app, "POST", path, json_body=body, headers=headers, **request)


def attach(app: ASGIApp, run_id: str = "r-1", offset: str = "-1", path: str = "/api/chat", **request: Any) -> Call:
    """Attach to a run and return while it streams."""
    query = {"runId": run_id, **({"offset": offset} if offset else {})}
    return open_call(app, "GET", path, query=query, **request)


def offset(position: int) -> str:
    """Return the offset after `position` chunks."""
    return f"{0:016d}_{position:016d}"
