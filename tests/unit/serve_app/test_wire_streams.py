"""What only a real server and a real socket show: how connections end, heartbeats, who has left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from unit.serve_app.asgi_client import chat_body
from unit.serve_app.local_cluster import world
from unit.serve_app.wire import Line, Wire, served
from waiting import until

FINAL = b"0\r\n\r\n"  # what ends a chunked body

both_parsers = pytest.mark.parametrize("http", ["httptools", "h11"])


async def begun(wire: Wire, run_id: str = "r-1", **headers: str) -> Line:
    line = await wire.line()
    line.request("POST", "/api/chat", chat_body(f"t-{run_id}"), X_Run_Id=run_id, **headers)
    await line.has(b"run.accepted")
    return line


@both_parsers
async def test_a_closed_log_ends_the_response_with_the_final_chunk(http: Any) -> None:
    async with world() as w, served(w.app, http) as wire:
        line = await begun(wire, Connection="close")
        driver = await w.driver("r-1")
        await driver.say("one")
        await line.has(b'"one"')
        assert FINAL not in line.seen
        await driver.finish()
        assert (await line.closed()).endswith(FINAL)


@both_parsers
async def test_a_drain_breaks_every_stream_without_the_final_chunk(http: Any) -> None:
    async with world() as w, served(w.app, http) as wire:
        lines = [await begun(wire)]
        for path in ("/api/chat?offset=-1&runId=r-1", "/api/chat/ndjson?offset=now&runId=r-1"):
            lines.append(await wire.line())
            lines[-1].request("GET", path)
            await lines[-1].has(b"200 OK")
        await until(lambda: w.shard.running["read"] == 1, "the shared read")
        w.replica.draining.set()
        for line in lines:
            seen = await line.closed()
            assert FINAL not in seen
            assert seen.endswith((b"1\r\n:\r\n", b"1\r\n{\r\n")), "some clients take this for a clean end"
        await until(lambda: w.shard.running["read"] == 0, "the end of the shared read")
        assert (await w.head("r-1")).cancel_requested is False


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/chat", chat_body()),
        ("GET", "/api/chat?offset=-1&runId=r-1", None),
        ("GET", "/api/chat/ndjson?offset=-1&runId=never", None),
    ],
)
async def test_a_new_stream_at_a_draining_replica_is_broken_the_same_way(method: str, path: str, body: Any) -> None:
    async with world() as w, served(w.app) as wire:
        w.replica.draining.set()
        line = await wire.line()
        headers = {"X_Run_Id": "r-1"} if body else {}
        line.request(method, path, body, **headers)
        seen = await line.closed()
        assert seen.startswith(b"HTTP/1.1 200 OK\r\n")
        assert FINAL not in seen
        assert seen.endswith((b"1\r\n:\r\n", b"1\r\n{\r\n"))
        assert await w.shard.real.record("r-1") is None


async def test_a_drain_also_breaks_the_stream_of_a_client_that_takes_nothing() -> None:
    async with world() as w, served(w.app) as wire:
        first = await begun(wire)
        stuck = await wire.line(receive_buffer=4096)
        stuck.request("GET", "/api/chat?offset=-1&runId=r-1")
        await stuck.has(b"run.accepted")
        stuck.pause()
        driver = await w.driver("r-1")
        for number in range(80):
            await driver.say(f"{number}" + "x" * 100_000)
        await first.has(b'"79xxx')
        w.replica.draining.set()
        await until(lambda: len(w.gateway.viewers._counts) == 0, "no viewer left")


@pytest.mark.parametrize(("path", "beat"), [("/api/chat", b"\r\n: \n\n\r\n"), ("/api/chat/ndjson", b"\r\n\n\r\n")])
async def test_heartbeats_keep_coming_while_nothing_else_does(path: str, beat: bytes) -> None:
    async with world(heartbeat_s=0.05) as w, served(w.app) as wire:
        line = await wire.line()
        loop = asyncio.get_running_loop()
        line.request("POST", path, chat_body(), X_Run_Id="r-1")
        await line.has(b"run.accepted")
        begun_at = loop.time()
        await line.has(beat, times=5)
        assert 0.15 < loop.time() - begun_at < 5


async def test_no_heartbeat_while_there_is_something_to_say() -> None:
    async with world(heartbeat_s=5) as w, served(w.app) as wire:
        line = await begun(wire)
        driver = await w.driver("r-1")
        for number in range(50):
            await driver.say(f"w{number}.")
            await line.has(b"w%d." % number)
        assert b"\r\n: \n\n\r\n" not in line.seen


@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_goes_away_is_noticed_at_once_and_is_no_cancel(reset: bool) -> None:
    async with world() as w, served(w.app) as wire:
        line, other = await begun(wire), await wire.line()
        other.request("GET", "/api/chat?offset=-1&runId=r-1")
        await other.has(b"run.accepted")
        line.close(reset=reset)
        await until(lambda: w.gateway.viewers.total == 1, "one viewer left", within_s=2)
        await (await w.driver("r-1")).say("on")
        await other.has(b'"on"')
        other.close(reset=reset)
        await until(lambda: w.gateway.viewers.total == 0, "no viewer left", within_s=2)
        await until(lambda: w.shard.running["read"] == 0, "no read left", within_s=2)
        assert len(w.gateway.channels) == 0
        head = await w.head("r-1")
        assert (head.status.value, head.cancel_requested) == ("running", False)


@both_parsers
async def test_a_body_over_the_limit_is_refused_before_it_has_come(http: Any) -> None:
    async with world(max_body_bytes=1024) as w, served(w.app, http) as wire:
        line = await wire.line()
        line.send(
            b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nX-Run-Id: r-1\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n400\r\n" + b"x" * 1024 + b"\r\n10\r\n" + b"x" * 16 + b"\r\n"
        )
        await line.has(b'"body_too_large"')
        assert b" 413 " in line.seen


@both_parsers
async def test_a_body_that_comes_too_slowly_is_refused_and_holds_nothing(http: Any) -> None:
    async with world(body_timeout_s=0.3) as w, served(w.app, http) as wire:
        line = await wire.line()
        line.send(
            b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nX-Run-Id: r-1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 60000\r\n\r\n"
        )

        def refused() -> bool:
            line.send(b" ")  # never a silence that a server's own bound on idle connections would notice
            return b'"body_too_slow"' in line.seen

        await until(refused, "a refusal")
        assert b" 408 " in line.seen
        assert b"connection: close" in line.seen
        await line.closed()
        assert await w.shard.real.record("r-1") is None


async def test_a_connection_serves_on_after_a_refusal() -> None:
    async with world() as w, served(w.app) as wire:
        line = await wire.line()
        line.request("GET", "/api/chat?offset=-1&runId=none")
        await line.has(b'"run_not_found"')
        line.request("GET", "/healthz")
        await line.has(b'{"ok":true}')
