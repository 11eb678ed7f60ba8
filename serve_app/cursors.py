"""Cursors of pages as owners are given them: sealed, since a store's own counts the runs of everybody.

    base64url(nonce 12 | cursor, padded to 20, hidden by a pad of its own | MAC 16)

The pad and the MAC are HMAC-SHA-256 of the nonce under a key that all replicas have and a restart does not change; the
MAC is of the owner too, so that a cursor is hers alone.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets

from runtime.errors import InputInvalid

_NONCE, _TEXT, _MAC = 12, 20, 16
_SEALED = re.compile(r"[A-Za-z0-9_-]{64}", re.ASCII)


class Cursors:
    """Seals and opens the cursors of owners by `key`."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, owner: str, cursor: str) -> str:
        """Return what the owner is given for a store's cursor."""
        text = cursor.encode().ljust(_TEXT)
        if len(text) != _TEXT:
            raise ValueError(f"a cursor of {len(text)} bytes is too long to be sealed")
        nonce = secrets.token_bytes(_NONCE)
        hidden = nonce + self._hide(nonce, text)
        return base64.urlsafe_b64encode(hidden + self._mac(owner, hidden)).decode()

    def open(self, owner: str, sealed: str) -> str:
        """Return the store's cursor. Raises InputInvalid `cursor_invalid` for what this owner was not given."""
        raw = base64.urlsafe_b64decode(sealed) if _SEALED.fullmatch(sealed) else bytes(_NONCE + _TEXT + _MAC)
        hidden, mac = raw[:-_MAC], raw[-_MAC:]
        if not hmac.compare_digest(mac, self._mac(owner, hidden)):
            raise InputInvalid(
                "cursor must be the `next` of the page before, as it was sent.", code="cursor_invalid", field="cursor"
            )
        return self._hide(hidden[:_NONCE], hidden[_NONCE:]).decode().rstrip()

    def _hide(self, nonce: bytes, text: bytes) -> bytes:
        pad = hmac.digest(self._key, b"pad " + nonce, "sha256")
        return bytes(one ^ other for one, other in zip(text, pad, strict=False))

    def _mac(self, owner: str, hidden: bytes) -> bytes:
        return hmac.digest(self._key, b"mac " + hidden + owner.encode(), "sha256")[:_MAC]
