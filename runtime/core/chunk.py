r"""A chunk: one AG-UI event in wire form, as canonical JSON bytes. What is stored is what is sent.

Canonical: UTF-8, no spaces, keys sorted by code point, non-ASCII as it is, integers exact, floats in their shortest
form, no NaN or infinity, a lone surrogate as its \udXXX escape and a pair of them as the character that it stands
for. Thus equal values have equal bytes, and alignment can compare bytes first (P24).

Two ways lead to the same bytes: msgspec for what it takes, and `_write` for what it refuses (lone surrogates, keys
that are numbers). `tests/unit/core/test_chunk.py` holds them equal.

Reading is lenient, and its verdict depends on the bytes alone: a replay must read what the first driver read. So the
depth of an agent's line is bounded here, far below the depth at which the stack of the caller would decide.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, cast

import msgspec

from runtime.core.agui import SPEC_KEYS

Event = dict[str, Any]

_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder()
_SURROGATE = re.compile("([\ud800-\udfff])")
_BOM = "\ufeff"
_TYPE_KEY = b',"type":"'
_TYPES = {kind.encode(): kind for kind in SPEC_KEYS}
_TYPE_REACH = len(_TYPE_KEY) + max(map(len, _TYPES)) + len(b'"}')

# Real agents nest to about 20. The interpreter refuses at 1,000 frames, of which a caller may have used some hundred.
MAX_DEPTH = 200

RUN_STARTED = "RUN_STARTED"
RUN_FINISHED = "RUN_FINISHED"
RUN_ERROR = "RUN_ERROR"
TERMINAL_TYPES = frozenset({RUN_FINISHED, RUN_ERROR})
RUN_ACCEPTED = "run.accepted"
RUN_WAITING = "run.waiting"
IMAGE_PULL = "image.pull"


def encode(event: Event) -> bytes:
    """Return the canonical bytes of `event`. Values JSON has no form for (NaN, infinity) become null.

    Raises TypeError for objects JSON has no form for and ValueError for nesting beyond the interpreter's stack, both
    on the caller's account; no value that `decode` returns raises."""
    try:
        try:
            return _encoder.encode(event)
        except (UnicodeEncodeError, TypeError):
            return _write(msgspec.to_builtins(event, str_keys=True))
    except RecursionError as error:
        raise ValueError("the event is nested too deep") from error


def decode(data: bytes) -> Any:
    """Return the value of one JSON text, leniently: what a browser or the standard library reads, we read.

    For bytes from outside, such as an agent's line. Raises ValueError if it is no JSON even so, has a number of more
    than 4,300 digits, or is nested deeper than MAX_DEPTH."""
    value = _read(data)
    # Each level takes two bytes at least; most lines are done with the first comparison.
    if len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH and _too_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return value


def decode_chunk(data: bytes) -> Event:
    """Return the event of a stored chunk. Raises ValueError if it is not a JSON object, which is a bug."""
    event = _read(data)
    if not isinstance(event, dict):
        raise ValueError("a chunk is a JSON object")  # noqa: TRY004 - callers branch on ValueError
    return cast("Event", event)


def encode_text(text: str) -> bytes:
    """Return `text` as a canonical JSON string."""
    try:
        return _encoder.encode(text)
    except UnicodeEncodeError:
        pieces = _SURROGATE.split(join_surrogates(text))
        escaped = (f"\\u{ord(piece):04x}".encode() for piece in pieces[1::2])
        plain = [_encoder.encode(piece)[1:-1] for piece in pieces[0::2]]
        return b'"' + b"".join(part for pair in zip(plain, [*escaped, b""], strict=True) for part in pair) + b'"'


def join_surrogates(text: str) -> str:
    """Return `text` with each high and low surrogate in a row made the one character that they stand for."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _write(value: Any) -> bytes:
    if isinstance(value, str):
        return encode_text(value)
    if isinstance(value, dict):
        joined = {join_surrogates(key): item for key, item in value.items()}
        members = []
        for key in sorted(joined):
            members.append(encode_text(key) + b":" + _write(joined[key]))  # noqa: PERF401 - one frame a level, not two
        return b"{" + b",".join(members) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(_write, value)) + b"]"
    return _encoder.encode(value)


def _read(data: bytes) -> Any:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _read_slow(data)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _read_slow(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", "replace").removeprefix(_BOM))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
    return bool(level)


def digest(data: bytes) -> str:
    """Return the hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def chunk_type(data: bytes) -> str:
    """Return the `type` of a canonical chunk; "" if it has none."""
    # Sorted keys put "type" last in most chunks. A raw quote after a comma opens a key or a value, never sits inside
    # a string; and where a known type ends the chunk, one brace closes the event itself and not something nested.
    at = data.rfind(_TYPE_KEY, -_TYPE_REACH)
    if at >= 0 and data.endswith(b'"}'):
        known = _TYPES.get(data[at + len(_TYPE_KEY) : -2])
        if known is not None:
            return known
    event = _read(data)
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


def run_waiting(what: str) -> bytes:
    """Return the chunk that says what a run waits for before its agent can start."""
    return custom(RUN_WAITING, {"for": what})


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
