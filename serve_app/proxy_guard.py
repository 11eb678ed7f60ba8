"""What stands in Ray Serve's own proxy: who comes back to a run is never told an error that is not the run's.

Serve's proxy answers for replicas. One that dies before its answer has begun becomes 500 (no status is sent at all, and
the HTTP server fills in), none left 503, and an application that is not there yet, or not any more, 404. A client that
re-joins takes each for the last word (design 8). So such a request is tried again with another replica, and if nobody
takes it within TRIES_S, the connection is cut in the middle of a stream: then the client comes back.

Serve loads it by RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH (`middlewares` below), which must be in the environment of
the cluster's nodes. Where HAProxy is in front (`proxy_program.py`), that sees to it, and this is behind it.

Deliberately not: anything for other requests. Ours are known by how their path ends and that they name a run, since
Serve's proxies are not told under which prefix we are. So a request of another application on the same Serve whose path
ends like ours and that names a run too is treated the same: it is cut instead of hearing 5xx, or a 404 that is no JSON.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.frames import NDJSON, SSE, Format

log = logging.getLogger("outlast.gateway")

PATHS = ("/api/chat", "/api/chat/ndjson")
# Between two tries. Together they stay below the 2 s after which a client that re-joins gives up on a silent stream.
TRIES_S = (0.02, 0.1, 0.4, 0.8)


class Cut(Exception):
    """Raised out of an answer that was begun: the server closes the connection in mid-body."""


def middlewares() -> list[Middleware]:
    """Return what Serve puts around its proxy."""
    return [Middleware(Guard)]


class Guard:
    """The proxy's application, with a second chance for those that come back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not _comes_back(scope):
            await self._app(scope, receive, send)
            return
        asked = _Asked(receive)
        for delay_s in (*(TRIES_S if scope["method"] == "GET" else ()), None):
            answer = _Answer(send)
            await self._try(scope, asked, answer)
            if answer.begun:
                return
            if delay_s is not None:
                await asyncio.sleep(delay_s)
        log.warning("no replica answers who comes back to a run: the connection is cut")
        await _cut(send, _format(scope))

    async def _try(self, scope: Scope, asked: _Asked, answer: _Answer) -> None:
        try:
            await self._app(dict(scope), asked.again(), answer.send)
        except Exception:
            if answer.begun:
                raise
            log.debug("a request failed before its answer had begun", exc_info=True)


class _Asked:
    """The request's own messages, for each try anew."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._heard: list[Message] = []

    def again(self) -> Receive:
        """Return a `receive` that begins with the request."""
        replayed = iter(list(self._heard))

        async def receive() -> Message:
            for message in replayed:
                return message
            message = await self._receive()
            if message["type"] == "http.request":
                self._heard.append(message)
            return message

        return receive


class _Answer:
    """Lets an answer through unless it is the proxy's own that there is no replica."""

    def __init__(self, send: Send) -> None:
        self.begun = False
        self._send = send
        self._dropped = False

    async def send(self, message: Message) -> None:
        """Pass `message` on, or drop it with the rest of its answer."""
        if message["type"] == "http.response.start":
            self._dropped = _of_the_proxy(message)
            self.begun = not self._dropped
        if not self._dropped:
            await self._send(message)


def _comes_back(scope: Scope) -> bool:
    """Return whether somebody asks for a run that it may know (design 8)."""
    if scope["type"] != "http" or not str(scope["path"]).endswith(PATHS):
        return False
    names = {name.lower() for name, _ in scope["headers"]}
    if scope["method"] == "GET":
        return b"x-run-id" in names or "runId" in parse_qs(scope["query_string"].decode("latin-1"))
    return scope["method"] == "POST" and b"last-event-id" in names


def _of_the_proxy(start: Message) -> bool:
    """Return whether no application of ours says so: it never tells such a client 5xx, and its errors are JSON."""
    kinds = [value for name, value in start["headers"] if name.lower() == b"content-type"]
    no_such_route = start["status"] == HTTPStatus.NOT_FOUND and kinds != [b"application/json"]
    return bool(no_such_route or start["status"] >= HTTPStatus.INTERNAL_SERVER_ERROR)


def _format(scope: Scope) -> Format:
    accept = b",".join(value for name, value in scope["headers"] if name.lower() == b"accept")
    ndjson = str(scope["path"]).endswith("/ndjson") or NDJSON.media_type.encode() in accept
    return NDJSON if ndjson else SSE


async def _cut(send: Send, format: Format) -> None:
    headers = [(b"content-type", format.media_type.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": format.torn, "more_body": True})
    raise Cut
