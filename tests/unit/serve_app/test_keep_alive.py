"""Whether a run's sandbox is kept if it completes: what a request may say of it (P19)."""

from __future__ import annotations

import pytest
from unit.serve_app.asgi_client import chat_body, fetch, post
from unit.serve_app.local_cluster import world


@pytest.mark.parametrize(
    ("props", "keep_s"),
    [
        ({}, 0),
        ({"keepAlive": True}, 70),
        ({"keepAlive": False}, 0),
        ({"destroyOnComplete": False}, 70),
        ({"destroyOnComplete": True}, 0),
        ({"keepAlive": True, "destroyOnComplete": False}, 70),
    ],
)
async def test_a_sandbox_is_kept_if_the_request_says_so(props: dict[str, bool], keep_s: int) -> None:
    async with world(keep_alive_s=70) as w:
        call = await post(w.app, json_body=chat_body(forwardedProps=props)).has(b"run.accepted")
        call.leave()
        await call.done()
        stored = w.store.read_run("r-1")
        assert stored is not None
        assert stored[1].keep_alive_s == keep_s
        record = (await fetch(w.app, "GET", "/api/runs/r-1")).json()
        assert record["sandboxKeptUntil"] is None, "it has not ended"
