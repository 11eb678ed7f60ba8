"""A token that is taken away ends what was begun with it: requests, streams, downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.serve_app.asgi_client import attach, chat_body, fetch, open_call
from unit.serve_app.local_cluster import World
from unit.serve_app.test_owners import ALICE, BOB, OPERATOR, THEIRS, guarded, line, of, write
from unit.serve_app.test_run_results import downloading
from waiting import until

from serve_app import gateway as gateway_module


def remove_alice(w: World, tmp_path: Path) -> None:
    write(tmp_path / "tokens", line("bob", BOB))
    assert w.gateway.replica.access is not None
    assert w.gateway.replica.access.tokens.reload()


async def test_a_removed_token_ends_its_streams_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "RELOAD_S", 0.01)
    async with guarded(tmp_path) as w:
        watching = attach(w.app, THEIRS, headers=of(ALICE))
        operators = attach(w.app, f"alice@{THEIRS}", headers=of(OPERATOR))
        await watching.has(b"run.accepted")
        await operators.has(b"run.accepted")
        write(tmp_path / "tokens", line("bob", BOB))
        await watching.done()
        assert watching.cut
        again = await fetch(w.app, "GET", "/api/chat", query={"runId": THEIRS, "offset": "-1"}, headers=of(ALICE))
        assert (again.status, again.code) == (401, "token_invalid")
        assert not operators.cut
        operators.leave()


@pytest.mark.parametrize(
    ("path", "body", "more"),
    [
        ("/api/chat", chat_body("t-2", runId="r-2"), {}),
        ("/api/chat", chat_body(THEIRS, runId=THEIRS), {}),
        ("/api/chat", chat_body(THEIRS, runId=THEIRS), {"Last-Event-ID": "-1"}),
        ("/api/chat/cancel", {"runId": THEIRS}, {}),
    ],
    ids=["start", "join", "come back", "cancel"],
)
async def test_a_token_that_is_removed_while_a_body_comes_has_no_effect_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], more: dict[str, str]
) -> None:
    monkeypatch.setattr(gateway_module, "RELOAD_S", 3600.0)
    async with guarded(tmp_path) as w:
        call = open_call(w.app, "POST", path, json_body=body, headers={**of(ALICE), **more})
        call.hold()
        await until(lambda: call.asked_for_body, "the body being read")
        remove_alice(w, tmp_path)
        call.send_body()
        await call.done()
        assert (call.status, call.code) == (401, "token_invalid")
        everybodys = (await fetch(w.app, "GET", "/api/runs", headers=of(OPERATOR))).json()
        assert [record["runId"] for record in everybodys["runs"]] == [f"alice@{THEIRS}"]
        assert not (await w.head(f"alice@{THEIRS}")).cancel_requested


async def test_a_token_that_is_removed_while_a_run_is_looked_for_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "PATIENCE_S", 30.0)
    monkeypatch.setattr(gateway_module, "RELOAD_S", 3600.0)
    async with guarded(tmp_path) as w:
        w.shard.hung.add("record")
        call = attach(w.app, THEIRS, headers=of(ALICE))
        await until(lambda: w.shard.running["record"], "the question")
        remove_alice(w, tmp_path)
        w.shard.release()
        await call.done()
        assert (call.status, call.code) == (401, "token_invalid")


async def test_a_stream_that_its_token_does_not_carry_is_cut_whenever_the_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "RELOAD_S", 3600.0)
    async with guarded(tmp_path) as w:
        watching = attach(w.app, THEIRS, headers=of(ALICE))
        await watching.has(b"run.accepted")
        remove_alice(w, tmp_path)  # nothing is new to the turns that follow
        assert w.gateway.replica.access is not None
        monkeypatch.setattr(gateway_module, "RELOAD_S", 0.01)
        _ = w.gateway.background.spawn(w.gateway._heed_tokens(w.gateway.replica.access), "more turns")
        await watching.done()
        assert watching.cut


async def test_a_removed_token_ends_its_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "RELOAD_S", 0.01)
    async with guarded(tmp_path) as w:
        await (await w.driver(f"alice@{THEIRS}")).launch()
        w.cluster.pieces = [b"one"] * 3
        call = await downloading(w, "alice", ALICE)
        write(tmp_path / "tokens", line("bob", BOB))
        await call.done()
        assert (call.cut, w.cluster.open) == (True, 0)
