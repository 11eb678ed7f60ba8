"""A bearer token as a cookie, for who can send no header: the browser's own `EventSource`.

The cookie says whose token it stands for and until when, and is signed with a key of the data directory: no replica
keeps anything, each takes it, and a restart changes nothing. It stands for its token, so it ends with that.

A browser sends cookies without being asked, so this one counts for less than a token. `SameSite=Strict` keeps other
sites from it, `origin.py` their pages from us; and what changes anything needs, besides, an `Origin` that was checked
there. The name is the data directory's: browsers give all ports of a host one jar.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers

from runtime.errors import OriginRefused

_VALUE = re.compile(r"([0-9]{10,12})\.([0-9a-f]{64})\.([0-9a-f]{64})")
_READING = frozenset({"GET", "HEAD"})


class Sessions:
    """Makes and reads the cookies that `key` signs."""

    def __init__(self, key: bytes, now: Callable[[], float] = time.time) -> None:
        self._key = key
        self._now = now
        self.name = f"outlast-session-{hashlib.sha256(key).hexdigest()[:8]}"

    def key_for(self, purpose: bytes) -> bytes:
        """Return a key for something else that all replicas must know, and a restart must not change."""
        return hmac.digest(self._key, b"key " + purpose, "sha256")

    def cookie(self, grant: bytes, ttl_s: int, path: str, *, secure: bool) -> tuple[str, int]:
        """Return the `Set-Cookie` header of a session of `grant`, the hash of a token, and when it ends (UTC s)."""
        ends = int(self._now()) + ttl_s
        value = f"{ends}.{grant.hex()}.{self._sign(ends, grant)}"
        return self._header(value, ttl_s, path, secure=secure), ends

    def no_cookie(self, path: str, *, secure: bool) -> str:
        """Return the `Set-Cookie` header that has a browser forget its session."""
        return self._header("", 0, path, secure=secure)

    def grant_of(self, headers: Headers) -> bytes | None:
        """Return the grant that the request's cookie stands for; None without one, or if it is forged or over."""
        try:
            sent = SimpleCookie("; ".join(headers.getlist("cookie")))
        except CookieError:
            return None
        match = _VALUE.fullmatch(sent[self.name].value) if self.name in sent else None
        if match is None:
            return None
        ends, grant = int(match[1]), bytes.fromhex(match[2])
        genuine = hmac.compare_digest(match[3], self._sign(ends, grant))
        return grant if genuine and self._now() < ends else None

    def _sign(self, ends: int, grant: bytes) -> str:
        return hmac.new(self._key, f"{ends}.{grant.hex()}".encode(), "sha256").hexdigest()

    def _header(self, value: str, ttl_s: int, path: str, *, secure: bool) -> str:
        header = f"{self.name}={value}; Path={path}; Max-Age={ttl_s}; HttpOnly; SameSite=Strict"
        return f"{header}; Secure" if secure else header


def check_sender(method: str, headers: Headers) -> None:
    """Check that a request with a cookie for a name was meant by one of our pages. Raises OriginRefused."""
    if method not in _READING and "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
        raise OriginRefused("A cookie may only read where no Origin says whose page asks. Send a bearer token.")


def is_secure(scheme: str, headers: Headers) -> bool:
    """Return whether the browser speaks https, to us or to the proxy in front: then its cookie goes no other way."""
    forwarded = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return "https" in (scheme, forwarded) or headers.get("origin", "").startswith("https://")
