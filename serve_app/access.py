"""Who asks, decided once for every request, before any route (design 9).

    no OUTLAST_TOKENS_FILE     everybody who reaches us is the operator, and only this machine does
    a bearer token             its owner, or the operator
    a session's cookie         the same, of the token that it stands for (`sessions.py`)
    none of these              401, on every path but /healthz and /readyz

An owner's paths are listed here; any other path is the operator's, a new one too until it is listed. What a path shows
is the routes' own: they ask a `Caller` for the keys of runs, and the keys of one owner cannot name a run of another.

The operator is the owner `local`: whoever has the machine. He names runs of others by their keys, `owner@runId`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.core.ids import LOCAL_OWNER, RunId, RunKey, run_key, shown_run_id
from runtime.core.record import Head, RunSpec, to_wire
from runtime.errors import OriginRefused, OutlastError
from serve_app import error_table
from serve_app.cursors import Cursors
from serve_app.sessions import Sessions, check_sender
from serve_app.tokens import OperatorOnly, Tokens, Unauthorized, bearer

OPEN = frozenset({"/healthz", "/readyz"})
OF_OWNERS = ("/api/chat", "/api/runs", "/api/threads", "/api/session", "/openapi.json")
RELOAD_S = 1.0
_CALLER = "outlast.caller"


@dataclass(frozen=True)
class Caller:
    """Who asks: an owner. `grant` is the hash of the token that said so."""

    owner: str = LOCAL_OWNER
    grant: bytes = b""

    @property
    def operator(self) -> bool:
        """Return whether this is the operator."""
        return self.owner == LOCAL_OWNER

    def new_key(self, run_id: str) -> str:
        """Return the key of a run of the caller's own. Raises InputInvalid `run_id_invalid`."""
        return run_key(self.owner, str(RunId.parse(run_id)))

    def key(self, text: object) -> str:
        """Return the key of the run that the caller means. Raises InputInvalid `run_id_invalid`."""
        return str(RunKey.parse(text)) if self.operator else run_key(self.owner, str(RunId.parse(text)))

    def shown(self, key: str) -> str:
        """Return what the caller calls a run."""
        return key if self.operator else shown_run_id(key)

    def sees(self, head: Head) -> bool:
        """Return whether the run exists for the caller."""
        return self.operator or head.owner == self.owner

    def record(self, head: Head, spec: RunSpec, **more: Any) -> dict[str, Any]:
        """Return the run's record as the caller is shown it."""
        return {**to_wire(head, spec, **more), "runId": self.shown(head.run_id)}


EVERYBODY = Caller()


def caller_of(request: Request) -> Caller:
    """Return who asks."""
    caller: Caller = request.scope[_CALLER]
    return caller


def is_operator(request: Request) -> bool:
    """Return whether the operator asks; of a path that is open, nobody may."""
    caller: Caller | None = request.scope[_CALLER]
    return caller is not None and caller.operator


class Access:
    """Tells who asks, by the tokens that are taken now."""

    def __init__(self, tokens: Tokens, sessions: Sessions) -> None:
        self.tokens = tokens
        self.sessions = sessions
        self.cursors = Cursors(sessions.key_for(b"cursors"))

    def caller(self, method: str, headers: Headers) -> Caller:
        """Return who sent a request with these headers. Raises Unauthorized, OriginRefused."""
        sent = headers.get("authorization")
        grant = self.sessions.grant_of(headers) if sent is None else bearer(sent)
        if grant is None:
            raise Unauthorized(
                "This server takes nobody without a token: send the header Authorization: Bearer <token>."
            )
        if sent is None:
            check_sender(method, headers)
        owner = self.tokens.owner_of(grant)
        if owner is None:
            raise _not_taken()
        return Caller(owner, grant)

    def takes(self, caller: Caller) -> bool:
        """Return whether the token that `caller` came with is still his."""
        return self.tokens.owner_of(caller.grant) == caller.owner

    def check(self, caller: Caller) -> None:
        """Check that `caller` may go on with what he asked for some time ago. Raises Unauthorized."""
        if not self.takes(caller):
            raise _not_taken()


class AccessCheck:
    """ASGI middleware, inside of the check of origins and outside of every route."""

    def __init__(self, app: ASGIApp, access: Access | None) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 401 or 403, or pass on with the caller known."""
        if scope["type"] == "http":
            try:
                scope[_CALLER] = self._caller(scope["method"], get_route_path(scope), Headers(scope=scope))
            except OutlastError as error:
                await error_table.response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _caller(self, method: str, path: str, headers: Headers) -> Caller | None:
        if self._access is None:
            return EVERYBODY
        try:
            caller = self._access.caller(method, headers)
        except (Unauthorized, OriginRefused):
            if path in OPEN:
                return None
            raise
        if not (caller.operator or path in OPEN or _of_owners(path)):
            raise OperatorOnly("This is about all owners: only the operator's token may ask for it.")
        return caller


def _not_taken() -> Unauthorized:
    return Unauthorized("This token is not, or no longer, taken.", code="token_invalid")


def _of_owners(path: str) -> bool:
    return any(path == one or path.startswith(one + "/") for one in OF_OWNERS)
