"""`/api/chat`: start, attach, hydrate, active, cancel."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.core.ids import ThreadId
from runtime.core.ops import Create, Created, Done, Joined, Outcome, RequestCancel
from runtime.core.record import CancelReason, Head
from runtime.core.refusing import to_error
from runtime.core.retention import LogPruned
from runtime.errors import InputInvalid
from serve_app import openapi, requests, schemas
from serve_app.access import Caller, caller_of
from serve_app.asking import answer
from serve_app.body import check_type, read_object
from serve_app.frames import accepted
from serve_app.gateway import Gateway, json_response
from serve_app.requests import Start
from serve_app.stream import View
from serve_app.threads import Threads


class Chat:
    """The handlers."""

    def __init__(self, gateway: Gateway, threads: Threads) -> None:
        self._gateway = gateway
        self._threads = threads

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        for path, post, get, suffix in (
            ("/api/chat", self.post, self.get, ""),
            ("/api/chat/ndjson", self.post_ndjson, self.get_ndjson, "_ndjson"),
        ):
            router.add_api_route(path, post, methods=["POST"], **openapi.start(suffix))
            router.add_api_route(path, get, methods=["GET"], **openapi.attach(suffix))
        router.add_api_route("/api/chat/active", self.active, methods=["GET"], **openapi.active())
        router.add_api_route("/api/chat/cancel", self.cancel, methods=["POST"], **openapi.cancel())

    # --- POST ---

    async def post(self, request: Request) -> Response:
        """Start a run, or join it if this very request has started it before."""
        return await self._post(request, ndjson=False)

    async def post_ndjson(self, request: Request) -> Response:
        """Start a run, or join it; the answer is NDJSON."""
        return await self._post(request, ndjson=True)

    async def _post(self, request: Request, *, ndjson: bool) -> Response:
        gateway, headers, caller = self._gateway, request.headers, caller_of(request)
        check_type(request)
        if gateway.replica.draining.is_set():
            return gateway.stream(View("", requests.format_of(headers, ndjson), caller))
        body = await read_object(request, gateway.settings)
        if requests.last_event_id(headers) is not None:
            return await gateway.attach(requests.attach_of_post(headers, body, caller, ndjson=ndjson))
        start = requests.start_of(headers, body, caller, gateway.settings, gateway.harnesses, ndjson=ndjson)
        gateway.check_room(caller)
        if start.create.resumes:
            await self._threads.check_answers(caller, start.create)
        gateway.check_caller(caller)
        # A client that leaves now has started its run all the same (I6), and someone must be told to drive it.
        creating = gateway.background.spawn(self._create(start.create), f"create {start.create.run_id}")
        return self._started(start, await asyncio.shield(creating))

    async def _create(self, create: Create) -> Outcome:
        gateway = self._gateway
        outcome = await answer(lambda: gateway.cluster.shard(create.run_id).submit(create))
        supervisor = gateway.cluster.supervisor()
        match outcome:
            case Created(head=head, cancelled_previous=previous, resumed=resumed):
                if previous is not None:
                    gateway.tell("cancel", previous, self._cancel_previous)
                if resumed is not None:
                    gateway.tell("resumed", resumed.run_id, self._look_again)
                if head.needs_driver:
                    gateway.tell("start", head.run_id, supervisor.start)
            case Joined(head=head) if head.needs_driver:
                gateway.tell("ensure", head.run_id, supervisor.ensure)
        return outcome

    async def _cancel_previous(self, run_id: str) -> None:
        """Tell who drives the run that a creation has cancelled. Its shard, which may be another than the creation's,
        hears it first: recorded already, it is only learnt there."""
        cluster = self._gateway.cluster
        await cluster.shard(run_id).submit(RequestCancel(run_id=run_id, reason=CancelReason.USER))
        await cluster.supervisor().cancel(run_id)

    async def _look_again(self, run_id: str) -> None:
        """Have the shard of an interrupted run learn that it is completed: the creation's may be another."""
        await self._gateway.cluster.shard(run_id).record(run_id)

    def _started(self, start: Start, outcome: Outcome) -> Response:
        """Return the stream from the log's start. The first chunk of a new run is what its creation just stored."""
        run_id = start.create.run_id
        if not isinstance(outcome, Created | Joined):
            raise to_error(outcome)  # type: ignore[arg-type]  # a Create has no other answer
        if outcome.head.log_gone:
            raise LogPruned(outcome.head)
        generation = outcome.head.generation
        known = accepted(generation) if isinstance(outcome, Created) else None
        view = View(run_id, start.format, start.caller, strict=start.strict, known=known, generation=generation)
        return self._gateway.stream(view)

    # --- GET ---

    async def get(self, request: Request) -> Response:
        """Follow a run's log past an offset; or, with `threadId` alone, return what a page needs to show a thread."""
        return await self._get(request, ndjson=False)

    async def get_ndjson(self, request: Request) -> Response:
        """Follow a run's log past an offset as NDJSON; or hydrate."""
        return await self._get(request, ndjson=True)

    async def _get(self, request: Request, *, ndjson: bool) -> Response:
        caller = caller_of(request)
        asked = requests.attach_of_get(request.headers, request.query_params, caller, ndjson=ndjson)
        if asked is None or isinstance(asked, ThreadId):
            return json_response(await self._threads.hydrated(caller, asked))
        return await self._gateway.attach(asked)

    async def active(self, request: Request) -> Response:
        """Return the thread's active run."""
        thread_id = str(ThreadId.parse(request.query_params.get("threadId")))
        caller = caller_of(request)
        head = await self._active(caller, thread_id)
        return json_response({"runId": None if head is None else caller.shown(head.run_id)})

    async def _active(self, caller: Caller, thread_id: str) -> Head | None:
        return await answer(lambda: self._gateway.any_shard.find_active(caller.owner, thread_id))

    # --- cancel ---

    async def cancel(self, request: Request) -> Response:
        """Record that a run shall stop; 204 once that is durable, also if there is nothing to stop."""
        body = await read_object(request, self._gateway.settings)
        caller = caller_of(request)
        run_id = await self._run_to_cancel(caller, requests.check(schemas.CancelBody, body))
        self._gateway.check_caller(caller)
        if run_id is not None:
            # As with a start: what the user has asked for is done also if the tab is closed now.
            work = self._gateway.background.spawn(self._cancel(run_id), f"cancel {run_id}")
            await asyncio.shield(work)
        return Response(status_code=204)

    async def _run_to_cancel(self, caller: Caller, body: schemas.CancelBody) -> str | None:
        if body.run_id is not None:
            run_id = caller.key(body.run_id)
            found = await answer(lambda: self._gateway.cluster.shard(run_id).record(run_id))
            return run_id if found is not None and caller.sees(found[0]) else None
        if body.thread_id is None:
            raise InputInvalid("Say what to stop: threadId, or runId.", code="input_invalid", field="threadId")
        thread_id = str(ThreadId.parse(body.thread_id))
        head = await self._active(caller, thread_id)
        if head is None or head.cancel_requested:
            # Stop once more while the run before is still stopping: it is meant for the one that waits behind it.
            head = await self._threads.waiting(caller, thread_id) or head
        return None if head is None else head.run_id

    async def _cancel(self, run_id: str) -> None:
        gateway = self._gateway
        op = RequestCancel(run_id=run_id, reason=CancelReason.USER)
        outcome = await answer(lambda: gateway.cluster.shard(run_id).submit(op))
        if isinstance(outcome, Done) and not outcome.head.status.terminal:
            gateway.tell("cancel", run_id, gateway.cluster.supervisor().cancel)
