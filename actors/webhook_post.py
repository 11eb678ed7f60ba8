"""Posts what a run's end is, signed as Standard Webhooks says, by the library of that specification.

The address is the operator's and nothing changes it: redirects are not followed, no proxy of the environment is used.
Nothing that a receiver answers is read but its status. The same end has the same id and the same body each time, so
that a receiver can tell a repeat; time and signature are each attempt's own.
"""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from importlib import metadata

import httpx
import msgspec
from standardwebhooks.webhooks import Webhook

from actors.webhooks_file import Endpoint
from runtime.hooks import RunFacts

POST_S = 10.0  # from the look-up of the name to the answer's status
MOST_AT_ONCE = 8  # of one receiver
GONE = 410

_encoder = msgspec.json.Encoder(order="sorted")


def webhook_id(deployment: str, key: str) -> str:
    """Return the id of the message that tells of a run's end: the same for each attempt, for ever."""
    return f"msg_{hashlib.sha256(f'{deployment} {key} ended'.encode()).hexdigest()[:32]}"


def body_of(run: RunFacts) -> bytes:
    """Return the message: of one end the same each time."""
    ended = datetime.fromtimestamp((run.finished_at or run.created_at) / 1000, UTC)
    stamp = ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return _encoder.encode({"type": "run.ended", "timestamp": stamp, "data": run.to_wire()})


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
    """One HTTP client for all receivers, which share nothing: each has connections of its own."""

    def __init__(self) -> None:
        context = httpx.create_ssl_context()
        context.load_default_certs()  # a private authority is the system's to know
        self._client = httpx.AsyncClient(
            verify=context,
            trust_env=False,
            follow_redirects=False,
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
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoAnswer(f"{type(error).__name__} {error}".strip()) from error

    async def close(self) -> None:
        """Close what is open."""
        await self._client.aclose()
