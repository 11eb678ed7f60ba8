"""What `/openapi.json` says of each route: parameters, bodies and every status that it may answer.

The handlers read and check requests themselves (a body has to be bounded while it is read), so the framework cannot
tell any of this from their signatures.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from runtime.core.record import Status
from runtime.core.result import Form
from serve_app import schemas

Route = dict[str, Any]

_REF = "#/components/schemas/{model}"
_OFFSET = r"^(-1|now|[0-9]{16}_[0-9]{16})$"
_WHY = {
    400: "Malformed; `code` names the rule",
    401: "A token is missing, or is not taken",
    403: "This origin or host may not call",
    404: "Does not exist",
    409: "`run_exists`, `thread_active` or `run_ended`",
    410: "What is asked for is not kept any more; `code` says what",
    408: "The body came too slowly",
    413: "The body, or what is asked for, is over the limit",
    415: "The body is not declared as JSON",
    429: "Too much at once; see Retry-After",
    503: "Cannot be answered now; see Retry-After",
}


def install(app: FastAPI) -> None:
    """Make `app.openapi` describe the request bodies too."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            bodies = [(schemas.ChatBody, "validation"), (schemas.CancelBody, "validation")]
            _, defined = models_json_schema(bodies, ref_template=_REF)  # type: ignore[arg-type]
            document.setdefault("components", {}).setdefault("schemas", {}).update(defined["$defs"])
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    # 401, 403 and 503 can meet every request; "default" is what keeps the framework's own 422 out of the document.
    known: dict[int | str, dict[str, Any]] = {
        status: {"model": schemas.ErrorBody, "description": _WHY[status]}
        for status in sorted({401, 403, 503, *statuses})
    }
    known["default"] = {"model": schemas.ErrorBody, "description": "Any other error"}
    return known


def _json(model: type, description: str) -> dict[str, Any]:
    return {"model": model, "description": description}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


# As in every OpenAPI before 3.2, the schema of a stream describes each of its events.
_OFFSET_SCHEMA = {"type": "string", "pattern": r"^[0-9]{16}_[0-9]{16}$"}
_CHUNK_SCHEMA = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}
_STREAMS: dict[str, dict[str, Any]] = {
    "text/event-stream": {
        "type": "object",
        "required": ["id", "data"],
        "properties": {
            "id": _OFFSET_SCHEMA,
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": _CHUNK_SCHEMA},
        },
    },
    "application/x-ndjson": {
        "type": "object",
        "required": ["id", "chunk"],
        "properties": {"id": _OFFSET_SCHEMA, "chunk": _CHUNK_SCHEMA},
    },
}


def _stream(description: str, suffix: str) -> dict[str, Any]:
    names = ["application/x-ndjson"] if suffix else list(_STREAMS)
    return {"description": description, "content": {name: {"schema": _STREAMS[name]} for name in names}}


def _param(name: str, place: str, description: str, required: bool = False, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": required,
        "description": description,
        "schema": {"type": "string", **schema},
    }


def _body(model: type) -> dict[str, Any]:
    return {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}},
    }


_RUN_HEADER = _param("X-Run-Id", "header", "The run; else as said for runId.", **schemas.ID_SCHEMA)
_EVENT_HEADER = _param("Last-Event-ID", "header", "Send what follows this offset.", pattern=_OFFSET)
_THREAD_QUERY = _param("threadId", "query", "The thread.", **schemas.ID_SCHEMA)
_RUN_PATH = _param("run_id", "path", "The run.", required=True, **schemas.ID_SCHEMA)


def _route(
    name: str, status: int, answer: dict[str, Any], errors: tuple[int, ...], extra: dict[str, Any] | None = None
) -> Route:
    return {
        "operation_id": name,
        "status_code": status,
        "response_model": None,
        "responses": {status: answer, **_errors(*errors)},
        "openapi_extra": extra or {},
    }


def start(suffix: str) -> Route:
    """Describe POST /api/chat."""
    answer = _stream("The run's chunks, until its log is closed", suffix)
    extra = {"parameters": [_RUN_HEADER, _EVENT_HEADER], "requestBody": _body(schemas.ChatBody)}
    return _route(f"start{suffix}", 200, answer, (400, 404, 408, 409, 410, 413, 415, 429), extra)


def attach(suffix: str) -> Route:
    """Describe GET /api/chat."""
    stream = _stream("The chunks past the offset, until the log is closed; or, for a thread, its state", suffix)
    stream["content"]["application/json"] = {"schema": {"$ref": _REF.format(model="Hydrated")}}
    extra = {
        "parameters": [
            _RUN_HEADER,
            _EVENT_HEADER,
            _param("runId", "query", "The run, if X-Run-Id is absent.", **schemas.ID_SCHEMA),
            _param("offset", "query", "Send what follows: -1 the start, now the end.", pattern=_OFFSET),
            _THREAD_QUERY,
        ]
    }
    route = _route(f"attach{suffix}", 200, stream, (400, 404, 410), extra)
    route["responses"][200]["model"] = schemas.Hydrated
    route["responses"][204] = {"description": "Nothing follows, and the log is closed: an EventSource stops"}
    return route


def active() -> Route:
    """Describe GET /api/chat/active."""
    thread = {**_THREAD_QUERY, "required": True}
    return _route("active", 200, _json(schemas.ActiveRun, "The active run"), (400,), {"parameters": [thread]})


def cancel() -> Route:
    """Describe POST /api/chat/cancel."""
    answer = {"description": "Recorded, or nothing to stop"}
    return _route("cancel", 204, answer, (400, 408, 413, 415), {"requestBody": _body(schemas.CancelBody)})


def runs() -> Route:
    """Describe GET /api/runs."""
    extra = {
        "parameters": [
            _param("status", "query", "Only runs of this status.", enum=[status.value for status in Status]),
            _THREAD_QUERY,
            {**_param("limit", "query", "Runs per page."), "schema": {"type": "integer", "minimum": 1, "maximum": 200}},
            _param("cursor", "query", "The `next` of the page before."),
        ]
    }
    return _route("runs", 200, _json(schemas.RunPageBody, "One page"), (400,), extra)


def run() -> Route:
    """Describe GET /api/runs/{run_id}."""
    record = _json(dict[str, Any], "The record, with its claims")
    return _route("run", 200, record, (404,), {"parameters": [_RUN_PATH]})


def stderr() -> Route:
    """Describe GET /api/runs/{run_id}/stderr."""
    return _route("stderr", 200, _text("The end of stderr"), (404,), {"parameters": [_RUN_PATH]})


def result() -> Route:
    """Describe GET /api/runs/{run_id}/workspace."""
    files = {"type": "array", "items": schemas.ChangedFile.model_json_schema()}
    answer = {
        "description": "The result",
        "content": {
            "application/json": {"schema": files},
            "text/x-diff": {"schema": {"type": "string"}},
            "application/gzip": {"schema": {"type": "string", "format": "binary"}},
        },
    }
    form = _param("as", "query", "In which form.", required=True, enum=[one.value for one in Form])
    return _route("result", 200, answer, (400, 404, 410, 413, 429), {"parameters": [_RUN_PATH, form]})


def takeover() -> Route:
    """Describe POST /api/runs/{run_id}/takeover."""
    answer = _json(schemas.Taken, "Begun")
    return _route("takeover", 202, answer, (404, 409, 415), {"parameters": [_RUN_PATH]})


def drain() -> Route:
    """Describe POST /api/nodes/{node}/drain."""
    within: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 86400, "default": 120}
    parameters = [
        _param("node", "path", "Its id, the beginning of it, its address or host name.", required=True, type="string"),
        _param("withinS", "query", "When it is to be empty.", **within),
    ]
    return _route("drain", 200, _json(schemas.Drained, "What is on it"), (400, 415), {"parameters": parameters})


def reap() -> Route:
    """Describe POST /api/reap."""
    parameters = [_param("dryRun", "query", "Only look.", type="boolean", default=False)]
    return _route("reap", 200, _json(schemas.ReapReport, "What came of it"), (400, 415), {"parameters": parameters})


def thread() -> Route:
    """Describe GET /api/threads/{thread_id}."""
    path = _param("thread_id", "path", "The thread.", required=True, **schemas.ID_SCHEMA)
    return _route("thread", 200, _json(schemas.ThreadBody, "The thread"), (400, 404), {"parameters": [path]})


def begin_session() -> Route:
    """Describe POST /api/session."""
    return _route("begin_session", 200, _json(schemas.Session, "A cookie that stands for the token"), (415,))


def end_session() -> Route:
    """Describe DELETE /api/session."""
    return _route("end_session", 204, {"description": "The cookie is forgotten"}, ())


def healthz() -> Route:
    """Describe GET /healthz."""
    return _route("healthz", 200, _json(schemas.Alive, "Alive"), ())


def readyz() -> Route:
    """Describe GET /readyz."""
    route = _route("readyz", 200, _json(schemas.Readiness, "Ready"), ())
    route["responses"][503] = _json(schemas.Readiness, "Not ready; see Retry-After")
    return route


def metrics() -> Route:
    """Describe GET /metrics."""
    return _route("metrics", 200, _text("Prometheus text"), ())
