"""A cookie stands for a token: for as long as that, for so long, on every replica, and for our own pages alone."""

from __future__ import annotations

from pathlib import Path

from starlette.datastructures import Headers
from unit.serve_app.asgi_client import Call, chat_body, fetch
from unit.serve_app.local_cluster import World, world
from unit.serve_app.test_owners import ALICE, BOB, OPERATOR, THEIRS, guarded, line, of, write

from serve_app.sessions import Sessions
from serve_app.tokens import Keys, digest

PAGE = {"origin": "http://127.0.0.1:8000"}


async def session(w: World, token: str = ALICE, **headers: str) -> Call:
    return await fetch(w.app, "POST", "/api/session", headers={**of(token), **headers})


def cookie(call: Call) -> dict[str, str]:
    return {"cookie": call.headers["set-cookie"].partition(";")[0]}


async def test_a_cookie_shows_an_event_source_what_its_token_may_see(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        begun = await session(w)
        assert (begun.status, begun.json()["owner"]) == (200, "alice")
        await (await w.driver(f"alice@{THEIRS}")).finish()
        query = {"runId": THEIRS, "offset": "-1"}
        stream = await fetch(w.app, "GET", "/api/chat", query=query, headers=cookie(begun))
        assert (stream.status, stream.ended) == (200, True)
        other = await fetch(w.app, "GET", "/api/chat", query=query, headers=cookie(await session(w, BOB)))
        assert (other.status, other.code) == (404, "run_not_found")


async def test_a_cookie_is_not_for_scripts_nor_for_other_sites_nor_for_ever(tmp_path: Path) -> None:
    async with guarded(tmp_path, route_prefix="/agents", session_ttl_s=600) as w:
        said = (await session(w)).headers["set-cookie"].split("; ")[1:]
        assert said == ["Path=/agents/", "Max-Age=600", "HttpOnly", "SameSite=Strict"]
        for how in ({"x-forwarded-proto": "https"}, {"origin": "https://127.0.0.1:8000"}):
            assert (await session(w, **how)).headers["set-cookie"].endswith("; Secure")


async def test_the_token_is_not_in_the_cookie(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        for token in (ALICE, OPERATOR):
            begun = await session(w, token)
            assert token not in begun.headers["set-cookie"] + begun.body.decode()


async def test_a_cookie_ends_with_its_token(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        headers = cookie(await session(w))
        assert (await fetch(w.app, "GET", "/api/runs", headers=headers)).status == 200
        write(tmp_path / "tokens", line("bob", BOB))
        assert w.gateway.replica.access is not None
        assert w.gateway.replica.access.tokens.reload()
        refused = await fetch(w.app, "GET", "/api/runs", headers=headers)
        assert (refused.status, refused.code) == (401, "token_invalid")


async def test_a_session_does_not_prolong_itself(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        headers = {**cookie(await session(w)), **PAGE}
        refused = await fetch(w.app, "POST", "/api/session", headers=headers)
        assert (refused.status, refused.code) == (401, "token_missing")


async def test_a_cookie_changes_nothing_unless_a_page_of_ours_asks(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        headers = cookie(await session(w))

        async def cancel(**more: str) -> Call:
            sent = {**headers, **{name.replace("_", "-"): text for name, text in more.items()}}
            return await fetch(w.app, "POST", "/api/chat/cancel", json_body={"runId": THEIRS}, headers=sent)

        for refused in (
            await cancel(),
            await cancel(sec_fetch_site="cross-site"),
            await cancel(sec_fetch_site="same-site"),
            await cancel(sec_fetch_site="cross-site", sec_fetch_mode="navigate"),
            await cancel(origin="https://evil.example"),
            await cancel(origin="null"),
        ):
            assert (refused.status, refused.code) == (403, "origin_refused")
        takeover = await fetch(w.app, "POST", f"/api/runs/{THEIRS}/takeover", headers=headers)
        assert (takeover.status, takeover.code) == (403, "origin_refused")
        assert not (await w.head(f"alice@{THEIRS}")).cancel_requested
        assert (await cancel(**PAGE)).status == 204
        assert (await w.head(f"alice@{THEIRS}")).cancel_requested


async def test_a_bad_token_is_not_made_good_by_a_cookie(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        headers = {**cookie(await session(w)), **of("c" * 43)}
        assert (await fetch(w.app, "GET", "/api/runs", headers=headers)).status == 401


async def test_the_end_of_a_session_has_the_browser_forget_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        headers = {**cookie(await session(w)), **PAGE}
        ended = await fetch(w.app, "DELETE", "/api/session", headers=headers)
        assert ended.status == 204
        assert "Max-Age=0" in ended.headers["set-cookie"]
        assert ended.headers["set-cookie"].partition("=")[0] == headers["cookie"].partition("=")[0]


async def test_only_pages_of_allowed_origins_may_bring_cookies(tmp_path: Path) -> None:
    allowed = "https://app.127.0.0.1.example"
    async with guarded(tmp_path, allowed_origins=allowed, tokens_file="tokens") as w:
        headers = {**cookie(await session(w)), "origin": allowed}
        answer = await fetch(w.app, "GET", "/api/runs", headers=headers)
        assert (answer.status, answer.headers["access-control-allow-credentials"]) == (200, "true")
        assert answer.headers["access-control-allow-origin"] == allowed
    async with world(allowed_origins=allowed) as w:
        answer = await fetch(w.app, "GET", "/api/runs", headers={"origin": allowed})
        assert "access-control-allow-credentials" not in answer.headers


async def test_without_tokens_there_is_nothing_to_stand_for() -> None:
    async with world() as w:
        begun = await fetch(w.app, "POST", "/api/session")
        assert begun.json() == {"owner": "local", "expiresAt": None}
        assert "set-cookie" not in begun.headers
        assert (await fetch(w.app, "DELETE", "/api/session")).status == 204
        posted = await fetch(w.app, "POST", "/api/chat", json_body=chat_body(runId="alice@r"))
        assert posted.code == "run_id_invalid"


GRANT = digest(ALICE)


def sent(sessions: Sessions, header: str) -> bytes | None:
    return sessions.grant_of(Headers({"cookie": f"other=1; {header.partition(';')[0]}"}))


def test_a_cookie_outlives_a_restart_and_is_taken_by_every_replica() -> None:
    header, _ = Sessions(Keys.of(OPERATOR).sessions).cookie(GRANT, 60, "/", secure=False)
    assert sent(Sessions(Keys.of(OPERATOR).sessions), header) == GRANT
    assert sent(Sessions(Keys.of("another" * 9).sessions), header) is None


def test_a_forged_cookie_is_none() -> None:
    made = Sessions(Keys.of(OPERATOR).sessions)
    header, ends = made.cookie(GRANT, 60, "/", secure=False)
    name, _, value = header.partition(";")[0].partition("=")
    _, grant, signed = value.split(".")
    for forged in (
        f"{ends + 1}.{grant}.{signed}",
        f"{ends}.{digest(BOB).hex()}.{signed}",
        f"{ends}.{grant}.{'0' * 64}",
        f"{ends}.{grant}",
        f"{ends}.{grant}.",
        "",
        value.upper(),
        f"{value}.{value}",
    ):
        assert sent(made, f"{name}={forged}") is None
    assert sent(made, f"{name}={value}") == GRANT


def test_a_cookie_ends_in_time() -> None:
    now = 1_800_000_000.0
    made = Sessions(Keys.of(OPERATOR).sessions, lambda: now)
    header, ends = made.cookie(GRANT, 60, "/", secure=False)
    now = ends - 1
    assert sent(made, header) == GRANT
    now = ends
    assert sent(made, header) is None
