"""`/api/runs`: records, the agent's stderr, takeover by a person."""

from __future__ import annotations

import re

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.core.ids import ThreadId
from runtime.core.record import Status
from runtime.errors import InputInvalid, RunEnded, RunNotFound
from runtime.ports import RunQuery
from serve_app import openapi
from serve_app.access import caller_of
from serve_app.asking import answer
from serve_app.body import check_type
from serve_app.gateway import Gateway, json_response

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


def query_of(request: Request) -> RunQuery:
    """Return the page that is asked for. Raises InputInvalid `status_invalid`, `limit_invalid` and the id's."""
    query, caller = request.query_params, caller_of(request)
    status, thread_id, limit = query.get("status"), query.get("threadId"), query.get("limit")
    if status is not None and status not in {known.value for known in Status}:
        raise InputInvalid(
            f"status must be one of {', '.join(known.value for known in Status)}.",
            code="status_invalid",
            field="status",
        )
    if limit is not None and not (re.fullmatch("[0-9]{1,3}", limit) and 1 <= int(limit) <= MAX_LIMIT):
        raise InputInvalid(f"limit must be a whole number from 1 to {MAX_LIMIT}.", code="limit_invalid", field="limit")
    return RunQuery(
        owner=None if caller.operator else caller.owner,
        status=None if status is None else Status(status),
        thread_id=None if thread_id is None else str(ThreadId.parse(thread_id)),
        limit=DEFAULT_LIMIT if limit is None else int(limit),
        cursor=query.get("cursor"),
    )


class Runs:
    """The handlers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        router.add_api_route("/api/runs", self.page, methods=["GET"], **openapi.runs())
        router.add_api_route("/api/runs/{run_id}", self.record, methods=["GET"], **openapi.run())
        router.add_api_route("/api/runs/{run_id}/stderr", self.stderr, methods=["GET"], **openapi.stderr())
        router.add_api_route("/api/runs/{run_id}/takeover", self.takeover, methods=["POST"], **openapi.takeover())

    async def page(self, request: Request) -> Response:
        """Return a page of runs, newest first. An owner's cursors are sealed: a store's count everybody's runs."""
        query, caller, access = query_of(request), caller_of(request), self._gateway.replica.access
        sealing = None if access is None or caller.operator else access.cursors
        if sealing and query.cursor is not None:
            query = msgspec.structs.replace(query, cursor=sealing.open(caller.owner, query.cursor))
        page = await answer(lambda: self._gateway.any_shard.list_runs(query))
        more = sealing.seal(caller.owner, page.next) if sealing and page.next is not None else page.next
        records = [caller.record(head, spec, claims=False) for head, spec in page.runs]
        return json_response({"runs": records, "next": more})

    async def record(self, request: Request) -> Response:
        """Return the record with its claims and refusals."""
        head, spec = await self._gateway.find(caller_of(request), run_id_of(request))
        refusals = await answer(lambda: self._gateway.cluster.shard(head.run_id).refusals(head.run_id))
        return json_response(caller_of(request).record(head, spec, claims=True, refusals=refusals))

    async def stderr(self, request: Request) -> Response:
        """Return the end of the agent's stderr, stored when the run ended; empty before that."""
        run_id = run_id_of(request)
        await self._gateway.find(caller_of(request), run_id)
        tail = await answer(lambda: self._gateway.cluster.shard(run_id).stderr(run_id))
        # It is the agent's, and must not be taken for a page of ours.
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return Response(tail or b"", headers=headers, media_type="text/plain")

    async def takeover(self, request: Request) -> Response:
        """Replace the run's driver because a person says so."""
        if "content-type" in request.headers:
            check_type(request)
        caller = caller_of(request)
        head, _ = await self._gateway.find(caller, run_id_of(request))
        if head.status.terminal:
            raise RunEnded(caller.shown(head.run_id), head.status.value)
        self._gateway.check_caller(caller)
        epoch = await answer(lambda: self._gateway.cluster.supervisor().takeover(head.run_id))
        return json_response({"runId": caller.shown(head.run_id), "fromEpoch": epoch}, 202)


def run_id_of(request: Request) -> str:
    """Return the key of the run in the path; an id that no run can have is a run that does not exist."""
    text = request.path_params["run_id"]
    try:
        return caller_of(request).key(text)
    except InputInvalid:
        raise RunNotFound(text) from None
