"""`/api/nodes`: what is done to a whole node."""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import InputInvalid
from serve_app import openapi
from serve_app.asking import answer
from serve_app.body import check_type
from serve_app.gateway import Gateway, json_response

WITHIN_S = 120
LONGEST_S = 86400


class NodeRoutes:
    """The handlers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        router.add_api_route("/api/nodes/{node}/drain", self.drain, methods=["POST"], **openapi.drain())

    async def drain(self, request: Request) -> Response:
        """Begin to drain the node, and tell what is still on it: asked again, it only tells."""
        if "content-type" in request.headers:
            check_type(request)
        node, within_s = request.path_params["node"], _within(request.query_params.get("withinS"))
        report = await answer(lambda: self._gateway.cluster.supervisor().drain_node(node, within_s))
        return json_response(report)


def _within(text: str | None) -> float:
    if text is None:
        return WITHIN_S
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > LONGEST_S:
        message = f"withinS must be a whole number of seconds up to {LONGEST_S}."
        raise InputInvalid(message, code="within_invalid", field="withinS")
    return float(text)
