"""Which HTTP status each error has: the one place that decides it, and the one shape that every error is sent in.

    {"error": {"code": "thread_active", "message": "Thread 't' is busy with run 'r'. Wait for it, ..."}}

The rule behind the table: the branch of `runtime/errors.py` says what the caller does next, and the status says the
same in HTTP. A client may change the request (4xx), or ask again later (429, 503, with Retry-After). Errors that no
request can cause are listed too: a test holds the table complete, so that a new one is decided here.

The framework's own errors are sent in the same shape. None carries a stack trace.
"""

from __future__ import annotations

import logging

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from runtime import errors
from runtime.core import result, retention
from runtime.delivery import errors as delivery
from serve_app import tokens
from serve_app.body import BodyTooSlow

log = logging.getLogger("outlast.gateway")

STATUS: dict[type[errors.OutlastError], int] = {
    errors.InputInvalid: 400,
    tokens.Unauthorized: 401,
    errors.OriginRefused: 403,
    tokens.OperatorOnly: 403,
    errors.RunNotFound: 404,
    errors.ThreadNotFound: 404,
    result.WorkspaceNotFound: 404,
    BodyTooSlow: 408,
    errors.RunExists: 409,
    errors.ThreadActive: 409,
    errors.RunEnded: 409,
    errors.LogClosedError: 409,
    errors.OffsetGone: 410,
    retention.LogPruned: 410,
    result.WorkspaceGone: 410,
    delivery.LogGone: 410,
    delivery.NoFirstChunk: 410,
    errors.BodyTooLarge: 413,
    result.WorkspaceTooLarge: 413,
    errors.MediaTypeUnsupported: 415,
    errors.TooMany: 429,
    # Somebody newer answers from now on: ask again.
    errors.RunClaimLostError: 503,
    errors.ShardSuperseded: 503,
    errors.SupervisorSuperseded: 503,
    delivery.RunClaimNotAcquiredError: 503,
    delivery.LogNotQuietError: 503,
    errors.StoreError: 503,
    errors.StoreUnavailable: 503,
    errors.StoreFull: 503,
    errors.StoreRefused: 503,
    errors.InstanceNotFound: 503,
    errors.RayUnreachable: 503,
    # Of a run's result: where its workspace is.
    errors.SandboxUnreachable: 503,
    errors.NoRoom: 503,
    # No request causes these; if one is answered with them, that is our bug.
    errors.SequenceConflictError: 500,
    delivery.RunDriverPipeOutsideClaimError: 500,
    errors.LaunchFailed: 500,
    errors.SandboxLost: 500,
    errors.WorkspaceHeld: 500,
    errors.JournalUnavailable: 500,
    errors.JournalReplayDivergedError: 500,
    errors.JournalReplayThreadIdMismatchError: 500,
    errors.PortInUse: 500,
    errors.DataDirRefused: 500,
}

# Seconds. A dead shard is back after 2 s; a full or refusing store waits for a person.
RETRY_AFTER_S = 2
RETRY_AFTER_PERSON_S = 30
BUG = 500

_INTERNAL = "Something went wrong inside Outlast; its log says what."
_FRAMEWORK = {
    404: ("not_found", "There is nothing at this path. GET /openapi.json lists what there is."),
    405: ("method_not_allowed", "This path does not take this method. GET /openapi.json lists what there is."),
}


def status_of(error: errors.OutlastError) -> int:
    """Return the status of `error`: that of its class, or of the nearest class above it; 500 for none."""
    return next((STATUS[cls] for cls in type(error).__mro__ if cls in STATUS), 500)


def retry_after_s(error: errors.OutlastError) -> int:
    """Return what `Retry-After` says for a 429 or 503."""
    if isinstance(error, errors.TooMany):
        return error.retry_after_s
    return RETRY_AFTER_PERSON_S if isinstance(error, errors.StoreFull | errors.StoreRefused) else RETRY_AFTER_S


def body(code: str, message: str) -> dict[str, dict[str, str]]:
    """Return the body that every error is sent with."""
    return {"error": {"code": code, "message": message}}


def response(error: errors.OutlastError) -> JSONResponse:
    """Return the answer for `error`."""
    status = status_of(error)
    headers = {"Cache-Control": "no-store"}
    if status in (429, 503):
        headers["Retry-After"] = str(retry_after_s(error))
    if isinstance(error, tokens.Unauthorized):
        headers["WWW-Authenticate"] = "Bearer" if error.code == "token_missing" else 'Bearer error="invalid_token"'
    if isinstance(error, errors.BodyTooLarge | BodyTooSlow):
        headers["Connection"] = "close"  # the rest of the body is not read
    if status == BUG:
        log.error("a request met an error that no request should meet", exc_info=error)
        return JSONResponse(body("internal", _INTERNAL), status, headers)
    return JSONResponse(body(error.code, error.message), status, headers)


async def on_outlast(request: Request, error: Exception) -> JSONResponse:
    """Answer an error of ours."""
    del request
    assert isinstance(error, errors.OutlastError)
    return response(error)


async def on_http(request: Request, error: Exception) -> JSONResponse:
    """Answer an error of the framework."""
    del request
    assert isinstance(error, HTTPException)
    code, message = _FRAMEWORK.get(error.status_code, ("request_refused", str(error.detail)))
    return JSONResponse(body(code, message), error.status_code, error.headers)


async def on_validation(request: Request, error: Exception) -> JSONResponse:
    """Answer a parameter that the framework's own check refused."""
    del request
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return response(errors.InputInvalid(f"{place}: {first['msg']}", field=place))


async def on_gone(request: Request, error: Exception) -> Response:
    """Answer a client that left while it sent its body: nobody reads it, and it is no failure."""
    del request, error
    return Response(status_code=400)


async def on_unexpected(request: Request, error: Exception) -> JSONResponse:
    """Answer a bug; the server logs the error with its trace."""
    del request, error
    return JSONResponse(body("internal", _INTERNAL), 500, {"Cache-Control": "no-store"})
