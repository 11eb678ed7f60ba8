"""A chunk: one AG-UI event in wire form, as canonical JSON bytes. What is stored is what is sent.

Canonical: UTF-8, no spaces, keys sorted by code point, non-ASCII as it is, integers exact, no NaN or infinity, lone
surrogates as \\udXXX escapes. Thus equal values have equal bytes, and alignment can compare bytes first (P24).

Two ways lead to the same bytes: msgspec for what it takes, and the standard library for what it refuses (lone
surrogates, NaN, huge exponents, invalid UTF-8). `tests/unit/core/test_chunk.py` holds them equal.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec

Event = dict[str, Any]

_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder()

RUN_STARTED = "RUN_STARTED"
RUN_FINISHED = "RUN_FINISHED"
RUN_ERROR = "RUN_ERROR"
TERMINAL_TYPES = frozenset({RUN_FINISHED, RUN_ERROR})
RUN_ACCEPTED = "run.accepted"


def encode(event: Event) -> bytes:
    """Return the canonical bytes of `event`. Values JSON has no form for (NaN, infinity) become null."""
    try:
        data = _encoder.encode(event)
    except (UnicodeEncodeError, msgspec.ValidationError, TypeError, ValueError):
        return _encode_slow(event)
    # msgspec writes NaN and infinity as null already and keeps integers exact.
    return data


def decode(data: bytes) -> Any:
    """Return the value of one JSON text, leniently: what a browser or the standard library reads, we read.

    Raises ValueError if it is no JSON even so."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data.decode("utf-8", "replace").removeprefix("\ufeff"))


def _encode_slow(event: Event) -> bytes:
    text = json.dumps(_finite(event), ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return text.encode("utf-8", "surrogatepass") if not _has_surrogate(text) else _escape_surrogates(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _escape_surrogates(text: str) -> bytes:
    return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text).encode()


def digest(data: bytes) -> str:
    """Return the hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def chunk_type(data: bytes) -> str:
    """Return the `type` of a canonical chunk; "" if it has none."""
    # Sorted keys put "type" at or near the end; only "usage", "value" and the like come after it.
    tail = data.rfind(b'"type":"', max(0, len(data) - 48))
    if tail > 0 and data[tail - 1] in b",{" and data.endswith(b'"}') and data.find(b'"', tail + 8) == len(data) - 2:
        return data[tail + 8 : -2].decode()
    event = decode(data)
    kind = event.get("type") if isinstance(event, dict) else None
    return kind if isinstance(kind, str) else ""


def custom(name: str, value: Any, **tanstack: Any) -> bytes:
    """Return a CUSTOM chunk; `tanstack` goes to `metadata.tanstack`."""
    event: Event = {"type": "CUSTOM", "name": name, "value": value}
    if tanstack:
        event["metadata"] = {"tanstack": tanstack}
    return encode(event)


def run_accepted() -> bytes:
    """Return the first chunk of every log: a client that joins gets something at once, before any agent speaks."""
    return encode({"type": "CUSTOM", "name": RUN_ACCEPTED, "value": {}})


def run_started(run_id: str, thread_id: str) -> bytes:
    """Return a RUN_STARTED for runs whose agent printed none."""
    return encode({"type": RUN_STARTED, "runId": run_id, "threadId": thread_id})


def run_error(run_id: str, message: str, code: str) -> bytes:
    """Return the terminal RUN_ERROR; with the run id, since a client takes one without it as every run's failure."""
    return encode({"type": RUN_ERROR, "message": message, "code": code, "metadata": {"tanstack": {"runId": run_id}}})


def run_finished(run_id: str, thread_id: str, finish_reason: str = "stop", **fields: Any) -> bytes:
    """Return the terminal RUN_FINISHED; `fields` are further keys of the event (result, outcome, usage)."""
    return encode(
        {
            "type": RUN_FINISHED,
            "runId": run_id,
            "threadId": thread_id,
            "metadata": {"tanstack": {"finishReason": finish_reason}},
            **fields,
        }
    )


def raw_event(event: Any, source: str) -> bytes:
    """Return the RAW chunk for a JSON line of an unknown kind: nothing an agent prints is lost."""
    return encode({"type": "RAW", "event": event, "source": source})


def stdout_line(line: bytes, torn: bool) -> bytes:
    """Return the chunk for a line that is no JSON; `torn` marks a partial last line."""
    value: dict[str, Any] = {"line": line.decode("utf-8", "replace")}
    if torn:
        value["torn"] = True
    return custom("process.stdout", value)


def line_skipped(position: int, size: int) -> bytes:
    """Return the chunk that stands for a line over the size limit (`size` bytes that began at `position`)."""
    return custom("journal.line_skipped", {"position": position, "bytes": size})
