"""What a request asks for, checked once, where it comes in.

    Start     POST /api/chat: create the run, or join it if it is there from the same body (I9)
    Attach    GET /api/chat with an offset, or a POST with `Last-Event-ID`, which starts nothing

The run id is `X-Run-Id`, else the body's `runId`, else the query's. The offset is `Last-Event-ID`, else the query's
`offset`: a client that reconnects a join sends both, and the header is the newer (contract 1.1).

The digest decides whether a repeated POST is the same request. It is made of the body's known fields without

    runId                 it is the key, and may be in the header instead
    data                  TanStack's second copy of forwardedProps
    forwardedProps.env    names only, sorted; values in a request are refused, so that no secret is ever stored
    unknown fields        they are ignored

so the same bytes have the same digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pydantic
from starlette.datastructures import Headers, QueryParams

from runtime.core.ids import Offset, ThreadId
from runtime.core.ops import Create
from runtime.core.record import OnDisconnect
from runtime.engine.admission import Options, create_op, find_harness
from runtime.errors import InputInvalid
from runtime.ports import Harness
from runtime.settings import Settings
from serve_app import schemas
from serve_app.access import Caller
from serve_app.frames import NDJSON, SSE, Format

M = TypeVar("M", bound=pydantic.BaseModel)

_NOT_STORED = frozenset({"data"})
_KNOWN = frozenset(field.alias or name for name, field in schemas.ChatBody.model_fields.items()) - _NOT_STORED


@dataclass(frozen=True)
class Start:
    """Create or join. `strict`: the client is a plain AG-UI one (P26)."""

    create: Create
    caller: Caller
    format: Format
    strict: bool


@dataclass(frozen=True)
class Attach:
    """Follow the log of the key `run_id` past `offset`; None is the tail. `may_be_empty`: a native EventSource,
    which a 204 tells to stop."""

    caller: Caller
    run_id: str
    offset: Offset | None
    format: Format
    strict: bool
    may_be_empty: bool


def accepts(headers: Headers, media_type: str) -> bool:
    """Return whether `Accept` names the type."""
    names = ",".join(headers.getlist("accept")).split(",")
    return any(name.partition(";")[0].strip().lower() == media_type for name in names)


def format_of(headers: Headers, ndjson: bool) -> Format:
    """Return the format: NDJSON by path or by `Accept`, else SSE."""
    return NDJSON if ndjson or accepts(headers, NDJSON.media_type) else SSE


def last_event_id(headers: Headers) -> str | None:
    """Return `Last-Event-ID`; an empty one is none (contract 3.1)."""
    return headers.get("last-event-id") or None


def run_id_of_post(headers: Headers, body: Mapping[str, Any], key: Callable[[str], str]) -> str:
    """Return the key of the run that a POST names; `key` makes it of the id.

    Raises InputInvalid `run_id_missing`, `run_id_invalid`, `run_id_differs`."""
    named, inside = headers.get("x-run-id") or None, body.get("runId")
    if named is None and inside is None:
        raise InputInvalid(
            "A run needs an id of your choice: send the header X-Run-Id, or runId in the body.",
            code="run_id_missing",
            field="runId",
        )
    ids = [key(text) for text in (named, inside) if text is not None]
    if len(set(ids)) > 1:
        raise InputInvalid(
            f"X-Run-Id is {named} and the body's runId is {inside}. Send one, or the same twice.",
            code="run_id_differs",
            field="runId",
        )
    return ids[0]


def attach_of_post(headers: Headers, body: Mapping[str, Any], caller: Caller, *, ndjson: bool) -> Attach:
    """Return the attach of a POST with `Last-Event-ID`: the same body as before, of which only the run id counts.

    Raises InputInvalid (run id, offset)."""
    return Attach(
        caller=caller,
        run_id=run_id_of_post(headers, body, caller.key),
        offset=Offset.parse(last_event_id(headers) or ""),
        format=format_of(headers, ndjson),
        strict=not headers.get("x-run-id"),
        may_be_empty=False,
    )


def attach_of_get(headers: Headers, query: QueryParams, caller: Caller, *, ndjson: bool) -> Attach | ThreadId | None:
    """Return what a GET asks for: a log, the state of a thread (None: of no thread), by which of them it names.

    Raises InputInvalid `offset_missing`, `run_id_missing` and those of the ids and the offset."""
    text = last_event_id(headers) or query.get("offset")
    if text is None:
        if "threadId" in query:
            return ThreadId.parse(query["threadId"]) if query["threadId"] else None
        raise InputInvalid(
            "Say where to read from: the header Last-Event-ID, or ?offset= (-1 is the start, now is the end). "
            "With ?threadId= alone you get the thread's messages and its active run.",
            code="offset_missing",
            field="offset",
        )
    named = headers.get("x-run-id") or query.get("runId")
    if not named:
        raise InputInvalid("Say which run: the header X-Run-Id, or ?runId=.", code="run_id_missing", field="runId")
    format = format_of(headers, ndjson)
    return Attach(
        caller=caller,
        run_id=caller.key(named),
        offset=Offset.parse(text),
        format=format,
        strict=False,
        may_be_empty=format is SSE and accepts(headers, SSE.media_type),
    )


def start_of(
    headers: Headers,
    body: dict[str, Any],
    caller: Caller,
    settings: Settings,
    harnesses: Mapping[str, Harness],
    *,
    ndjson: bool,
) -> Start:
    """Return the start that a POST asks for.

    Raises InputInvalid: ids, `message_invalid`, `option_invalid`, `harness_unknown`, `resume_invalid`,
    `input_invalid`."""
    run_id = run_id_of_post(headers, body, caller.new_key)
    checked = check(schemas.ChatBody, body)
    thread_id = ThreadId.parse(checked.thread_id)
    if not checked.resume:
        _check_last_message(checked.messages[-1] if checked.messages else None)
    options = checked.forwarded_props or schemas.ForwardedProps.model_validate({})
    harness = find_harness(options.harness or settings.harness, harnesses)
    harness.validate(body)
    stored = _stored(body, options.env, settings)
    about = Options(
        harness=options.harness,
        on_disconnect=OnDisconnect(options.on_disconnect) if options.on_disconnect else None,
        on_busy=options.on_busy,
        detached_ttl_s=options.detached_ttl_s,
        run_limit_s=options.run_limit_s,
        keep_alive=options.keep_alive,
        destroy_on_complete=options.destroy_on_complete,
    )
    create = create_op(run_id, str(thread_id), caller.owner, stored, about, settings, harness)
    return Start(create=create, caller=caller, format=format_of(headers, ndjson), strict=not headers.get("x-run-id"))


def check(model: type[M], body: Mapping[str, Any]) -> M:
    """Return the body as `model`. Raises InputInvalid, whose code names the field's rule."""
    try:
        return model.model_validate(body)
    except pydantic.ValidationError as error:
        raise _refusal(error) from None


_CODES = {
    "threadId": "thread_id_invalid",
    "runId": "run_id_invalid",
    "messages": "message_invalid",
    "resume": "resume_invalid",
}


def _refusal(error: pydantic.ValidationError) -> InputInvalid:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(part) for part in first["loc"]]
    top = place[0] if place else "body"
    # Beyond the option's name or the message's field, pydantic names the members of unions.
    field = ".".join(place[: 2 if top == "forwardedProps" else 3])
    code = "option_invalid" if top == "forwardedProps" else _CODES.get(top, "input_invalid")
    if first["type"] == "missing" and top == "threadId":
        code = "thread_id_missing"
    return InputInvalid(f"{field}: {first['msg']}.", code=code, field=field)


def _check_last_message(message: schemas.Message | None) -> None:
    content = None if message is None else message.content
    texts: list[Any] = [content]
    if isinstance(content, list):
        texts = [part.get("text") for part in content if part.get("type") == "text"]
    if message is None or message.role != "user" or not any(isinstance(text, str) and text.strip() for text in texts):
        raise InputInvalid(
            "The last message must be the user's and hold text: that is what the agent is asked to do.",
            code="message_invalid",
            field="messages",
        )


def _stored(body: Mapping[str, Any], env: list[str] | dict[str, str] | None, settings: Settings) -> dict[str, Any]:
    """Return the body as it goes into the record: known fields, and of `env` the names alone."""
    stored = {key: value for key, value in body.items() if key in _KNOWN}
    if isinstance(env, dict) and any(env.values()):
        raise InputInvalid(
            "forwardedProps.env: send an array of names. Their values come from the environment of `outlast serve`; "
            "values in a request would be lost with the driver that got them, and are not taken.",
            code="option_invalid",
            field="forwardedProps.env",
        )
    if env is not None:
        allowed = settings.listed("agent_env")
        refused = sorted(set(env) - set(allowed))
        if refused:
            raise InputInvalid(
                f"forwardedProps.env: {', '.join(refused)} may not be given to an agent. Allowed are "
                f"{', '.join(allowed) or 'none'} (OUTLAST_AGENT_ENV).",
                code="option_invalid",
                field="forwardedProps.env",
            )
        stored["forwardedProps"] = {**stored["forwardedProps"], "env": sorted(set(env))}
    return stored
