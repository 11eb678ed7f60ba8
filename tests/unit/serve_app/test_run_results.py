"""A run's result over HTTP: who may have it, and how what stands against it is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.serve_app.asgi_client import Call, chat_body, fetch, open_call, post
from unit.serve_app.local_cluster import World, world
from unit.serve_app.test_owners import ALICE, BOB, THEIRS, guarded, of
from waiting import until

from runtime.core.result import Form, WorkspaceGone, WorkspaceTooLarge
from runtime.errors import OutlastError, SandboxUnreachable
from serve_app import download, results

PATH = "/api/runs/r-1/workspace"


async def launched(w: World) -> None:
    call = await post(w.app, "r-1").has(b"run.accepted")
    call.leave()
    await call.done()
    await (await w.driver("r-1")).launch()


@pytest.mark.parametrize(
    ("form", "media"), [("files", "application/json"), ("diff", "text/x-diff"), ("archive", "application/gzip")]
)
async def test_a_result_is_sent_in_the_form_that_was_asked_for(form: str, media: str) -> None:
    async with world(workspace_max_bytes=4096) as w:
        await launched(w)
        w.cluster.pieces = [b"one", b"two"]
        answer = await fetch(w.app, "GET", PATH, query={"as": form})
        assert (answer.status, answer.body) == (200, b"onetwo")
        assert answer.headers["content-type"].startswith(media)
        assert answer.headers["x-content-type-options"] == "nosniff"
        (ask,) = w.cluster.asked
        assert (ask.provider, ask.key, ask.thread_key, ask.run_id) == ("local", "local/here/d/run", "t-1", "r-1")
        assert (ask.form, ask.max_bytes) == (Form(form), 4096)


@pytest.mark.parametrize("asked", ["", "tar", "FILES"])
async def test_another_form_is_400(asked: str) -> None:
    async with world() as w:
        await launched(w)
        answer = await fetch(w.app, "GET", PATH, query={"as": asked})
        assert (answer.status, answer.json()["error"]["code"]) == (400, "as_invalid")


async def test_an_unknown_run_and_one_that_was_never_launched_are_404() -> None:
    async with world() as w:
        answer = await fetch(w.app, "GET", PATH, query={"as": "files"})
        assert (answer.status, answer.json()["error"]["code"]) == (404, "run_not_found")
        call = await post(w.app, "r-1").has(b"run.accepted")
        call.leave()
        await call.done()
        answer = await fetch(w.app, "GET", PATH, query={"as": "files"})
        assert (answer.status, answer.json()["error"]["code"]) == (404, "workspace_not_found")
        assert w.cluster.asked == []


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (WorkspaceGone("Gone.", code="baseline_gone"), 410, "baseline_gone"),
        (WorkspaceTooLarge("It is over 5 bytes."), 413, "workspace_too_large"),
        (SandboxUnreachable("No node of that host is there."), 503, "sandbox_unreachable"),
    ],
)
async def test_what_stands_against_it_is_told_with_a_status(error: OutlastError, status: int, code: str) -> None:
    async with world() as w:
        await launched(w)
        w.cluster.pieces = [error]
        answer = await fetch(w.app, "GET", PATH, query={"as": "archive"})
        assert (answer.status, answer.json()["error"]) == (status, {"code": code, "message": error.message})
        assert ("retry-after" in answer.headers) == (status == 503)


async def test_what_goes_wrong_later_breaks_the_connection() -> None:
    async with world() as w:
        await launched(w)
        w.cluster.pieces = [b"one", SandboxUnreachable("The node is gone.")]
        call = await fetch(w.app, "GET", PATH, query={"as": "archive"})
        assert (call.status, call.body, call.cut, call.ended) == (200, b"one", True, False)


async def test_as_many_results_are_sent_at_once_as_a_replica_can_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "AT_ONCE", 1)
    async with world() as w:
        await launched(w)
        w.cluster.pieces = [b"one"] * 3
        call = open_call(w.app, "GET", PATH, query={"as": "archive"})
        call.stall()
        await until(lambda: w.cluster.asked, "the first one under way")
        answer = await fetch(w.app, "GET", PATH, query={"as": "archive"})
        assert (answer.status, answer.json()["error"]["code"]) == (429, "too_many_downloads")
        call.resume()
        await call.done()
        assert (await fetch(w.app, "GET", PATH, query={"as": "archive"})).status == 200


async def test_a_client_that_reads_nothing_is_left_and_its_place_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "AT_ONCE", 1)
    monkeypatch.setattr(download, "SEND_S", 0.05)
    async with world() as w:
        await launched(w)
        w.cluster.pieces = [b"one"] * 3
        call = open_call(w.app, "GET", PATH, query={"as": "archive"})
        call.stall()
        await call.done()
        assert (call.cut, call.ended) == (True, False)
        assert w.cluster.open == 0
        monkeypatch.setattr(download, "SEND_S", 30.0)
        assert (await fetch(w.app, "GET", PATH, query={"as": "archive"})).status == 200


async def test_a_client_that_leaves_ends_the_reading() -> None:
    async with world() as w:
        await launched(w)
        w.cluster.pieces = [b"one"] * 3
        call = open_call(w.app, "GET", PATH, query={"as": "archive"})
        call.stall()
        await until(lambda: w.gateway.downloads, "the download under way")
        call.leave()
        await call.done()
        assert (w.cluster.open, w.gateway.downloads) == (0, set())


async def downloading(w: World, owner: str, token: str) -> Call:
    """Return a download that its client does not read."""
    asked = len(w.cluster.asked)
    call = open_call(w.app, "GET", f"/api/runs/{THEIRS}/workspace", query={"as": "archive"}, headers=of(token))
    call.stall()
    await until(lambda: len(w.cluster.asked) > asked, f"{owner}'s download")
    return call


async def test_an_owner_who_downloads_leaves_room_for_others(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        other = post(w.app, THEIRS, json_body=chat_body(THEIRS, runId=THEIRS), headers=of(BOB))
        await other.has(b"run.accepted")
        other.leave()
        for owner in ("alice", "bob"):
            await (await w.driver(f"{owner}@{THEIRS}")).launch()
        w.cluster.pieces = [b"one"] * 3
        calls = [await downloading(w, "alice", ALICE), await downloading(w, "alice", ALICE)]
        path, query = f"/api/runs/{THEIRS}/workspace", {"as": "files"}
        refused = await fetch(w.app, "GET", path, query=query, headers=of(ALICE))
        assert (refused.status, refused.code) == (429, "too_many_downloads")
        assert (await fetch(w.app, "GET", path, query=query, headers=of(BOB))).status == 200
        for call in calls:
            call.leave()
            await call.done()
        assert (await fetch(w.app, "GET", path, query=query, headers=of(ALICE))).status == 200
