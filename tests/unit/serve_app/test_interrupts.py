"""A run that asks waits for its answer; the POST that answers goes on in its place (P23)."""

from __future__ import annotations

from typing import Any

from unit.serve_app.asgi_client import chat_body, fetch, post
from unit.serve_app.local_cluster import World, world
from waiting import until

from runtime.core import chunk
from runtime.core.record import Status

QUESTION = {"id": "q-1", "reason": "confirmation", "message": "May I?"}
ANSWER = {"interruptId": "q-1", "status": "resolved", "payload": {"approved": True}}


async def begun(w: World, run_id: str, **fields: Any) -> None:
    call = await post(w.app, run_id, json_body=chat_body(**fields)).has(b"run.accepted")
    call.leave()
    await call.done()


async def asked(w: World) -> None:
    """Bring run r-1 of thread t-1 to where it asks."""
    await begun(w, "r-1")
    driver = await w.driver("r-1")
    await driver.begin()
    await driver.say("I would write a file.")
    outcome = {"type": "interrupt", "interrupts": [QUESTION]}
    await driver.finish(Status.INTERRUPTED, last=chunk.run_finished("r-1", "t-1", outcome=outcome))


async def hydrated(w: World) -> dict[str, Any]:
    found: dict[str, Any] = (await fetch(w.app, "GET", "/api/chat", query={"threadId": "t-1"})).json()
    return found


async def test_a_question_is_in_the_hydrate_answer_and_the_run_is_not_active() -> None:
    async with world() as w:
        await asked(w)
        state = await hydrated(w)
        assert state["interrupts"] == {"runId": "r-1", "pending": [QUESTION]}
        assert state["activeRun"] is None
        assert [message["role"] for message in state["messages"]] == ["user", "assistant"]
        record = (await fetch(w.app, "GET", "/api/runs/r-1")).json()
        assert (record["status"], record["finishedAt"], record["closed"]) == ("interrupted", None, True)


async def test_an_answer_starts_the_next_run_and_completes_the_one_that_asked() -> None:
    async with world() as w:
        await asked(w)
        await begun(w, "r-2", resume=[ANSWER])
        await until(lambda: ("start", "r-2") in w.supervisor.told, "the start of the next run")
        old = await w.head("r-1")
        assert (old.status, old.finished_at is None) == (Status.COMPLETED, False)
        state = await hydrated(w)
        assert (state["interrupts"], state["activeRun"]) == (None, {"runId": "r-2"})
        record = (await fetch(w.app, "GET", "/api/runs/r-2")).json()
        assert record["input"]["resume"] == [ANSWER]


async def test_the_same_answer_again_joins() -> None:
    async with world() as w:
        await asked(w)
        await begun(w, "r-2", resume=[ANSWER])
        await begun(w, "r-2", resume=[ANSWER])
        other = await post(w.app, "r-2", json_body=chat_body(resume=[{**ANSWER, "status": "cancelled"}])).done()
        assert (other.status, other.json()["error"]["code"]) == (409, "run_exists")


async def test_an_answer_to_what_nobody_asks_is_refused_and_changes_nothing() -> None:
    async with world() as w:
        for before in (False, True):
            if before:
                await asked(w)
            for answer in ({**ANSWER, "interruptId": "q-9"}, {"interruptId": "q-1", "status": "maybe"}, "yes"):
                call = await post(w.app, "r-2", json_body=chat_body(resume=[answer])).done()
                assert (call.status, call.json()["error"]["code"]) == (400, "resume_invalid")
        assert (await w.head("r-1")).status is Status.INTERRUPTED
        assert await w.shard.real.record("r-2") is None


async def test_a_message_on_a_thread_that_waits_for_an_answer_is_told_so_or_takes_its_turn() -> None:
    async with world() as w:
        await asked(w)
        busy = await post(w.app, "r-2").done()
        assert busy.status == 409
        assert busy.json()["error"]["code"] == "thread_active"
        assert "r-1" in busy.json()["error"]["message"]
        await begun(w, "r-3", forwardedProps={"onBusy": "cancel-previous"})
        await until(lambda: ("cancel", "r-1") in w.supervisor.told, "the cancel of the run that asks")
        assert (await w.head("r-3")).queued
        assert (await hydrated(w))["interrupts"] is None
        late = await post(w.app, "r-4", json_body=chat_body(resume=[ANSWER])).done()
        assert late.json()["error"]["code"] == "resume_invalid"


async def test_stop_on_a_thread_that_waits_for_an_answer_ends_its_run() -> None:
    async with world() as w:
        await asked(w)
        call = await fetch(w.app, "POST", "/api/chat/cancel", json_body={"threadId": "t-1"})
        assert call.status == 204
        await until(lambda: ("cancel", "r-1") in w.supervisor.told, "the supervisor to know")
        assert (await w.head("r-1")).cancel_requested
