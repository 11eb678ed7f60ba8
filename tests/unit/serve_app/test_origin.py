"""Another site's page can neither start a run nor read one; an allowed one can."""

from __future__ import annotations

import pytest
from unit.serve_app.asgi_client import Call, chat_body, fetch, open_call, post
from unit.serve_app.local_cluster import World, world

from serve_app.origin import host_name, same_origin


async def answer(w: World, **headers: str) -> Call:
    return await fetch(w.app, "GET", "/healthz", headers={key.replace("_", "-"): text for key, text in headers.items()})


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.8.9.1:1",
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "[::1]:8000",
        "agents.example:443",
        "box",
        "10.1.2.3:8000",
    ],
)
async def test_names_of_this_server(host: str) -> None:
    async with world(allowed_hosts="agents.example, box:8000", host="10.1.2.3") as w:
        assert (await answer(w, host=host)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.example:8000",
        "10.1.2.4",
        "127.0.0.1.evil.example",
        "user@localhost",
        "localhost/x",
        "localhost:port",
        "[::2]",
        "",
    ],
)
async def test_a_foreign_host_is_refused(host: str) -> None:
    async with world(allowed_hosts="agents.example") as w:
        call = await answer(w, host=host)
        assert (call.status, call.code) == (403, "origin_refused")


async def test_two_hosts_are_none() -> None:
    async with world() as w:
        call = Call()
        scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b"", "root_path": ""}
        hosts = [(b"host", b"localhost"), (b"host", b"localhost")]
        await call.run(w.app, {**scope, "headers": hosts, "http_version": "1.1", "scheme": "http"}, [b""])
        assert call.status == 403


async def test_behind_a_wildcard_address_any_ip_literal_is_a_name_and_a_foreign_name_is_not() -> None:
    async with world(host="0.0.0.0") as w:
        assert (await answer(w, host="10.9.8.7:8000")).status == 200
        assert (await answer(w, host="[2001:db8::1]:8000")).status == 200
        assert (await answer(w, host="evil.example")).status == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8000", "file://", "http://[", "x"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_a_foreign_origin_is_refused_and_creates_nothing(origin: str, method: str) -> None:
    async with world(allowed_origins="http://app.example") as w:
        call = open_call(
            w.app,
            method,
            "/api/chat",
            query={"threadId": "t"} if method == "GET" else None,
            json_body=chat_body(runId="r-1") if method == "POST" else None,
            headers={"Origin": origin, "Access-Control-Request-Method": "POST"},
        )
        await call.done()
        assert (call.status, call.code) == (403, "origin_refused")
        assert "access-control-allow-origin" not in call.headers
        assert await w.shard.real.record("r-1") is None


async def test_a_form_post_of_another_site_is_refused_also_without_an_origin() -> None:
    async with world() as w:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        plain = await fetch(w.app, "POST", "/api/chat", raw=b"a=b", headers=form)
        assert plain.status == 415
        marked = await fetch(
            w.app,
            "POST",
            "/api/runs/r-1/takeover",
            headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        )
        assert marked.status == 403


async def test_a_link_from_another_site_may_be_followed() -> None:
    async with world() as w:
        call = await answer(w, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
        assert call.status == 200


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8000", "http://app.example", "https://App.example"])
async def test_an_allowed_origin_may_call_and_read_the_run_id(origin: str) -> None:
    async with world(allowed_origins="http://app.example/, https://app.example") as w:
        call = await post(w.app, headers={"Origin": origin}).has(b"run.accepted")
        assert call.headers["access-control-allow-origin"] == origin
        assert "X-Run-Id" in call.headers["access-control-expose-headers"]
        assert "Origin" in call.headers["vary"]
        call.leave()
        await call.done()
        error = await fetch(w.app, "GET", "/api/runs/none", headers={"Origin": origin})
        assert error.status == 404
        assert error.headers["access-control-allow-origin"] == origin


async def test_a_preflight_of_an_allowed_origin_names_what_the_clients_send() -> None:
    async with world(allowed_origins="http://app.example") as w:
        call = await fetch(
            w.app,
            "OPTIONS",
            "/api/chat",
            headers={
                "Origin": "http://app.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type,last-event-id,x-run-id",
            },
        )
    assert call.status == 204
    assert call.headers["access-control-allow-origin"] == "http://app.example"
    assert call.headers["access-control-allow-methods"] == "GET, POST, DELETE"
    allowed = {name.strip().lower() for name in call.headers["access-control-allow-headers"].split(",")}
    assert {"content-type", "last-event-id", "x-run-id"} <= allowed
    assert "*" not in call.headers.values()


async def test_options_without_an_origin_is_no_preflight() -> None:
    async with world() as w:
        assert (await fetch(w.app, "OPTIONS", "/api/chat")).status == 405


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://a", "a", True),
        ("http://a:80", "a", True),
        ("https://a", "a:443", True),
        ("https://a", "a", True),
        ("http://A", "a", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://a:81", "a", False),
        ("http://a", "a:81", False),
        ("http://a", "b", False),
        ("ws://a", "a", False),
        ("null", "null", False),
        ("http://a:x", "a", False),
    ],
)
def test_same_origin(origin: str, host: str, same: bool) -> None:
    assert same_origin(origin, host) is same


def test_host_names() -> None:
    assert host_name("A.b:80") == "a.b"
    assert host_name("[::1]") == "::1"
    assert host_name("a:b") is None
    assert host_name("") is None
