"""Who comes back to a run is not told what Serve's proxy says of its replicas, but tried again, or cut."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app import proxy_guard
from serve_app.proxy_guard import Cut, Guard, middlewares
from serve_app.ray_environment import PROXY_GUARD

Step = Callable[[Receive, Send], object]
BACK = b"runId=run-1&offset=-1"
JSON, TEXT = b"application/json", b"text/plain"


def answers(status: int, kind: bytes = TEXT, body: bytes = b"x") -> Step:
    """Return a try that is answered whole."""

    async def step(_receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body})

    return step


async def silent(_receive: Receive, _send: Send) -> None:
    """What the proxy does when a replica dies: nothing; the HTTP server then says 500."""


async def fails(_receive: Receive, _send: Send) -> None:
    raise RuntimeError("a replica died")


async def breaks_off(_receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("a replica died in the middle")


class Proxy:
    """Serve's proxy, which does one step for each try; the last one again and again."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.tries = 0
        self.heard: list[Message] = []

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        step = self.steps[min(self.tries, len(self.steps) - 1)]
        self.tries += 1
        self.heard.append(await receive())
        await step(receive, send)  # type: ignore[misc]


class Client:
    """One request and what came of it."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.asked = 0

    async def receive(self) -> Message:
        self.asked += 1
        assert self.asked == 1, "the server tells a request once"
        return {"type": "http.request", "body": b"body", "more_body": False}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def ask(
    app: ASGIApp,
    method: str = "GET",
    path: str = "/api/chat",
    query: bytes = BACK,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Client:
    client = Client()
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": list(headers)}
    await Guard(app)(scope, client.receive, client.send)
    return client


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_guard, "TRIES_S", (0.0, 0.0))


@pytest.mark.parametrize("first", [silent, fails, answers(500), answers(503), answers(404, TEXT)])
async def test_a_reader_is_tried_again_with_the_same_request(first: Step) -> None:
    proxy = Proxy(first, answers(200, b"text/event-stream", b"id: 1"))
    client = await ask(proxy)
    assert (client.status, client.body, proxy.tries) == (200, b"id: 1", 2)
    assert proxy.heard[0] == proxy.heard[1], "also the second replica hears the request"


@pytest.mark.parametrize("always", [silent, fails, answers(500), answers(503), answers(404, TEXT)])
async def test_a_reader_whom_nobody_answers_is_cut_in_the_middle_of_a_stream(always: Step) -> None:
    proxy = Proxy(always)
    client = Client()
    scope = {"type": "http", "method": "GET", "path": "/x/api/chat/ndjson", "query_string": BACK, "headers": []}
    with pytest.raises(Cut):
        await Guard(proxy)(scope, client.receive, client.send)
    assert (client.status, client.body, proxy.tries) == (200, b"{", 3)
    assert client.sent[-1]["more_body"]


async def test_who_posts_with_a_last_event_id_is_cut_and_not_sent_twice() -> None:
    proxy = Proxy(fails)
    with pytest.raises(Cut):
        await ask(proxy, "POST", headers=[(b"last-event-id", b"1")])
    assert proxy.tries == 1


@pytest.mark.parametrize(
    "step", [answers(404, JSON), answers(410, JSON), answers(400, JSON), answers(204), answers(200)]
)
async def test_what_a_replica_says_is_passed_on(step: Step) -> None:
    proxy = Proxy(step)
    client = await ask(proxy)
    assert (client.status in (200, 204, 400, 404, 410), client.body, proxy.tries) == (True, b"x", 1)


async def test_a_stream_that_breaks_off_is_not_begun_again() -> None:
    proxy = Proxy(breaks_off)
    with pytest.raises(RuntimeError, match="in the middle"):
        await ask(proxy)
    assert proxy.tries == 1


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("POST", "/api/chat", b""),
        ("GET", "/api/runs", b""),
        ("GET", "/api/chat", b"threadId=t"),
        ("GET", "/another/app", BACK),
    ],
)
async def test_other_requests_are_left_alone(method: str, path: str, query: bytes) -> None:
    proxy = Proxy(answers(503))
    client = await ask(proxy, method, path, query)
    assert (client.status, proxy.tries) == (503, 1)
    with pytest.raises(RuntimeError):
        await ask(Proxy(fails), method, path, query)


def test_serve_finds_it_by_its_name() -> None:
    module, _, attribute = PROXY_GUARD.partition(":")
    assert getattr(importlib.import_module(module), attribute) is middlewares
    assert [one.cls for one in middlewares()] == [Guard]
