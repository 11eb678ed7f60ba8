"""Posts what a run's end is, signed as Standard Webhooks says, by the library of that specification.

The address is the operator's and nothing changes it: redirects are not followed, no proxy of the environment is used.
Nothing that a receiver answers is read but its status. The same end has the same id and the same body each time, so
that a receiver can tell a repeat; time and signature are each attempt's own. What an agent or a harness wrote into the
record is posted within bounds only.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import metadata
from typing import Any

import httpx
import msgspec
from standardwebhooks.webhooks import Webhook

from actors.webhooks_file import Endpoint
from runtime.hooks import RunFacts

POST_S = 10.0  # from the look-up of the name to the answer's status
MOST_AT_ONCE = 8  # of one receiver
# Threads that look names up, if need be: one that hangs goes on after its attempt, and no receiver waits for another's.
MOST_LOOKUPS = 1024
GONE = 410
CODE = re.compile(r"[a-z0-9_.-]{1,64}")
OTHER_CODE = "agent_error"
USAGE_BYTES = 4096
USAGE_TEXT = 128  # characters of a string, and of a key
USAGE_DEPTH = 3

_encoder = msgspec.json.Encoder(order="sorted")


def webhook_id(deployment: str, key: str, generation: int = 0) -> str:
    """Return the id of the message that tells of a run's end: the same for each attempt, for ever.

    `generation` (P10) is the run's: one that was put back from a copy, and ends again, has another end to tell."""
    end = f"{deployment} {key} {generation} ended" if generation else f"{deployment} {key} ended"
    return f"msg_{hashlib.sha256(end.encode()).hexdigest()[:32]}"


def body_of(run: RunFacts) -> bytes:
    """Return the message: of one end the same each time, so nothing that changes after it (`detached`)."""
    ended = datetime.fromtimestamp((run.finished_at or run.created_at) / 1000, UTC)
    stamp = ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = run.to_wire()
    del data["detached"]
    data["usage"] = _bounded_usage(run.usage)
    if run.code is not None and not CODE.fullmatch(run.code):
        data["code"] = OTHER_CODE
    return _encoder.encode({"type": "run.ended", "timestamp": stamp, "data": data})


def _bounded_usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the numbers and short strings of it; None if that is still too much."""
    if usage is None:
        return None
    bounded = _plain(usage, USAGE_DEPTH)
    return bounded if len(_encoder.encode(bounded)) <= USAGE_BYTES else None


def _plain(usage: dict[str, Any], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in usage.items():
        if len(key) > USAGE_TEXT:
            continue
        if isinstance(value, dict):
            if depth > 1:
                found[key] = _plain(value, depth - 1)
        elif isinstance(value, int | float) or (isinstance(value, str) and len(value) <= USAGE_TEXT):
            found[key] = value
    return found


def headers_of(endpoint: Endpoint, id_: str, body: bytes, now: datetime) -> dict[str, str]:
    """Return the headers of one attempt; one signature for each secret."""
    text = body.decode()
    signatures = [Webhook(secret).sign(id_, now, text) for secret in endpoint.secrets]
    return {
        "Content-Type": "application/json",
        "User-Agent": f"outlast/{metadata.version('outlast')}",
        "webhook-id": id_,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


class NoAnswer(Exception):
    """The receiver could not be reached, or did not answer in time with what is HTTP."""


class Poster:
    """One HTTP client for all receivers, which share nothing: neither connections nor cookies, nor the threads that
    look names up. Made in the event loop that posts, whose default executor it replaces."""

    def __init__(self) -> None:
        for name in ("httpx", "httpcore"):  # they write whole addresses into the log, and those hold secrets
            logging.getLogger(name).setLevel(logging.WARNING)
        lookups = ThreadPoolExecutor(MOST_LOOKUPS, thread_name_prefix="look-up")
        asyncio.get_running_loop().set_default_executor(lookups)
        context = httpx.create_ssl_context()
        context.load_default_certs()  # a private authority is the system's to know
        self._client = httpx.AsyncClient(
            verify=context,
            trust_env=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=httpx.Timeout(POST_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def post(self, endpoint: Endpoint, id_: str, body: bytes) -> int:
        """Post once; return the status. Raises NoAnswer."""
        turns = self._turns.setdefault(endpoint.name, asyncio.Semaphore(MOST_AT_ONCE))
        try:
            async with asyncio.timeout(POST_S), turns:
                headers = headers_of(endpoint, id_, body, datetime.now(UTC))
                async with self._client.stream("POST", endpoint.url, content=body, headers=headers) as response:
                    return response.status_code
        except httpx.InvalidURL as error:  # which quotes it
            raise NoAnswer(type(error).__name__) from None
        except (TimeoutError, httpx.HTTPError) as error:
            raise NoAnswer(f"{type(error).__name__} {error}".strip()) from error

    async def close(self) -> None:
        """Close what is open."""
        await self._client.aclose()
