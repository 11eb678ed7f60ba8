"""How heads and specs are stored: as JSON, readable by older and newer code (`tests/golden/` holds it to that).

A field that this code does not know is ignored, a field that is absent has its default. msgspec does the work; what it
refuses (lone surrogates in an agent's error or a user's text) goes through `core.chunk`, which writes them as
escapes: everything that came in as JSON can be stored.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from runtime.core import chunk
from runtime.core.record import Head, RunSpec, Struct
from runtime.errors import StoreRefused

S = TypeVar("S", Head, RunSpec)

_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(Head).decode
_decode_spec = msgspec.json.Decoder(RunSpec).decode


def encode(value: Struct) -> bytes:
    """Return the stored form. Raises TypeError or ValueError for a value JSON has no form for (a caller's bug)."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return chunk.encode(msgspec.to_builtins(value))


def decode_head(data: bytes) -> Head:
    """Return a stored head. Raises StoreRefused for bytes that are none."""
    try:
        return _decode_head(data)
    except msgspec.DecodeError as error:
        return _decode_slow(data, Head, error)


def decode_spec(data: bytes) -> RunSpec:
    """Return a stored spec. Raises StoreRefused for bytes that are none."""
    try:
        return _decode_spec(data)
    except msgspec.DecodeError as error:
        return _decode_slow(data, RunSpec, error)


def _decode_slow(data: bytes, kind: type[S], error: msgspec.DecodeError) -> S:
    try:
        return msgspec.convert(chunk.decode(data), kind)
    except (ValueError, msgspec.ValidationError):
        raise StoreRefused(
            f"A stored {kind.__name__} is damaged ({error}). Restore the store from a backup."
        ) from error
