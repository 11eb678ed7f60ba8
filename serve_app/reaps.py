"""`/api/reap`: one sweep of the reaper, now, and its report."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import InputInvalid
from serve_app import openapi
from serve_app.asking import answer
from serve_app.body import check_type
from serve_app.gateway import Gateway, json_response

WITHIN_S = 25.0  # a sweep bounds itself to less; the command line waits for longer
BOOLEANS = {None: False, "true": True, "false": False}


class ReapRoutes:
    """The handler."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        router.add_api_route("/api/reap", self.reap, methods=["POST"], **openapi.reap())

    async def reap(self, request: Request) -> Response:
        """Sweep once; with `dryRun=true`, only tell what a sweep would look at."""
        if "content-type" in request.headers:
            check_type(request)
        text = request.query_params.get("dryRun")
        if text not in BOOLEANS:
            raise InputInvalid("dryRun must be true or false.", code="dry_run_invalid", field="dryRun")
        report = await answer(lambda: self._gateway.cluster.supervisor().reap(BOOLEANS[text]), WITHIN_S)
        return json_response(report)
