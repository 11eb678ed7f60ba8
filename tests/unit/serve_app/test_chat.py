"""Start, join, hydrate, active, cancel; what the record says of it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from unit.serve_app.asgi_client import attach, chat_body, fetch, offset, open_call, post
from unit.serve_app.local_cluster import World, world
from waiting import until

from runtime.core import chunk
from runtime.core.record import Status


async def begun(w: World, run_id: str = "r-1", **request: Any) -> None:
    call = await post(w.app, run_id, **request).has(b"run.accepted")
    call.leave()
    await call.done()


async def record(w: World, run_id: str = "r-1") -> dict[str, Any]:
    found: dict[str, Any] = (await fetch(w.app, "GET", f"/api/runs/{run_id}")).json()
    return found


async def test_a_start_tells_the_supervisor_and_the_same_post_again_only_that_it_is_wanted() -> None:
    async with world() as w:
        await begun(w)
        await until(lambda: w.supervisor.told == [("start", "r-1")], "the start")
        again = await post(w.app).has(b"run.accepted")
        await until(lambda: w.supervisor.told[1:] == [("ensure", "r-1")], "the ensure")
        assert again.ids() == [offset(1)]
        again.leave()
        await again.done()


async def test_an_attach_makes_sure_that_someone_drives_unless_nobody_is_needed() -> None:
    async with world() as w:
        await begun(w)
        call = await attach(w.app).has(b"run.accepted")
        await until(lambda: ("ensure", "r-1") in w.supervisor.told, "the ensure")
        await (await w.driver("r-1")).finish()
        await call.done()
        told = list(w.supervisor.told)
        await attach(w.app).done()
        assert w.supervisor.told == told


async def test_a_client_that_leaves_before_the_answer_has_started_its_run() -> None:
    async with world() as w:
        w.shard.hung.add("submit")
        call = post(w.app)
        await until(lambda: w.shard.calls["submit"] == 1, "the creation under way")
        assert call.task is not None
        call.task.cancel()
        w.shard.release()
        await until(lambda: w.supervisor.told == [("start", "r-1")], "the start")
        assert (await w.head("r-1")).status is Status.RUNNING


async def test_the_run_id_of_the_header_and_of_the_body_name_the_same_request() -> None:
    async with world() as w:
        first = await post(w.app, None, json_body=chat_body(runId="r-1")).has(b": \n\n")
        second = await post(w.app, "r-1").has(b"run.accepted")
        third = await post(w.app, "r-1", json_body=chat_body(runId="r-1")).has(b"run.accepted")
        for call in (first, second, third):
            assert call.headers["x-run-id"] == "r-1"
            call.leave()
            await call.done()


async def test_env_names_variables_and_values_of_it_are_refused() -> None:
    async with world(agent_env="TOKEN_A, TOKEN_B") as w:
        secret = chat_body(forwardedProps={"env": {"TOKEN_B": "hunter2"}})
        refused = await post(w.app, "r-0", json_body=secret).done()
        assert (refused.status, refused.code) == (400, "option_invalid")
        assert b"hunter" not in refused.body
        props = {"env": ["TOKEN_B", "TOKEN_A"], "model": "m"}
        await begun(w, json_body=chat_body(forwardedProps=props, data=props))
        assert (await record(w))["input"]["forwardedProps"] == {"env": ["TOKEN_A", "TOKEN_B"], "model": "m"}
        assert "data" not in (await record(w))["input"]


async def test_options_become_the_run_s_own() -> None:
    async with world(detached_ttl_s=100, run_limit_s=7, idle_limit_s=9) as w:
        await begun(w)
        plain = await record(w)
        assert plain["onDisconnect"] == "detach"
        assert plain["limits"]["detachedTtlS"] == 100
        assert plain["limits"]["runLimitS"] == 7
        assert plain["limits"]["idleLimitS"] == 9
        props = {"onDisconnect": "cancel", "detachedTtlS": 0, "runLimitS": 0, "harness": "shell", "mine": [1]}
        await begun(w, "r-2", json_body=chat_body("t-2", forwardedProps=props))
        chosen = await record(w, "r-2")
        assert chosen["onDisconnect"] == "cancel"
        assert chosen["limits"]["detachedTtlS"] is None
        assert chosen["limits"]["runLimitS"] == 0
        assert chosen["input"]["forwardedProps"] == props
        assert chosen["harness"] == "shell"
        assert chosen["provider"] == "local"


async def test_a_detached_ttl_of_zero_by_setting_is_never_too() -> None:
    async with world(detached_ttl_s=0) as w:
        await begun(w)
        assert (await record(w))["limits"]["detachedTtlS"] is None


async def test_a_busy_thread_enqueues_or_cancels_on_request() -> None:
    async with world() as w:
        await begun(w)
        await begun(w, "r-2", json_body=chat_body(forwardedProps={"onBusy": "enqueue"}))
        assert (await record(w, "r-2"))["queued"] is True
        assert ("start", "r-2") not in w.supervisor.told
        await begun(w, "r-3", json_body=chat_body(forwardedProps={"onBusy": "cancel-previous"}))
        await until(lambda: ("cancel", "r-1") in w.supervisor.told, "the cancel of the run before")
        assert (await record(w))["cancelRequested"] is True


async def test_active_and_hydrate_of_a_thread() -> None:
    async with world() as w:
        nobody = (await fetch(w.app, "GET", "/api/chat/active", query={"threadId": "t-1"})).json()
        assert nobody == {"runId": None}
        empty = await fetch(w.app, "GET", "/api/chat", query={"threadId": "t-1"})
        assert empty.json() == {"messages": [], "activeRun": None, "interrupts": None}
        assert empty.headers["cache-control"] == "no-store"
        await begun(w)
        driver = await w.driver("r-1")
        await driver.begin()
        await driver.say("half ")
        await driver.say("a sentence")
        active = (await fetch(w.app, "GET", "/api/chat/active", query={"threadId": "t-1"})).json()
        assert active == {"runId": "r-1"}
        state = (await fetch(w.app, "GET", "/api/chat", query={"threadId": "t-1", "limit": "5"})).json()
        assert state["activeRun"] == {"runId": "r-1"}
        assert [message["role"] for message in state["messages"]] == ["user", "assistant"]
        assert state["messages"][1]["parts"] == [{"type": "text", "content": "half a sentence"}]
        await driver.finish()
        ended = (await fetch(w.app, "GET", "/api/chat/ndjson", query={"threadId": "t-1"})).json()
        assert ended["activeRun"] is None
        assert ended["messages"] == state["messages"]


async def test_hydrating_no_thread_at_all_is_empty() -> None:
    async with world() as w:
        call = await fetch(w.app, "GET", "/api/chat", query={"threadId": ""})
        assert call.json() == {"messages": [], "activeRun": None, "interrupts": None}


@pytest.mark.parametrize("body", [{"threadId": "t-1"}, {"runId": "r-1"}, {"threadId": "other", "runId": "r-1"}])
async def test_a_cancel_is_recorded_before_it_is_answered(body: dict[str, str]) -> None:
    async with world() as w:
        await begun(w)
        call = await fetch(w.app, "POST", "/api/chat/cancel", json_body=body)
        assert (call.status, call.body) == (204, b"")
        head = await w.head("r-1")
        assert (head.cancel_requested, head.cancel_reason) == (True, "user")
        await until(lambda: ("cancel", "r-1") in w.supervisor.told, "the supervisor to know")


@pytest.mark.parametrize("body", [{"threadId": "t-9"}, {"runId": "r-9"}])
async def test_a_cancel_of_what_is_not_there_is_done(body: dict[str, str]) -> None:
    async with world() as w:
        assert (await fetch(w.app, "POST", "/api/chat/cancel", json_body=body)).status == 204
        assert w.supervisor.told == []


async def test_a_cancel_of_an_ended_run_changes_nothing() -> None:
    async with world() as w:
        await begun(w)
        await (await w.driver("r-1")).finish()
        told = list(w.supervisor.told)
        assert (await fetch(w.app, "POST", "/api/chat/cancel", json_body={"runId": "r-1"})).status == 204
        assert (await w.head("r-1")).cancel_requested is False
        assert [each for each in w.supervisor.told if each not in told] == []


async def test_a_second_stop_is_meant_for_the_run_that_waits_behind_the_first() -> None:
    async with world() as w:
        await begun(w)
        stop = {"json_body": {"threadId": "t-1"}}
        await fetch(w.app, "POST", "/api/chat/cancel", **stop)
        await begun(w, "r-2")
        assert (await record(w, "r-2"))["queued"] is True
        await fetch(w.app, "POST", "/api/chat/cancel", **stop)
        assert (await w.head("r-2")).cancel_requested is True
        assert (await fetch(w.app, "POST", "/api/chat/cancel", **stop)).status == 204


async def test_records_threads_and_pages() -> None:
    async with world() as w:
        for number in range(3):
            await begun(w, f"r-{number}", json_body=chat_body(f"t-{number % 2}", text=f"say {number}"))
            await (await w.driver(f"r-{number}")).finish(stderr=b"warn \xff")
        first = (await fetch(w.app, "GET", "/api/runs", query={"limit": "2"})).json()
        rest = (await fetch(w.app, "GET", "/api/runs", query={"limit": "2", "cursor": first["next"]})).json()
        assert [each["runId"] for each in first["runs"] + rest["runs"]] == ["r-2", "r-1", "r-0"]
        assert rest["next"] is None
        assert "claims" not in first["runs"][0]
        done = (await fetch(w.app, "GET", "/api/runs", query={"status": "completed", "threadId": "t-0"})).json()
        assert [each["runId"] for each in done["runs"]] == ["r-2", "r-0"]
        none = (await fetch(w.app, "GET", "/api/runs", query={"status": "failed"})).json()
        assert none == {"runs": [], "next": None}
        whole = await record(w, "r-0")
        assert [claim["epoch"] for claim in whole["claims"]] == [1]
        thread = (await fetch(w.app, "GET", "/api/threads/t-0")).json()
        assert thread["threadId"] == "t-0"
        assert [run["runId"] for run in thread["runs"]] == ["r-0", "r-2"]
        assert [message["role"] for message in thread["messages"]] == ["user", "user"]
        stderr = await fetch(w.app, "GET", "/api/runs/r-0/stderr")
        assert (stderr.status, stderr.body) == (200, b"warn \xff")
        assert stderr.headers["content-type"].startswith("text/plain")


async def test_stderr_of_a_run_that_goes_on_is_empty_so_far() -> None:
    async with world() as w:
        await begun(w)
        call = await fetch(w.app, "GET", "/api/runs/r-1/stderr")
        assert (call.status, call.body) == (200, b"")


async def test_a_takeover_by_a_person() -> None:
    async with world() as w:
        await begun(w)
        call = await fetch(w.app, "POST", "/api/runs/r-1/takeover")
        assert (call.status, call.json()) == (202, {"runId": "r-1", "fromEpoch": 1})
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert (await fetch(w.app, "POST", "/api/runs/r-1/takeover", headers=form)).status == 415
        await (await w.driver("r-1")).finish()
        ended = await fetch(w.app, "POST", "/api/runs/r-1/takeover")
        assert (ended.status, ended.code) == (409, "run_ended")


async def test_probes() -> None:
    async with world() as w:
        assert (await fetch(w.app, "GET", "/healthz")).json() == {"ok": True}
        ready = await fetch(w.app, "GET", "/readyz")
        assert ready.status == 200
        assert ready.json()["ready"] is True
        assert [check["name"] for check in ready.json()["checks"]] == ["log:0", "supervisor", "gateway"]
        w.supervisor.down = True
        away = await fetch(w.app, "GET", "/readyz")
        assert (away.status, away.json()["ready"]) == (503, False)
        assert int(away.headers["retry-after"]) > 0
        w.supervisor.down = False
        w.replica.draining.set()
        assert (await fetch(w.app, "GET", "/readyz")).status == 503
        assert (await fetch(w.app, "GET", "/healthz")).status == 200


async def test_a_drain_of_a_node_says_what_is_still_on_it() -> None:
    async with world() as w:
        call = await fetch(w.app, "POST", "/api/nodes/a1b2/drain", query={"withinS": "30"})
        assert (call.status, call.json()["left"]) == (200, {"run:r-1": "is being moved"})
        assert w.supervisor.told == [("drain within 30 s", "a1b2")]
        assert (await fetch(w.app, "POST", "/api/nodes/elsewhere/drain")).status == 400
        wrong = await fetch(w.app, "POST", "/api/nodes/a1b2/drain", query={"withinS": "soon"})
        assert (wrong.status, wrong.json()["error"]["code"]) == (400, "within_invalid")


async def test_a_record_tells_of_the_takeover_of_its_pause_and_of_what_was_refused() -> None:
    async with world() as w:
        await post(w.app).has(b"run.accepted")
        old = await w.driver("r-1")
        await old.say("x")
        new = await w.driver("r-1")
        with pytest.raises(AssertionError, match="Superseded"):
            await old.say("y")
        await new.say("y")
        record = (await fetch(w.app, "GET", "/api/runs/r-1")).json()
        first, second = record["claims"]
        assert (first["end"], first["lastAppendAt"], first["pauseMs"]) == ("superseded", first["firstAppendAt"], None)
        assert second["pauseMs"] == second["firstAppendAt"] - first["lastAppendAt"]
        assert (second["end"], second["endedAt"]) == (None, None)
        (refusal,) = record["refusals"]
        assert (refusal["epoch"], refusal["currentEpoch"], refusal["tried"], refusal["count"]) == (1, 2, "append", 1)
        lines = (await fetch(w.app, "GET", "/metrics")).body.decode().splitlines()
        assert 'outlast_refusals_total{tried="append"} 1.0' in lines
        assert 'outlast_takeover_pause_seconds_count{reason="start"} 1.0' in lines
        assert 'outlast_takeover_pause_seconds_bucket{le="+Inf",reason="start"} 1.0' in lines
        assert 'outlast_drivers_made_total{reason="driver_lost"} 2.0' in lines


async def test_metrics_have_the_public_names() -> None:
    async with world() as w:
        call = await post(w.app).has(b"run.accepted")
        await (await w.driver("r-1")).say("x")
        text = (await fetch(w.app, "GET", "/metrics")).body.decode()
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert samples["outlast_appends_total"] == "1.0"
        assert samples["outlast_appends_refused_total"] == "0.0"
        assert samples['outlast_refusals_total{tried="append"}'] == "0.0"
        assert samples["outlast_takeovers_total"] == "2.0"
        assert samples["outlast_takeover_seconds_count"] == "2.0"
        assert samples["outlast_takeover_seconds_sum"] == "0.5"
        assert float(samples["outlast_shard_reads_total"]) >= 1
        assert samples["outlast_segment_reads_total"] == "0.0"
        assert samples["outlast_runs"] == "1.0"
        assert samples["outlast_viewers"] == "1.0"
        w.shard.down = w.supervisor.down = True
        away = await fetch(w.app, "GET", "/metrics")
        assert (away.status, away.body) == (200, b"")
        w.shard.down = False
        call.leave()
        await call.done()


async def test_a_sweep_of_the_reaper_is_asked_for_and_told() -> None:
    async with world() as w:
        call = await fetch(w.app, "POST", "/api/reap", query={"dryRun": "true"})
        assert call.json()["outcomes"] == {"expired": 1}
        assert (await fetch(w.app, "POST", "/api/reap")).status == 200
        assert w.supervisor.told == [("reap", "True"), ("reap", "False")]
        wrong = await fetch(w.app, "POST", "/api/reap", query={"dryRun": "perhaps"})
        assert (wrong.status, wrong.json()["error"]["code"]) == (400, "dry_run_invalid")
        lines = (await fetch(w.app, "GET", "/metrics")).body.decode().splitlines()
        assert 'outlast_reaped_total{outcome="expired"} 1.0' in lines
        assert 'outlast_pruned_total{what="log"} 2.0' in lines


async def test_openapi_describes_every_route_with_its_errors() -> None:
    async with world() as w:
        document = (await fetch(w.app, "GET", "/openapi.json")).json()
    assert set(document["paths"]) == {
        "/api/chat",
        "/api/chat/ndjson",
        "/api/chat/active",
        "/api/chat/cancel",
        "/api/runs",
        "/api/runs/{run_id}",
        "/api/runs/{run_id}/stderr",
        "/api/runs/{run_id}/takeover",
        "/api/runs/{run_id}/workspace",
        "/api/nodes/{node}/drain",
        "/api/reap",
        "/api/session",
        "/api/threads/{thread_id}",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert "403" in operation["responses"]
    schemas = document["components"]["schemas"]
    assert {"ChatBody", "CancelBody", "ForwardedProps", "Message", "ErrorBody"} <= set(schemas)
    assert set(schemas["ChatBody"]["required"]) == {"threadId", "messages"}


async def test_an_app_without_its_lifespan_still_answers() -> None:
    async with world(lifespan=False) as w:
        call = open_call(w.app, "GET", "/healthz")
        assert (await call.done()).status == 200


async def test_everything_lies_below_the_route_prefix() -> None:
    async with world() as w:

        async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
            await w.app({**scope, "root_path": "/below"}, receive, send)

        for path, status in (("/below/healthz", 200), ("/below/api/runs", 200), ("/below/nothing", 404)):
            assert (await fetch(mounted, "GET", path)).status == status


async def test_hydrating_tells_a_bounded_part_of_a_long_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        for number in range(3):
            await begun(w, f"r-{number}", json_body=chat_body(text=f"say {number}"))
            driver = await w.driver(f"r-{number}")
            await driver.begin()
            await driver.append(
                chunk.encode({"type": "TEXT_MESSAGE_START", "messageId": f"m-{number}", "role": "assistant"})
            )
            await driver.append(
                chunk.encode({"type": "TEXT_MESSAGE_CONTENT", "messageId": f"m-{number}", "delta": "x" * 1000})
            )
            await driver.finish()
        monkeypatch.setattr("serve_app.threads.TOLD_BYTES", 2000)
        state = (await fetch(w.app, "GET", "/api/chat", query={"threadId": "t-1"})).json()
    roles = [message["role"] for message in state["messages"]]
    assert roles == ["user", "user", "assistant", "user", "assistant"]
