"""Refuse what a page of somebody else's site makes a browser send (design 9), and answer CORS for allowed origins.

Two attacks on a server on loopback, and what meets each:

    a page posts to http://127.0.0.1:8000     its `Origin` is neither ours nor allowed. (The JSON content type that
                                              every POST with a body needs is the second lock: `body.py`)
    DNS rebinding: evil.example resolves      the request is same-origin for the browser, but its `Host` is
    to 127.0.0.1                              evil.example

There is no wildcard: an origin is ours (same host and port as the request) or in OUTLAST_ALLOWED_ORIGINS. `Host` is a
loopback name, OUTLAST_HOST or in OUTLAST_ALLOWED_HOSTS; if OUTLAST_HOST is a wildcard address, any IP literal too,
since a rebinding page always comes by a name.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.errors import OriginRefused
from runtime.settings import Settings
from serve_app import error_table

ALLOW_HEADERS = "Authorization, Content-Type, Last-Event-ID, X-Run-Id"
EXPOSE_HEADERS = "X-Run-Id"
ALLOW_METHODS = "GET, POST, DELETE"
MAX_AGE_S = 600

_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - to compare with, not to bind


def host_name(host: str) -> str | None:
    """Return the name part of a `Host` value, in lower case and without brackets; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or parts.username is not None or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def _setting_name(host: str) -> str | None:
    """Return the name in a setting, which writes an IPv6 address without brackets."""
    return str(address) if (address := _address(host)) is not None else host_name(host)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def same_origin(origin: str, host: str) -> bool:
    """Return whether a page of `origin` is a page of `host`. The scheme is not ours to know (a proxy may end TLS), so
    each scheme's default port is taken for an absent one."""
    try:
        page, us = urlsplit(origin), urlsplit(f"{urlsplit(origin).scheme}://{host}")
        default = {"http": 80, "https": 443}.get(page.scheme)
        return default is not None and (page.hostname, page.port or default) == (us.hostname, us.port or default)
    except ValueError:
        return False


class OriginCheck:
    """ASGI middleware, outside of everything else of the app."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._origins = {origin.rstrip("/").lower() for origin in settings.listed("allowed_origins")}
        self._hosts = {_setting_name(host) for host in (*settings.listed("allowed_hosts"), settings.host)}
        # Of a page of the same site, which alone is sent the cookie of a session with a request to us.
        self._cookies = bool(settings.tokens_file)
        self._any_address = settings.host in _WILDCARDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 403, answer a preflight, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        why = self._refusal(headers, origin)
        if why is not None:
            await error_table.response(OriginRefused(why))(scope, receive, send)
        elif origin is None:
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await Response(status_code=204, headers=self._with_cookies(self._preflight(origin)))(scope, receive, send)
        else:
            await self._app(scope, receive, _with_cors(send, self._with_cookies(_cors(origin))))

    def _refusal(self, headers: Headers, origin: str | None) -> str | None:
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None or not self._host_allowed(name):
            return (
                f"Host {', '.join(hosts) or '(none)'} is not a name of this server. Use 127.0.0.1 or localhost, or "
                "add the name to OUTLAST_ALLOWED_HOSTS."
            )
        if origin is not None:
            if origin.lower() in self._origins or same_origin(origin, hosts[0]):
                return None
            return f"Pages of {origin} may not call this server. Add the origin to OUTLAST_ALLOWED_ORIGINS."
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return "A page of another site may not call this server."
        return None

    def _host_allowed(self, name: str) -> bool:
        if name in self._hosts or name == "localhost":
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or self._any_address)

    def _with_cookies(self, headers: dict[str, str]) -> dict[str, str]:
        return {**headers, "Access-Control-Allow-Credentials": "true"} if self._cookies else headers

    @staticmethod
    def _preflight(origin: str) -> dict[str, str]:
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": ALLOW_METHODS,
            "Access-Control-Allow-Headers": ALLOW_HEADERS,
            "Access-Control-Max-Age": str(MAX_AGE_S),
            "Vary": "Origin",
        }


def _cors(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSE_HEADERS}


def _with_cors(send: Send, cors: dict[str, str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(cors)
            headers.add_vary_header("Origin")
        await send(message)

    return sending
