"""What makes two chunks the same chunk, although their bytes differ (contract 2.1 and 6.2).

A fingerprint is the JSON text of what counts in an event: the keys that AG-UI names for its type, without the clock
and without what a system adds for itself under `metadata.tanstack`. It is written as a browser would write it (numbers,
key order), so that a fingerprint of ours equals one that another implementation computed.

Alignment asks `same_chunk` for two chunks whose bytes differ. Streamed text is most of every log, so its three types
take a way without fingerprints; `tests/unit/core/test_fingerprint.py` holds both ways to one answer.
"""

from __future__ import annotations

import math
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

import msgspec

from runtime.core.agui import SHARED_KEYS, SPEC_KEYS
from runtime.core.chunk import Event, decode_chunk, encode_text

_COUNTED_SHARED = SHARED_KEYS - {"timestamp"}
_COUNTED = {kind: keys | _COUNTED_SHARED for kind, keys in SPEC_KEYS.items()}

# JavaScript's numbers are doubles: beyond this, an integer prints as the double that is nearest to it.
_MAX_SAFE_INTEGER = 2**53 - 1


class Undefined:
    """JavaScript's `undefined`: a member that is there without a value. Only foreign logs in memory hold it."""


UNDEFINED = Undefined()
_UNDEFINED_TEXT = '"__undefined__"'


def fingerprint(event: Event) -> str:
    """Return the identity of `event`: equal for chunks that are the same, and only for them."""
    return _write(_counted(event))


def fingerprint_without_thread_id(event: Event) -> str:
    """Return the fingerprint without the event's own `threadId`. For a diagnosis, never for a match."""
    counted = _counted(event)
    counted.pop("threadId", None)
    return _write(counted)


def thread_id(event: Event) -> str | None:
    """Return the thread that the event names itself, or in `metadata.tanstack`; None if it names none."""
    own = event.get("threadId")
    if isinstance(own, str):
        return own
    metadata = event.get("metadata")
    tanstack = metadata.get("tanstack") if isinstance(metadata, dict) else None
    nested = tanstack.get("threadId") if isinstance(tanstack, dict) else None
    return nested if isinstance(nested, str) else None


class _Delta(msgspec.Struct, frozen=True, gc=False):
    """What counts in a chunk of streamed text; `metadata` and `rawEvent` send it the long way."""

    delta: str
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    raw_event: msgspec.Raw | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="rawEvent")

    @property
    def plain(self) -> bool:
        return self.metadata is msgspec.UNSET and self.raw_event is msgspec.UNSET


class _Text(_Delta, frozen=True, gc=False, kw_only=True, tag="TEXT_MESSAGE_CONTENT"):
    owner: str = msgspec.field(name="messageId")


class _Reasoning(_Delta, frozen=True, gc=False, kw_only=True, tag="REASONING_MESSAGE_CONTENT"):
    owner: str = msgspec.field(name="messageId")


class _Arguments(_Delta, frozen=True, gc=False, kw_only=True, tag="TOOL_CALL_ARGS"):
    owner: str = msgspec.field(name="toolCallId")


_deltas = msgspec.json.Decoder(_Text | _Reasoning | _Arguments)


def same_chunk(stored: bytes, replayed: bytes) -> bool:
    """Return whether two canonical chunks are the same: equal bytes or equal fingerprints."""
    if stored == replayed:
        return True
    try:
        left, right = _deltas.decode(stored), _deltas.decode(replayed)
    except msgspec.DecodeError:
        pass
    else:
        if left.plain and right.plain:
            return bool(left == right)
    return fingerprint(decode_chunk(stored)) == fingerprint(decode_chunk(replayed))


def _counted(event: Event) -> Event:
    kind = event.get("type")
    keys = _COUNTED.get(kind, _COUNTED_SHARED) if isinstance(kind, str) else _COUNTED_SHARED
    counted = {key: value for key, value in event.items() if key in keys}
    metadata = counted.get("metadata")
    if isinstance(metadata, dict):
        foreign = {key: value for key, value in metadata.items() if key != "tanstack"}
        if foreign:
            counted["metadata"] = foreign
        else:
            del counted["metadata"]
    return counted


def _write(value: Any) -> str:
    # One frame for each level of nesting, and the commonest kinds first.
    if isinstance(value, str):
        return encode_basestring(value) if value.isascii() else encode_text(value).decode()
    if isinstance(value, dict):
        members = []
        for key in _sorted_keys(value):
            item = value[key]
            members.append(_write(key) + ":" + (_UNDEFINED_TEXT if item is UNDEFINED else _write(item)))
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_write, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return _number(value)
    return "null"


def _sorted_keys(value: dict[str, Any]) -> list[str]:
    if all(map(str.isascii, value)):
        return sorted(value)
    return sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))


def _number(value: float) -> str:
    """Return the number as JavaScript prints it (ECMA-262, Number::toString with radix 10)."""
    if isinstance(value, int):
        if abs(value) <= _MAX_SAFE_INTEGER:
            return str(value)
        try:
            value = float(value)
        except OverflowError:
            return "null"
    if not math.isfinite(value):
        return "null"
    return _double(value)


def _double(value: float) -> str:
    if value == 0:
        return "0"
    sign, digit_tuple, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    unstripped = "".join(map(str, digit_tuple))
    digits = unstripped.rstrip("0")
    count = len(digits)
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(unstripped) + exponent
    if count <= point <= 21:  # noqa: PLR2004 - this and -6: where the standard switches forms
        text = digits + "0" * (point - count)
    elif 0 < point <= 21:  # noqa: PLR2004
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:  # noqa: PLR2004
        text = "0." + "0" * -point + digits
    else:
        power = f"e{point - 1:+d}"
        text = digits[0] + (f".{digits[1:]}" if count > 1 else "") + power
    return f"-{text}" if sign else text
