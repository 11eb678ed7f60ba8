"""Whoever may not see a run does not see it, on any route; whoever is nobody sees nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route
from unit.serve_app.asgi_client import Call, attach, chat_body, fetch, open_call, post
from unit.serve_app.local_cluster import World, world
from waiting import until

from runtime.settings import Settings
from serve_app import gateway as gateway_module
from serve_app.access import Access
from serve_app.app import build_app
from serve_app.replica import Replica
from serve_app.sessions import Sessions
from serve_app.tokens import Keys, Tokens, digest

ALICE, BOB, OPERATOR = "a" * 43, "b" * 43, "o" * 43
THEIRS, NOBODYS = "r-1", "x-9"  # run ids, and thread ids


def line(owner: str, token: str) -> str:
    return f"{owner} sha256:{digest(token).hex()}\n"


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


@asynccontextmanager
async def guarded(tmp_path: Path, **settings: Any) -> AsyncIterator[World]:
    """A world of two owners, in which alice has a run of her own in the thread of the same name."""
    path = tmp_path / "tokens"
    write(path, line("alice", ALICE) + line("bob", BOB))
    keys = Keys.of(OPERATOR)
    async with world(access=Access(Tokens(path, keys.operator), Sessions(keys.sessions)), **settings) as w:
        call = post(w.app, THEIRS, json_body=chat_body(THEIRS, runId=THEIRS), headers=of(ALICE))
        await call.has(b"run.accepted")
        call.leave()
        await call.done()
        yield w


def of(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class Try(NamedTuple):
    """A request about a run, and what an owner who may not see it is answered."""

    status: int
    ask: Callable[[World, str, dict[str, str]], Coroutine[Any, Any, Call]]
    says: Any = None


def get(path: str, **query: str) -> Callable[[World, str, dict[str, str]], Coroutine[Any, Any, Call]]:
    async def ask(w: World, name: str, headers: dict[str, str]) -> Call:
        asked = {key: value.format(name) for key, value in query.items()}
        return await fetch(w.app, "GET", path.format(name), query=asked, headers=headers)

    return ask


def send(path: str, body: Any = None) -> Callable[[World, str, dict[str, str]], Coroutine[Any, Any, Call]]:
    async def ask(w: World, name: str, headers: dict[str, str]) -> Call:
        sent = None if body is None else {key: value.format(name) for key, value in body.items()}
        return await fetch(w.app, "POST", path.format(name), json_body=sent, headers=headers)

    return ask


def come_back(path: str) -> Callable[[World, str, dict[str, str]], Coroutine[Any, Any, Call]]:
    async def ask(w: World, name: str, headers: dict[str, str]) -> Call:
        headers = {**headers, "Last-Event-ID": "-1"}
        return await fetch(w.app, "POST", path, json_body=chat_body(name, runId=name), headers=headers)

    return ask


CANCELLED = 204
EMPTY: dict[str, Any] = {"messages": [], "activeRun": None, "interrupts": None}
# By method and path; what another owner's run must look like there is what a run that nobody has looks like.
OF_OWNERS: dict[tuple[str, str], list[Try]] = {
    ("POST", "/api/chat"): [Try(404, come_back("/api/chat"))],
    ("POST", "/api/chat/ndjson"): [Try(404, come_back("/api/chat/ndjson"))],
    ("GET", "/api/chat"): [
        Try(404, get("/api/chat", runId="{}", offset="-1")),
        Try(404, get("/api/chat", runId="{}", offset="now")),
        Try(404, get("/api/chat", runId="{}", offset=f"{0:016d}_{9:016d}")),
        Try(200, get("/api/chat", threadId="{}"), EMPTY),
    ],
    ("GET", "/api/chat/ndjson"): [
        Try(404, get("/api/chat/ndjson", runId="{}", offset="-1")),
        Try(200, get("/api/chat/ndjson", threadId="{}"), EMPTY),
    ],
    ("GET", "/api/chat/active"): [Try(200, get("/api/chat/active", threadId="{}"), {"runId": None})],
    ("POST", "/api/chat/cancel"): [
        Try(204, send("/api/chat/cancel", {"runId": "{}"})),
        Try(204, send("/api/chat/cancel", {"threadId": "{}"})),
    ],
    ("GET", "/api/threads/{thread_id}"): [Try(404, get("/api/threads/{}"))],
    ("GET", "/api/runs"): [
        Try(200, get("/api/runs"), {"runs": [], "next": None}),
        Try(200, get("/api/runs", threadId="{}"), {"runs": [], "next": None}),
        Try(200, get("/api/runs", status="running"), {"runs": [], "next": None}),
    ],
    ("GET", "/api/runs/{run_id}"): [Try(404, get("/api/runs/{}"))],
    ("GET", "/api/runs/{run_id}/stderr"): [Try(404, get("/api/runs/{}/stderr"))],
    ("POST", "/api/runs/{run_id}/takeover"): [Try(404, send("/api/runs/{}/takeover"))],
    ("GET", "/api/runs/{run_id}/workspace"): [Try(404, get("/api/runs/{}/workspace", **{"as": "files"}))],
}
ABOUT_NO_RUN = {("GET", "/openapi.json"), ("POST", "/api/session"), ("DELETE", "/api/session")}
OPEN = {("GET", "/healthz"), ("GET", "/readyz")}
OF_THE_OPERATOR = {("GET", "/metrics"), ("POST", "/api/nodes/{node}/drain"), ("POST", "/api/reap")}
EVERY = [(route, a_try) for route, tries in OF_OWNERS.items() for a_try in tries]


def every_route() -> set[tuple[str, str]]:
    app = build_app(None, Settings(), {}, Replica("described"))  # type: ignore[arg-type]
    return {
        (method, route.path)
        for route in app.routes
        if isinstance(route, APIRoute | Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }


def test_every_route_has_a_case_here() -> None:
    assert every_route() == {*OF_OWNERS, *ABOUT_NO_RUN, *OPEN, *OF_THE_OPERATOR}


def alike(call: Call, name: str) -> tuple[int | None, bytes, dict[str, str]]:
    return call.status, call.body.replace(name.encode(), b"?"), {**call.headers, "content-length": ""}


@pytest.mark.parametrize(("route", "a_try"), EVERY, ids=[f"{method} {path}" for (method, path), _ in EVERY])
async def test_a_run_of_another_owner_is_answered_as_one_that_nobody_has(
    tmp_path: Path, route: tuple[str, str], a_try: Try
) -> None:
    async with guarded(tmp_path) as w:
        before = await w.head(f"alice@{THEIRS}")
        calls = w.shard.calls.copy()
        theirs = await a_try.ask(w, THEIRS, of(BOB))
        asked = w.shard.calls - calls
        nobodys = await a_try.ask(w, NOBODYS, of(BOB))
        assert w.shard.calls - calls - asked == asked, "both take the same way"
        assert theirs.status == a_try.status, theirs.body
        assert alike(theirs, THEIRS) == alike(nobodys, NOBODYS)
        assert a_try.says is None or theirs.json() == a_try.says
        assert b"alice" not in theirs.body
        assert await w.head(f"alice@{THEIRS}") == before
        assert [told for told in w.supervisor.told if told[0] in ("cancel", "takeover")] == []
        own = asyncio.create_task(a_try.ask(w, THEIRS, of(ALICE)))
        await until(lambda: own.done() or w.gateway.viewers.total, "the owner's answer, or its beginning")
        if a_try.status == CANCELLED:
            await own
            assert (await w.head(f"alice@{THEIRS}")).cancel_requested
            return
        await (await w.driver(f"alice@{THEIRS}")).finish()  # so that a stream of it ends
        assert alike(await own, THEIRS) != alike(theirs, THEIRS)


async def test_the_key_of_a_run_is_no_way_to_it_for_owners(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        for token in (ALICE, BOB):
            assert (await fetch(w.app, "GET", f"/api/runs/alice@{THEIRS}", headers=of(token))).status == 404
            query = {"runId": f"alice@{THEIRS}", "offset": "-1"}
            assert (await fetch(w.app, "GET", "/api/chat", query=query, headers=of(token))).status == 400


async def test_the_same_run_id_is_another_run_of_another_owner(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        call = post(w.app, THEIRS, json_body=chat_body(THEIRS, "echo other", runId=THEIRS), headers=of(BOB))
        await call.has(b"run.accepted")
        assert (call.status, call.headers["x-run-id"]) == (200, THEIRS)
        assert (await w.head(f"bob@{THEIRS}")).digest != (await w.head(f"alice@{THEIRS}")).digest
        call.leave()
        page = (await fetch(w.app, "GET", "/api/runs", headers=of(BOB))).json()
        assert [(record["runId"], record["owner"]) for record in page["runs"]] == [(THEIRS, "bob")]
        everybodys = (await fetch(w.app, "GET", "/api/runs", headers=of(OPERATOR))).json()
        assert [record["runId"] for record in everybodys["runs"]] == [f"bob@{THEIRS}", f"alice@{THEIRS}"]


async def test_an_owner_is_told_of_runs_by_the_ids_she_gave(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        driver = await w.driver(f"alice@{THEIRS}")
        busy = await fetch(w.app, "POST", "/api/chat", json_body=chat_body(THEIRS, runId="r-2"), headers=of(ALICE))
        assert (busy.status, busy.code) == (409, "thread_active")
        differs = await fetch(
            w.app, "POST", "/api/chat", json_body=chat_body(THEIRS, "other", runId=THEIRS), headers=of(ALICE)
        )
        assert (differs.status, differs.code) == (409, "run_exists")
        record = await fetch(w.app, "GET", f"/api/runs/{THEIRS}", headers=of(ALICE))
        active = await fetch(w.app, "GET", "/api/chat/active", query={"threadId": THEIRS}, headers=of(ALICE))
        hydrated = await fetch(w.app, "GET", "/api/chat", query={"threadId": THEIRS}, headers=of(ALICE))
        assert record.json()["runId"] == active.json()["runId"] == hydrated.json()["activeRun"]["runId"] == THEIRS
        watching = attach(w.app, THEIRS, headers=of(ALICE))
        await driver.finish()
        await watching.done()
        ended = await fetch(w.app, "POST", f"/api/runs/{THEIRS}/takeover", headers=of(ALICE))
        assert (ended.status, ended.code) == (409, "run_ended")
        for call in (busy, differs, active, hydrated, ended):
            assert b"alice" not in call.body


async def test_the_operator_names_the_runs_of_others_by_their_keys(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        key = f"alice@{THEIRS}"
        record = await fetch(w.app, "GET", f"/api/runs/{key}", headers=of(OPERATOR))
        assert (record.status, record.json()["runId"], record.json()["owner"]) == (200, key, "alice")
        watching = attach(w.app, key, headers=of(OPERATOR))
        await watching.has(b"run.accepted")
        assert watching.headers["x-run-id"] == key
        watching.leave()
        await fetch(w.app, "POST", "/api/chat/cancel", json_body={"runId": key}, headers=of(OPERATOR))
        assert (await w.head(key)).cancel_requested
        starting = await fetch(w.app, "POST", "/api/chat", json_body=chat_body(runId=key), headers=of(OPERATOR))
        assert (starting.status, starting.code) == (400, "run_id_invalid")


@pytest.mark.parametrize("route", sorted(every_route() - OPEN), ids=" ".join)
async def test_nobody_is_let_in_without_a_token(tmp_path: Path, route: tuple[str, str]) -> None:
    method, path = route
    async with guarded(tmp_path) as w:
        calls = w.shard.calls.total()
        for headers, code in (
            ({}, "token_missing"),
            (of("c" * 43), "token_invalid"),
            (of(""), "token_invalid"),
            (of("no token"), "token_invalid"),
            ({"authorization": f"Basic {ALICE}"}, "token_invalid"),
            (of(digest(ALICE).hex()), "token_invalid"),
        ):
            call = await fetch(w.app, method, path, headers=headers)
            assert (call.status, call.code) == (401, code)
            assert call.headers["www-authenticate"].startswith("Bearer")
            assert ALICE.encode() not in call.body
        assert (await fetch(w.app, method, "/api/nothing")).status == 401
        assert w.shard.calls.total() == calls, "nothing was asked for nobody"


@pytest.mark.parametrize("route", sorted(OF_THE_OPERATOR), ids=" ".join)
async def test_what_is_about_all_owners_is_the_operators(tmp_path: Path, route: tuple[str, str]) -> None:
    method, path = route
    path = path.replace("{node}", "a1b2")
    async with guarded(tmp_path) as w:
        refused = await fetch(w.app, method, path, headers=of(ALICE))
        assert (refused.status, refused.code) == (403, "operator_only")
        assert (await fetch(w.app, method, path, headers=of(OPERATOR))).status == 200


async def test_probes_are_open_and_tell_strangers_only_whether(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        assert (await fetch(w.app, "GET", "/healthz")).status == 200
        for headers in ({}, of("c" * 43), of(ALICE)):
            ready = (await fetch(w.app, "GET", "/readyz", headers=headers)).json()
            assert (ready["ready"], ready["actors"]) == (True, [])
            assert {check["detail"] for check in ready["checks"]} == {""}
        told = (await fetch(w.app, "GET", "/readyz", headers=of(OPERATOR))).json()
        assert {"name": "tokens", "ok": True, "detail": "2 tokens, and the operator's"} in told["checks"]


async def test_a_broken_file_of_tokens_changes_nothing_and_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "RELOAD_S", 0.01)

    async def check() -> dict[str, Any]:
        ready = (await fetch(w.app, "GET", "/readyz", headers=of(OPERATOR))).json()
        assert ready["ready"], "it serves: clients are not sent elsewhere"
        return next(check for check in ready["checks"] if check["name"] == "tokens")

    async with guarded(tmp_path) as w:
        write(tmp_path / "tokens", line("alice", ALICE) + "bob this-is-a-token\n")
        await until(lambda: w.gateway.replica.access and w.gateway.replica.access.tokens.trouble, "trouble")
        told = await check()
        assert not told["ok"]
        assert "line 2" in told["detail"]
        assert "this-is-a-token" not in told["detail"]
        assert (await fetch(w.app, "GET", "/api/runs", headers=of(BOB))).status == 200
        write(tmp_path / "tokens", line("alice", ALICE))

        async def gone() -> bool:
            return (await fetch(w.app, "GET", "/api/runs", headers=of(BOB))).status == 401

        await until(gone, "bob's token to be refused")
        assert (await check())["ok"]


@pytest.mark.parametrize(
    ("setting", "code", "named"),
    [
        pytest.param("owner_max_runs", "too_many_runs", "OUTLAST_OWNER_MAX_RUNS", id="runs"),
        pytest.param("owner_max_bytes", "too_many_bytes", "OUTLAST_OWNER_MAX_BYTES", id="bytes"),
    ],
)
async def test_an_owner_who_has_so_much_starts_nothing_more_and_another_does(
    tmp_path: Path, setting: str, code: str, named: str
) -> None:
    async with guarded(tmp_path, **{setting: 1}) as w:
        refused = await fetch(w.app, "POST", "/api/chat", json_body=chat_body("t-2", runId="r-2"), headers=of(ALICE))
        assert (refused.status, refused.code) == (429, code)
        assert named in refused.body.decode()
        assert int(refused.headers["retry-after"]) > 0
        again = post(w.app, THEIRS, json_body=chat_body(THEIRS, runId=THEIRS), headers=of(ALICE))
        await again.has(b"run.accepted")
        again.leave()
        other = post(w.app, "r-2", json_body=chat_body("t-2", runId="r-2"), headers=of(BOB))
        await other.has(b"run.accepted")
        other.leave()


async def test_an_owner_who_watches_much_may_come_back_and_nobody_else_minds(tmp_path: Path) -> None:
    async with guarded(tmp_path, owner_max_viewers=1) as w:
        watching = attach(w.app, THEIRS, headers=of(ALICE))
        await watching.has(b"run.accepted")
        refused = await fetch(w.app, "POST", "/api/chat", json_body=chat_body("t-2", runId="r-2"), headers=of(ALICE))
        assert (refused.status, refused.code) == (429, "too_many_viewers")
        back = attach(w.app, THEIRS, headers=of(ALICE))
        await back.has(b"run.accepted")
        assert back.status == 200
        beyond = attach(w.app, THEIRS, headers=of(ALICE))
        await beyond.done()
        assert (beyond.status, beyond.cut) == (200, True)
        other = post(w.app, "r-2", json_body=chat_body("t-2", runId="r-2"), headers=of(BOB))
        await other.has(b"run.accepted")
        for call in (watching, back, other):
            call.leave()


async def test_without_a_file_of_tokens_everybody_is_the_operator() -> None:
    async with world() as w:
        call = post(w.app, "r-1")
        await call.has(b"run.accepted")
        call.leave()
        assert (await w.head("r-1")).owner == "local"
        for headers in ({}, of(ALICE)):
            assert (await fetch(w.app, "GET", "/api/runs/r-1", headers=headers)).status == 200
        assert (await fetch(w.app, "GET", "/metrics")).status == 200


async def test_a_page_of_an_allowed_origin_learns_that_its_token_is_missing(tmp_path: Path) -> None:
    async with guarded(tmp_path, allowed_origins="https://app.example") as w:
        refused = await fetch(w.app, "GET", "/api/runs", headers={"origin": "https://app.example"})
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        asked = {"origin": "https://app.example", "access-control-request-method": "GET"}
        preflight = await fetch(w.app, "OPTIONS", "/api/runs", headers=asked)
        assert preflight.status == 204
        assert "Authorization" in preflight.headers["access-control-allow-headers"]
        foreign = await fetch(w.app, "GET", "/api/runs", headers={**of(ALICE), "origin": "https://evil.example"})
        assert foreign.status == 403


async def test_no_token_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with guarded(tmp_path) as w:
        for token in (ALICE, "c" * 43):
            call = open_call(w.app, "GET", "/api/runs", headers=of(token))
            await call.done()
        record = (await fetch(w.app, "GET", f"/api/runs/{THEIRS}", headers=of(ALICE))).body.decode()
    for token in (ALICE, "c" * 43, OPERATOR):
        assert token not in caplog.text + record
