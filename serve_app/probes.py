"""`/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from serve_app import openapi
from serve_app.access import is_operator
from serve_app.error_table import RETRY_AFTER_S
from serve_app.gateway import Gateway, json_response
from serve_app.metrics import Metrics

# A probe is asked every few seconds and must not hang on what it asks about.
ASK_S = 2.0

Facts = dict[str, Any]


class Probes:
    """The handlers. Nothing is cached: an answer is what the parts say now."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._metrics = Metrics()

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        router.add_api_route("/healthz", self.alive, methods=["GET"], **openapi.healthz())
        router.add_api_route("/readyz", self.ready, methods=["GET"], **openapi.readyz())
        router.add_api_route("/metrics", self.metrics, methods=["GET"], **openapi.metrics())

    async def alive(self) -> Response:
        """Say that this process answers."""
        return json_response({"ok": True})

    async def ready(self, request: Request) -> Response:
        """Say whether runs can be started here now: 200 or 503; to the operator alone, why not, and what there is."""
        shards, supervisor = await self._ask()
        checks = [_check(f"log:{number}", facts, _shard_detail) for number, facts in enumerate(shards)]
        checks.append(_check("supervisor", supervisor, lambda facts: f"epoch {facts.get('epoch')}"))
        draining = self._gateway.replica.draining.is_set()
        checks.append({"name": "gateway", "ok": not draining, "detail": "is being stopped" if draining else "serves"})
        ready = all(check["ok"] for check in checks)
        actors = supervisor.get("actors", []) if isinstance(supervisor, dict) else []
        if (access := self._gateway.replica.access) is not None:
            # Not a reason to send clients elsewhere: what was read before holds.
            trouble = access.tokens.trouble
            checks.append(
                {
                    "name": "tokens",
                    "ok": not trouble,
                    "detail": trouble or f"{len(access.tokens)} tokens, and the operator's",
                }
            )
        if not is_operator(request):
            actors, checks = [], [{**check, "detail": ""} for check in checks]
        response = json_response({"ready": ready, "checks": checks, "actors": actors}, 200 if ready else 503)
        if not ready:
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    async def metrics(self) -> Response:
        """Return what shards and supervisor count, as Prometheus text; what does not answer is left out."""
        shards, supervisor = await self._ask()
        text = self._metrics.render(
            [facts for facts in shards if isinstance(facts, dict)],
            supervisor if isinstance(supervisor, dict) else None,
        )
        return Response(text, headers={"Cache-Control": "no-store"}, media_type=CONTENT_TYPE_LATEST)

    async def _ask(self) -> tuple[list[Facts | str], Facts | str]:
        """Return the facts of each shard and of the supervisor; of what did not answer, why."""
        cluster = self._gateway.cluster
        *shards, supervisor = await asyncio.gather(
            *(_asked(shard.stats()) for shard in cluster.shards()), _asked(cluster.supervisor().status())
        )
        return shards, supervisor


async def _asked(facts: Awaitable[Facts]) -> Facts | str:
    try:
        async with asyncio.timeout(ASK_S):
            return await facts
    except TimeoutError:
        return f"no answer within {ASK_S:g} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is why the part is not ready
        return str(error) or type(error).__name__


def _shard_detail(facts: Facts) -> str:
    return f"epoch {facts.get('epoch')}, {facts.get('runs', 0)} runs"


def _check(name: str, facts: Facts | str, detail: Any) -> dict[str, Any]:
    answered = isinstance(facts, dict)
    return {"name": name, "ok": answered, "detail": detail(facts) if answered else facts}
