"""A log that is not kept any more is told as that, whoever asks, and what was said still shows (contract 4.6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from unit.serve_app.asgi_client import attach, fetch, offset, post
from unit.serve_app.local_cluster import World, world

from runtime.core import chunk
from runtime.core.ops import OpenSupervisor, SupervisorOpened
from runtime.core.reap_ops import Account, Forget, LogDropped, PruneLog

EVENTS = {"Accept": "text/event-stream"}
END = 6  # of the log


async def _as_reaper(w: World) -> int:
    opened = await w.shard.real.submit(OpenSupervisor(claimant="reaper"))
    assert isinstance(opened, SupervisorOpened)
    return opened.epoch


@asynccontextmanager
async def ended() -> AsyncIterator[World]:
    """A run that said a word and has ended, and whom nobody watches any more."""
    async with world() as w:
        call = post(w.app)
        await call.has(b"id: ")
        driver = await w.driver("r-1")
        await driver.begin()
        await driver.append(chunk.encode({"type": "TEXT_MESSAGE_START", "messageId": "m-0", "role": "assistant"}))
        await driver.say("said")
        await driver.append(chunk.encode({"type": "TEXT_MESSAGE_END", "messageId": "m-0"}))
        await driver.finish()
        assert (await call.done()).ids()[-1] == offset(END)
        yield w


async def prune(w: World) -> int:
    """Give up the log, as the supervisor whose epoch is returned; its rows are there still."""
    epoch = await _as_reaper(w)
    await w.shard.real.submit(Account(run_id="r-1", supervisor_epoch=epoch))
    await w.shard.real.submit(PruneLog(run_id="r-1", supervisor_epoch=epoch, ended_before=1 << 50, retention_ms=0))
    assert (await w.head("r-1")).log_gone
    return epoch


@pytest.mark.parametrize("path", ["/api/chat", "/api/chat/ndjson"])
async def test_whoever_joins_it_is_told_where_what_was_said_is(path: str) -> None:
    async with ended() as w:
        await prune(w)
        calls = [
            attach(w.app, path=path),
            attach(w.app, path=path, offset=offset(3)),
            attach(w.app, path=path, offset=offset(END)),
            attach(w.app, path=path, headers={"Last-Event-ID": offset(2)}),
            post(w.app, path=path),
            post(w.app, path=path, headers={"Last-Event-ID": offset(2)}),
            post(w.app, path=path, headers={"Last-Event-ID": offset(END)}),
        ]
        for call in calls:
            await call.done()
            assert (call.status, call.code) == (410, "offset_gone")
            assert "GET /api/chat?threadId=t-1" in call.json()["error"]["message"]


async def test_whoever_has_it_all_is_told_that_nothing_more_comes() -> None:
    async with ended() as w:
        await prune(w)
        assert (await attach(w.app, offset=offset(END), headers=EVENTS).done()).status == 204
        assert (await attach(w.app, offset=offset(END - 1), headers=EVENTS).done()).status == 410


async def test_what_was_said_shows_until_its_own_time_is_over() -> None:
    async with ended() as w:
        before = (await fetch(w.app, "GET", "/api/chat", query={"threadId": "t-1"})).json()
        assert [message["role"] for message in before["messages"]] == ["user", "assistant"]
        epoch = await prune(w)
        for _ in range(3):
            assert (await fetch(w.app, "GET", "/api/chat", query={"threadId": "t-1"})).json() == before
            assert (await fetch(w.app, "GET", "/api/runs/r-1")).json()["kept"] == "transcript"
            await w.shard.real.drop_log("r-1")
        while await w.shard.real.drop_log("r-1"):
            pass
        await w.shard.real.submit(LogDropped(run_id="r-1", supervisor_epoch=epoch))
        assert (await fetch(w.app, "GET", "/api/chat", query={"threadId": "t-1"})).json() == before
        await w.shard.real.submit(Forget(run_id="r-1", supervisor_epoch=epoch, ended_before=1 << 50, retention_ms=0))
        after = (await fetch(w.app, "GET", "/api/chat", query={"threadId": "t-1"})).json()
        assert [message["role"] for message in after["messages"]] == ["user"]
        record = (await fetch(w.app, "GET", "/api/runs/r-1")).json()
        assert (record["kept"], record["status"], record["chunks"]) == ("record", "completed", END)
        assert (await fetch(w.app, "GET", "/api/threads/t-1")).json()["messages"] == after["messages"]


async def test_a_viewer_that_is_behind_is_cut_and_told_when_it_comes_back() -> None:
    async with ended() as w:
        w.shard.hung.add("attach")  # it was told where to begin, and has read nothing
        call = attach(w.app, offset=offset(2))
        await call.has(b":")
        await prune(w)
        w.shard.release()
        await call.done()
        assert (call.cut, b"said" in call.body) == (True, False)
        assert (await attach(w.app, offset=offset(2)).done()).code == "offset_gone"
