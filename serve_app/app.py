"""The gateway's ASGI app: everything over the ports, nothing of Ray. `instance.py` puts it into Serve."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from runtime.errors import OutlastError
from runtime.ports import Cluster, Harness
from runtime.settings import Settings
from serve_app import error_table, openapi
from serve_app.access import AccessCheck
from serve_app.chat import Chat
from serve_app.gateway import Gateway
from serve_app.nodes import NodeRoutes
from serve_app.origin import OriginCheck
from serve_app.probes import Probes
from serve_app.reaps import ReapRoutes
from serve_app.replica import Replica
from serve_app.results import RunResults
from serve_app.runs import Runs
from serve_app.session_routes import SessionRoutes
from serve_app.threads import Threads


def build_app(cluster: Cluster, settings: Settings, harnesses: Mapping[str, Harness], replica: Replica) -> FastAPI:
    """Return the app of one replica. Its lifespan must be run: it tells shards who watches, and cuts streams on drain.

    `harnesses` by name; `replica.draining` is set by whoever stops the replica."""
    gateway = Gateway(cluster, settings, harnesses, replica)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        async with gateway.running():
            yield

    app = FastAPI(
        title="Outlast",
        version=version("outlast"),
        description="Agent runs that outlast the browser tab, the driver process and the node.",
        lifespan=lifespan,
        docs_url=None,  # the framework's pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would be made of the Host header
        telemetry={"tracing": False, "metrics": False, "logs": False},  # work per chunk, if Ray has set a provider
    )
    app.state.gateway = gateway
    threads = Threads(gateway)
    for part in (
        Chat(gateway, threads),
        threads,
        Runs(gateway),
        RunResults(gateway),
        NodeRoutes(gateway),
        ReapRoutes(gateway),
        SessionRoutes(gateway),
        Probes(gateway),
    ):
        part.add_to(app.router)
    app.add_exception_handler(OutlastError, error_table.on_outlast)
    app.add_exception_handler(HTTPException, error_table.on_http)
    app.add_exception_handler(RequestValidationError, error_table.on_validation)
    app.add_exception_handler(ClientDisconnect, error_table.on_gone)
    app.add_exception_handler(Exception, error_table.on_unexpected)
    app.add_middleware(AccessCheck, access=replica.access)
    app.add_middleware(OriginCheck, settings=settings)
    openapi.install(app)
    return app
