"""Whatever is wrong with a request is answered by its rule, in one shape, and nothing is half-created."""

from __future__ import annotations

import json
from typing import Any

import pytest
from unit.serve_app.asgi_client import Call, attach, chat_body, fetch, offset, open_call, post
from unit.serve_app.local_cluster import World, world

LONG = "x" * 129
USER = {"role": "user", "content": "hi"}


async def refused(w: World, call: Call, status: int, code: str, *names: str) -> None:
    """Assert the answer, and that no run exists because of the request."""
    await call.done()
    assert (call.status, call.code) == (status, code), call.body
    assert call.headers["content-type"] == "application/json"
    error = call.json()["error"]
    assert set(error) == {"code", "message"}
    for name in names:
        assert name in error["message"]
    assert "Traceback" not in error["message"]
    assert (await w.shard.real.stats())["runs"] == 0
    assert w.supervisor.told == []


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "json_invalid"),
        (b"{", "json_invalid"),
        (b'{"a":1}x', "json_invalid"),
        (b"\xff\xfe", "json_invalid"),
        (b'{"a": NaN}', "json_invalid"),
        (b'{"a": 1e400}', "json_invalid"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "json_invalid"),
        (b"[" * 100_000, "json_invalid"),
        (b"[]", "body_invalid"),
        (b"null", "body_invalid"),
        (b'"text"', "body_invalid"),
    ],
)
@pytest.mark.parametrize("path", ["/api/chat", "/api/chat/ndjson", "/api/chat/cancel"])
async def test_what_is_no_json_object(path: str, raw: bytes, code: str) -> None:
    async with world() as w:
        headers = {"Content-Type": "application/json", "X-Run-Id": "r-1"}
        await refused(w, open_call(w.app, "POST", path, raw=raw, headers=headers), 400, code)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "text/json"]
)
@pytest.mark.parametrize("path", ["/api/chat", "/api/chat/ndjson", "/api/chat/cancel"])
async def test_a_body_that_is_not_declared_as_json(path: str, kind: str) -> None:
    async with world() as w:
        headers = {"Content-Type": kind, "X-Run-Id": "r-1"}
        call = open_call(w.app, "POST", path, raw=json.dumps(chat_body()).encode(), headers=headers)
        await refused(w, call, 415, "media_type_unsupported", "application/json")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/ld+json"])
async def test_json_by_any_of_its_names_is_taken(kind: str) -> None:
    async with world() as w:
        call = await post(w.app, headers={"Content-Type": kind}).has(b"run.accepted")
        call.leave()
        await call.done()


async def test_a_body_over_the_limit_is_refused_while_it_comes_and_before() -> None:
    async with world(max_body_bytes=1024) as w:
        headers = {"Content-Type": "application/json", "X-Run-Id": "r-1"}
        parts = [b'{"messages": "', *([b"x" * 600] * 3), b'"}']
        await refused(
            w, open_call(w.app, "POST", "/api/chat", raw=parts, headers=headers), 413, "body_too_large", "1024"
        )
        declared = {**headers, "Content-Length": "1025"}
        call = open_call(w.app, "POST", "/api/chat", raw=[b"{", b"", b""], headers=declared)
        await refused(w, call, 413, "body_too_large", "OUTLAST_MAX_BODY_BYTES")


async def test_a_client_that_leaves_while_it_sends_its_body_is_no_failure() -> None:
    async with world() as w:
        headers = {"Content-Type": "application/json", "X-Run-Id": "r-1"}
        call = open_call(w.app, "POST", "/api/chat", raw=[b"{"], headers=headers, unfinished=True)
        call.leave()
        await call.done()
        assert call.task is not None
        assert call.task.exception() is None
        assert await w.shard.real.record("r-1") is None


@pytest.mark.parametrize(
    ("header", "inside", "code"),
    [
        (None, None, "run_id_missing"),
        ("a", "b", "run_id_differs"),
        ("a b", None, "run_id_invalid"),
        ("a/b", None, "run_id_invalid"),
        (LONG, None, "run_id_invalid"),
        (None, LONG, "run_id_invalid"),
        (None, "", "run_id_invalid"),
        (None, 5, "run_id_invalid"),
        (None, "ü", "run_id_invalid"),
        (None, "a\n", "run_id_invalid"),
    ],
)
async def test_run_ids(header: str | None, inside: Any, code: str) -> None:
    async with world() as w:
        more = {} if inside is None else {"runId": inside}
        call = post(w.app, header, json_body=chat_body(**more))
        await refused(w, call, 400, code, *(("X-Run-Id", "runId") if code != "run_id_invalid" else ()))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"threadId": None}, "thread_id_invalid"),
        ({"threadId": ""}, "thread_id_invalid"),
        ({"threadId": LONG}, "thread_id_invalid"),
        ({"threadId": "a b"}, "thread_id_invalid"),
        ({"threadId": 7}, "thread_id_invalid"),
        ({"messages": None}, "message_invalid"),
        ({"messages": []}, "message_invalid"),
        ({"messages": "hi"}, "message_invalid"),
        ({"messages": ["hi"]}, "message_invalid"),
        ({"messages": [{"content": "hi"}]}, "message_invalid"),
        ({"messages": [{"role": "boss", "content": "hi"}]}, "message_invalid"),
        ({"messages": [{"role": "user", "content": 5}]}, "message_invalid"),
        ({"messages": [{"role": "user", "content": "  \n"}]}, "message_invalid"),
        ({"messages": [{"role": "user", "content": []}]}, "message_invalid"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "text": "x"}]}]}, "message_invalid"),
        ({"messages": [USER, {"role": "assistant", "content": "hi"}]}, "message_invalid"),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "message_invalid"),
        ({"tools": {}}, "input_invalid"),
        ({"context": "x"}, "input_invalid"),
        ({"resume": [{"interruptId": "i", "status": "resolved"}]}, "resume_invalid"),
        ({"forwardedProps": []}, "option_invalid"),
        ({"forwardedProps": "x"}, "option_invalid"),
        ({"forwardedProps": {"tools": ["undeclared"]}}, "option_invalid"),
        ({"forwardedProps": {"tools": "add"}}, "option_invalid"),
        ({"forwardedProps": {"harness": "nobody"}}, "harness_unknown"),
        ({"forwardedProps": {"harness": 1}}, "option_invalid"),
        ({"forwardedProps": {"onDisconnect": "die"}}, "option_invalid"),
        ({"forwardedProps": {"onBusy": "wait"}}, "option_invalid"),
        ({"forwardedProps": {"detachedTtlS": -1}}, "option_invalid"),
        ({"forwardedProps": {"detachedTtlS": 1.5}}, "option_invalid"),
        ({"forwardedProps": {"detachedTtlS": "5"}}, "option_invalid"),
        ({"forwardedProps": {"detachedTtlS": True}}, "option_invalid"),
        ({"forwardedProps": {"runLimitS": 2**70}}, "option_invalid"),
        ({"forwardedProps": {"keepAlive": "yes"}}, "option_invalid"),
        ({"forwardedProps": {"keepAlive": True, "destroyOnComplete": True}}, "option_invalid"),
        ({"forwardedProps": {"keepAlive": False, "destroyOnComplete": False}}, "option_invalid"),
        ({"forwardedProps": {"workspace": "/srv"}}, "option_invalid"),
        ({"forwardedProps": {"workspace": {"directory": "srv"}}}, "option_invalid"),
        ({"forwardedProps": {"workspace": {"directory": "/srv/not/allowed"}}}, "option_invalid"),
        ({"forwardedProps": {"env": "PATH"}}, "option_invalid"),
        ({"forwardedProps": {"env": {"A_B": 1}}}, "option_invalid"),
        ({"forwardedProps": {"env": ["NOT_ALLOWED"]}}, "option_invalid"),
        ({"forwardedProps": {"env": {"RAY_ADDRESS": "x"}}}, "option_invalid"),
    ],
)
async def test_fields_and_options(change: dict[str, Any], code: str) -> None:
    async with world(agent_env="A_B,RAY_ADDRESS") as w:
        await refused(w, post(w.app, json_body={**chat_body(), **change}), 400, code)


@pytest.mark.parametrize("field", ["threadId", "messages"])
async def test_fields_that_must_be_there(field: str) -> None:
    async with world() as w:
        body = chat_body()
        del body[field]
        await refused(
            w, post(w.app, json_body=body), 400, {"threadId": "thread_id_missing"}.get(field, "message_invalid"), field
        )


async def test_everything_else_may_be_absent_and_unknown_fields_are_ignored() -> None:
    async with world() as w:
        body = {"threadId": "t-1", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
        call = await post(w.app, json_body={**body, "protocolVersion": "1.0", "later": {"x": 1}}).has(b"run.accepted")
        record = (await fetch(w.app, "GET", "/api/runs/r-1")).json()
        assert record["input"] == body
        call.leave()
        await call.done()


async def test_half_an_emoji_does_not_end_a_conversation() -> None:
    raw = b'{"threadId":"t-1","messages":[{"role":"user","content":"cut \\ud83d and \\ud83d\\ude00 whole"}]}'
    async with world() as w:
        headers = {"Content-Type": "application/json", "X-Run-Id": "r-1"}
        call = await open_call(w.app, "POST", "/api/chat", raw=raw, headers=headers).has(b"run.accepted")
        record = (await fetch(w.app, "GET", "/api/runs/r-1")).json()
        assert record["input"]["messages"][0]["content"] == "cut \ufffd and 😀 whole"
        call.leave()
        await call.done()


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ({}, {}, 400, "offset_missing"),
        ({"runId": "r-1"}, {}, 400, "offset_missing"),
        ({"offset": "-1"}, {}, 400, "run_id_missing"),
        ({"offset": "-1", "runId": "a b"}, {}, 400, "run_id_invalid"),
        ({"offset": "", "runId": "r-1"}, {}, 400, "offset_invalid"),
        ({"offset": "5", "runId": "r-1"}, {}, 400, "offset_invalid"),
        ({"offset": "0_0", "runId": "r-1"}, {}, 400, "offset_invalid"),
        ({"offset": offset(1) + " ", "runId": "r-1"}, {}, 400, "offset_invalid"),
        ({"runId": "r-1"}, {"Last-Event-ID": "x"}, 400, "offset_invalid"),
        ({"offset": "-1", "runId": "r-1"}, {"Last-Event-ID": "x"}, 400, "offset_invalid"),
        ({"offset": "-1", "runId": "none"}, {}, 404, "run_not_found"),
        ({"offset": "-1"}, {"X-Run-Id": "none"}, 404, "run_not_found"),
        ({"threadId": "a b"}, {}, 400, "thread_id_invalid"),
    ],
)
@pytest.mark.parametrize("path", ["/api/chat", "/api/chat/ndjson"])
async def test_attaches(path: str, query: dict[str, str], headers: dict[str, str], status: int, code: str) -> None:
    async with world() as w:
        call = open_call(w.app, "GET", path, query=query, headers=headers)
        names = {"offset_missing": ("Last-Event-ID", "offset"), "run_id_missing": ("X-Run-Id", "runId")}
        await refused(w, call, status, code, *names.get(code, ()))


async def test_an_offset_that_is_not_in_the_log_is_gone() -> None:
    async with world() as w:
        call = await post(w.app).has(b"run.accepted")
        for bad in (offset(2), f"{1:016d}_{1:016d}"):
            gone = await attach(w.app, offset=bad).done()
            assert (gone.status, gone.code) == (410, "offset_gone")
            gone = await post(w.app, headers={"Last-Event-ID": bad}).done()
            assert (gone.status, gone.code) == (410, "offset_gone")
        call.leave()
        await call.done()


async def test_a_reconnect_of_an_unknown_run_starts_nothing() -> None:
    async with world() as w:
        await refused(w, post(w.app, headers={"Last-Event-ID": offset(1)}), 404, "run_not_found")


async def test_a_run_id_with_another_body() -> None:
    async with world() as w:
        first = await post(w.app).has(b"run.accepted")
        other = await post(w.app, json_body=chat_body(text="something else")).done()
        assert (other.status, other.code) == (409, "run_exists")
        first.leave()
        await first.done()


async def test_a_second_run_on_a_busy_thread() -> None:
    async with world() as w:
        first = await post(w.app).has(b"run.accepted")
        second = await post(w.app, "r-2").done()
        assert (second.status, second.code) == (409, "thread_active")
        assert "r-1" in second.json()["error"]["message"]
        assert await w.shard.real.record("r-2") is None
        first.leave()
        await first.done()


async def test_too_many_runs() -> None:
    async with world(max_runs=1) as w:
        first = await post(w.app).has(b"run.accepted")
        second = await post(w.app, "r-2", json_body=chat_body("t-2")).done()
        assert (second.status, second.code) == (429, "too_many_runs")
        assert int(second.headers["retry-after"]) > 0
        first.leave()
        await first.done()


async def test_too_many_viewers_stop_fresh_starts_and_nobody_who_comes_back() -> None:
    async with world(max_viewers=1) as w:
        first = await post(w.app).has(b"run.accepted")
        fresh = await post(w.app, "r-2", json_body=chat_body("t-2")).done()
        assert (fresh.status, fresh.code) == (429, "too_many_viewers")
        assert int(fresh.headers["retry-after"]) > 0
        back = await attach(w.app).has(b"run.accepted")
        beyond = await attach(w.app).done()
        assert (beyond.status, beyond.cut) == (200, True)
        for call in (first, back):
            call.leave()
            await call.done()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/api/nothing", 404, "not_found"),
        ("POST", "/v1/stream/x", 404, "not_found"),
        ("GET", "/api/chat/", 404, "not_found"),
        ("DELETE", "/api/chat", 405, "method_not_allowed"),
        ("GET", "/api/chat/cancel", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/api/chat/active", 400, "thread_id_invalid"),
        ("GET", "/api/runs/none", 404, "run_not_found"),
        ("GET", "/api/runs/a b", 404, "run_not_found"),
        ("GET", "/api/runs/none/stderr", 404, "run_not_found"),
        ("POST", "/api/runs/none/takeover", 404, "run_not_found"),
        ("GET", "/api/threads/none", 404, "thread_not_found"),
        ("GET", "/api/threads/a b", 400, "thread_id_invalid"),
    ],
)
async def test_paths(method: str, path: str, status: int, code: str) -> None:
    async with world() as w:
        await refused(w, open_call(w.app, method, path), status, code)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"status": "done"}, "status_invalid"),
        ({"limit": "0"}, "limit_invalid"),
        ({"limit": "201"}, "limit_invalid"),
        ({"limit": "ten"}, "limit_invalid"),
        ({"limit": "1" * 5000}, "limit_invalid"),
        ({"limit": "\u0665"}, "limit_invalid"),
        ({"threadId": "a b"}, "thread_id_invalid"),
        ({"cursor": "x"}, "cursor_invalid"),
    ],
)
async def test_pages(query: dict[str, str], code: str) -> None:
    async with world() as w:
        await refused(w, open_call(w.app, "GET", "/api/runs", query=query), 400, code)


@pytest.mark.parametrize(
    "body", [{}, {"threadId": None}, {"threadId": "a b"}, {"runId": "a b"}, {"runId": 5}, {"threadId": ["t"]}]
)
async def test_a_cancel_of_nothing_nameable(body: dict[str, Any]) -> None:
    async with world() as w:
        call = await fetch(w.app, "POST", "/api/chat/cancel", json_body=body)
        assert call.status == 400
        assert call.code in {"input_invalid", "thread_id_invalid", "run_id_invalid"}
