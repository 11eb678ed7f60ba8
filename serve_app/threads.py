"""Threads: what was said, which runs there were, what is active, and what waits for the user's answer.

Messages come from the stored transcripts of ended runs, and from the logs of those that are at work."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.core.ids import ThreadId
from runtime.core.ops import Create
from runtime.core.record import Head, RunSpec, Status
from runtime.core.thread import ThreadRun, thread_messages
from runtime.engine.telling import thread_runs
from runtime.errors import InputInvalid, ThreadNotFound
from serve_app import openapi
from serve_app.access import Caller, caller_of
from serve_app.asking import answer
from serve_app.gateway import Gateway, json_response

# What one answer tells at most of what agents said, newest runs first; of older ones it tells what the user said.
TOLD_BYTES = 16 << 20

Runs = list[tuple[Head, RunSpec]]


class Threads:
    """The handlers, and what `/api/chat` needs of them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        router.add_api_route("/api/threads/{thread_id}", self.thread, methods=["GET"], **openapi.thread())

    async def thread(self, request: Request) -> Response:
        """Return the thread's messages and its runs, oldest first."""
        thread_id = ThreadId.parse(request.path_params["thread_id"])
        caller = caller_of(request)
        runs = await self._runs(caller, thread_id)
        if not runs:
            raise ThreadNotFound(thread_id)
        records = [caller.record(head, spec, claims=False) for head, spec in runs]
        return json_response({"threadId": str(thread_id), "messages": await self._messages(runs), "runs": records})

    async def hydrated(self, caller: Caller, thread_id: str | None) -> dict[str, Any]:
        """Return `{messages, activeRun, interrupts}`; all empty for an unknown thread.

        The active run is asked for first: the other way round, a run that ends between the two questions would be
        in neither answer (contract 4.6)."""
        if thread_id is None:
            return {"messages": [], "activeRun": None, "interrupts": None}
        active = await answer(lambda: self._gateway.any_shard.find_active(caller.owner, thread_id))
        runs = await self._runs(caller, thread_id)
        told = await self._told(runs)
        return {
            "messages": await asyncio.to_thread(thread_messages, told),
            "activeRun": None if active is None else {"runId": caller.shown(active.run_id)},
            "interrupts": _pending(caller, runs, told),
        }

    async def waiting(self, caller: Caller, thread_id: str) -> Head | None:
        """Return the thread's newest run that waits, for its turn or for an answer, and was not cancelled."""
        runs = [head for head, _ in await self._runs(caller, thread_id) if not head.cancel_requested]
        waiting = [head for head in runs if head.queued or head.status is Status.INTERRUPTED]
        return waiting[-1] if waiting else None

    async def check_answers(self, caller: Caller, create: Create) -> None:
        """Check that a run that resumes answers what its thread's interrupted one asks. Whether there is one to resume
        is the store's to say, in the creation. Raises InputInvalid `resume_invalid`."""
        runs = await self._runs(caller, ThreadId.parse(create.thread_id))
        waits = [(head, spec) for head, spec in runs if head.status is Status.INTERRUPTED]
        asked = _pending(caller, waits, await self._told(waits))
        if asked is None or any(head.run_id == create.run_id for head, _ in runs):
            return
        ids = [each.get("id") for each in asked["pending"]]
        unknown = [each["interruptId"] for each in create.spec.input["resume"] if each["interruptId"] not in ids]
        if ids and unknown:
            raise InputInvalid(
                f"resume answers {', '.join(unknown)}; run {asked['runId']} asks {', '.join(map(str, ids))}.",
                code="resume_invalid",
                field="resume",
            )

    async def _runs(self, caller: Caller, thread_id: str) -> Runs:
        return await answer(lambda: self._gateway.any_shard.list_thread(caller.owner, thread_id))

    async def _messages(self, runs: Runs) -> list[dict[str, Any]]:
        return await asyncio.to_thread(thread_messages, await self._told(runs))

    async def _told(self, runs: Runs) -> list[ThreadRun]:
        return await thread_runs(runs, self._gateway.cluster.shard, answer, TOLD_BYTES)


def _pending(caller: Caller, runs: Runs, told: list[ThreadRun]) -> dict[str, Any] | None:
    """Return what the thread's interrupted run waits for (P23), unless it is being ended."""
    for (head, _), run in zip(reversed(runs), reversed(told), strict=True):
        if head.status is Status.INTERRUPTED and not head.cancel_requested:
            return {"runId": caller.shown(head.run_id), "pending": run.said.interrupts}
    return None
