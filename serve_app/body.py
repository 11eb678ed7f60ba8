"""Read a JSON body: its type is checked first, its size and its speed while it comes, its depth after.

Only `application/json` (or `+json`) is taken: a page of another site cannot send that without asking first.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, Final, NoReturn

import msgspec
from starlette.requests import Request

from runtime.errors import BodyTooLarge, InputInvalid, MediaTypeUnsupported, RequestError
from runtime.settings import Settings

# Deeper than any message or JSON Schema that a person wrote, and far from what recursion in encoders and pickles bears.
MAX_DEPTH = 100
# What comes at this rate is progress: 8 MiB over a slow line take minutes, and are taken. A byte now and then is none.
SLOWEST_BYTES_PER_S: Final = 64 << 10


class BodyTooSlow(RequestError):
    """The request body has not come within `OUTLAST_BODY_TIMEOUT_S` and the time that its length allows."""

    code = "body_too_slow"

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"The body came too slowly: it has {limit_s:g} s, and one more for each {SLOWEST_BYTES_PER_S >> 10} KiB "
            "that came. Send it at once, or raise OUTLAST_BODY_TIMEOUT_S."
        )
        self.limit_s = limit_s


def check_type(request: Request) -> None:
    """Refuse a body that is not declared as JSON. Raises MediaTypeUnsupported."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise MediaTypeUnsupported("Send the body as JSON, with the header Content-Type: application/json.")


async def read_object(request: Request, settings: Settings) -> dict[str, Any]:
    """Return the body, which must be a JSON object, of at most MAX_BODY_BYTES, and here in time (BODY_TIMEOUT_S).

    Raises MediaTypeUnsupported, BodyTooLarge, BodyTooSlow, InputInvalid `json_invalid`, `body_invalid`."""
    check_type(request)
    value = decode(await _read_in_time(request, settings.max_body_bytes, settings.body_timeout_s))
    if not isinstance(value, dict):
        raise InputInvalid("The body must be a JSON object.", code="body_invalid")
    return value


async def _read_in_time(request: Request, max_bytes: int, within_s: float) -> bytes:
    """Return the body. Raises BodyTooLarge, BodyTooSlow: whoever sends a byte now and then keeps nobody's place."""
    try:
        async with asyncio.timeout(within_s) as deadline:
            return await _read(request, max_bytes, deadline)
    except TimeoutError:
        raise BodyTooSlow(within_s) from None


async def _read(request: Request, max_bytes: int, deadline: asyncio.Timeout) -> bytes:
    first = deadline.when()
    assert first is not None
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise BodyTooLarge(max_bytes)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise BodyTooLarge(max_bytes)
        parts.append(part)
        deadline.reschedule(first + size / SLOWEST_BYTES_PER_S)
    return b"".join(parts)


def decode(raw: bytes) -> Any:
    """Return the value of a JSON text in UTF-8. A lone surrogate, which JavaScript makes when it cuts a text inside an
    emoji, becomes U+FFFD: refusing it would end that conversation for good.

    Raises InputInvalid `json_invalid`."""
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        _too_deep()
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = _decode_slow(raw)
    if _deeper_than(value, MAX_DEPTH):
        _too_deep()
    return value


def _decode_slow(raw: bytes) -> Any:
    try:
        return _mended(json.loads(raw.decode(), parse_constant=_no_constant))
    except RecursionError:
        _too_deep()
    except ValueError as error:
        raise InputInvalid(f"The body is not valid JSON: {error}.", code="json_invalid") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _mended(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case float() if not math.isfinite(value):
            raise ValueError("a number is out of range")
        case dict():
            return {_mended(key): _mended(item) for key, item in value.items()}
        case list():
            return [_mended(item) for item in value]
        case _:
            return value


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    while level and depth > 0:
        depth -= 1
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
    return bool(level)


def _too_deep() -> NoReturn:
    raise InputInvalid(f"The body is nested deeper than {MAX_DEPTH} levels.", code="json_invalid") from None
