"""`/api/session`: begin and end a session (`sessions.py`)."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serve_app import openapi
from serve_app.access import caller_of
from serve_app.body import check_type
from serve_app.gateway import Gateway, json_response
from serve_app.sessions import is_secure
from serve_app.tokens import Unauthorized


class SessionRoutes:
    """The handlers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._path = f"{gateway.settings.route_prefix.rstrip('/')}/"

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        router.add_api_route("/api/session", self.begin, methods=["POST"], **openapi.begin_session())
        router.add_api_route("/api/session", self.end, methods=["DELETE"], **openapi.end_session())

    async def begin(self, request: Request) -> Response:
        """Give the bearer of a token a cookie that stands for it. Without tokens there is nothing to stand for.

        Raises Unauthorized `token_missing` if it is a cookie that asks: a session does not prolong itself."""
        if "content-type" in request.headers:
            check_type(request)
        access, caller = self._gateway.replica.access, caller_of(request)
        if access is None:
            return json_response({"owner": caller.owner, "expiresAt": None})
        if "authorization" not in request.headers:
            raise Unauthorized("A session begins with a token: send the header Authorization: Bearer <token>.")
        secure = is_secure(request.scope["scheme"], request.headers)
        ttl_s = self._gateway.settings.session_ttl_s
        cookie, ends = access.sessions.cookie(caller.grant, ttl_s, self._path, secure=secure)
        response = json_response({"owner": caller.owner, "expiresAt": ends * 1000})
        response.headers["Set-Cookie"] = cookie
        return response

    async def end(self, request: Request) -> Response:
        """Have the browser forget its session."""
        response = Response(status_code=204, headers={"Cache-Control": "no-store"})
        if (access := self._gateway.replica.access) is not None:
            secure = is_secure(request.scope["scheme"], request.headers)
            response.headers["Set-Cookie"] = access.sessions.no_cookie(self._path, secure=secure)
        return response
