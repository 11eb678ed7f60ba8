"""Names of files and folders from ids and keys: injective, safe in any shell and on any file system (contract 7.1).

Letters, digits, `.` and `-` stand for themselves; every other byte of the UTF-8 text, `_` included, becomes `_` and two
lower-case hex digits. So no two texts share a name, and nothing in a name can leave its folder, end an argument or be
taken for a pattern. A text whose name would be too long keeps a part of it and a hash, and cannot be decoded.
Unlike the contract, a text that spells such a name gets a hash of its own: else the two would share one journal.

A decoded name is a key for the store and says nothing about what exists. Names that do not decode are kept, never
deleted: `Flaw` says why.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from enum import StrEnum

# 255 bytes is what file systems allow; 200 leaves room for our suffixes and for other people's.
MAX_NAME = 200
_HASH_DIGITS = 16
_KEPT = MAX_NAME - 1 - _HASH_DIGITS

JOURNAL_SUFFIX = ".ndjson"
_SUFFIXES = (JOURNAL_SUFFIX, ".err")

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-")
_PIECE = re.compile(r"_([0-9A-Fa-f]{2})|([A-Za-z0-9.-])")
_HASHED = re.compile(r"-[0-9a-f]{16}")
# Windows opens a device for these, whatever the folder.
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in range(1, 10))}
)
_DOTS = frozenset({".", ".."})


class Flaw(StrEnum):
    """Why a name does not decode."""

    TRUNCATED = "truncated"  # a hash took the place of the end of the text
    MALFORMED = "malformed"  # not a name that we make


def encode_name(text: str) -> str:
    """Return the name for `text`; to be used with a suffix (the name of `.` is `.`).

    Raises ValueError for empty text, which has no name, and for lone surrogates, which have no UTF-8."""
    return _encode(text, lambda name: name.lower() in _DEVICES)


def folder_name(text: str) -> str:
    """Return the name for `text` that may stand alone: as `encode_name`, but never `.` or `..`."""
    return _encode(text, lambda name: name.lower() in _DEVICES or name in _DOTS)


def decode_name(name: str) -> str | Flaw:
    """Return the text that `encode_name` or `folder_name` made `name` from, or why that cannot be said."""
    if _must_hash(name):
        return Flaw.TRUNCATED
    data = bytearray()
    at = 0
    while at < len(name):
        piece = _PIECE.match(name, at)
        if piece is None:
            return Flaw.MALFORMED
        data += bytes.fromhex(piece[1]) if piece[1] else piece[2].encode()
        at = piece.end()
    try:
        return data.decode() or Flaw.MALFORMED
    except UnicodeDecodeError:
        return Flaw.MALFORMED


def journal_name(run_id: str) -> str:
    """Return the file name of the run's journal. Raises ValueError as `encode_name`."""
    return encode_name(run_id) + JOURNAL_SUFFIX


def decode_journal_name(name: str) -> str | Flaw:
    """Return the run id of a journal's or its stderr's file name (`.ndjson`, `.err`), or why that cannot be said."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return decode_name(name.removesuffix(suffix))
    return Flaw.MALFORMED


def _encode(text: str, reserved: Callable[[str], bool]) -> str:
    if not text:
        raise ValueError("An empty text has no name.")
    data = text.encode()
    name = "".join(chr(byte) if byte in _PLAIN else f"_{byte:02x}" for byte in data)
    if reserved(name):
        return "".join(f"_{byte:02x}" for byte in data)
    if _must_hash(name):
        return f"{name[:_KEPT]}-{hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]}"
    return name


def _must_hash(name: str) -> bool:
    """Return whether `name` is too long, or is as long as a hashed one and looks like it: that one would be taken."""
    return len(name) > MAX_NAME or (len(name) == MAX_NAME and _HASHED.fullmatch(name, _KEPT) is not None)
