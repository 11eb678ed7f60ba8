"""Requests made from the OpenAPI description, over real HTTP: no 5xx, no hang, every answer as described.

Every run that is started is driven to its end at once, so that each stream ends; a stream that did not would run into
the client's timeout and fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from unit.serve_app.asgi_client import fetch, post
from unit.serve_app.local_cluster import World, world
from unit.serve_app.wire import served
from waiting import wait_until

from runtime.settings import Settings
from serve_app.app import build_app
from serve_app.replica import Replica

EXAMPLES = 25  # for each operation
HANG_S = 10
KNOWN = "r-1"  # a run, and a thread, that exists

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

# The description does not depend on what is behind the app.
described = build_app(None, Settings(), {}, Replica("described")).openapi()  # type: ignore[arg-type]
schema = schemathesis.openapi.from_dict(described)
OPERATIONS = [one.ok() for one in schema.get_all_operations() if isinstance(one, Ok)]


class FuzzedServer:
    """A server with a loop of its own, since schemathesis calls and waits."""

    def __init__(self) -> None:
        self.url = ""
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.turns = itertools.count()
        self._failed: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="fuzzed server")

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self.url or self._failed, "the server")

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(HANG_S)
        if self._failed is not None:
            raise self._failed

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again in `stop`
            self._failed = error
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        async with world(max_body_bytes=4096, agent_env="A_B") as w, served(w.app) as wire:
            w.supervisor.on_start = driven(w)
            body = {"threadId": KNOWN, "messages": [{"role": "user", "content": "hi"}]}
            await post(w.app, KNOWN, json_body=body).done()
            assert (await fetch(w.app, "GET", f"/api/runs/{KNOWN}")).json()["status"] == "completed"
            self.url = f"http://127.0.0.1:{wire.port}"
            await self._stop.wait()


def driven(w: World) -> Any:
    """Return what drives each run that is started to its end."""

    async def drive(run_id: str) -> None:
        driver = await w.driver(run_id)
        await driver.begin()
        await driver.finish()

    return drive


@pytest.fixture(scope="module")
def server() -> Iterator[FuzzedServer]:
    server = FuzzedServer()
    server.start()
    yield server
    server.stop()
    # It is no test of anything if the requests get no further than the first check.
    reached = {("POST", 200), ("GET", 200), ("POST", 409), ("GET", 410), ("POST", 204), ("GET", 404), ("POST", 400)}
    assert reached <= set(server.statuses)


def steer(case: schemathesis.Case[Any], turn: int) -> None:
    """Lead a made-up request past the first checks in one of several ways: as it is, it names no run that exists and
    hardly ever starts one."""
    way, step = turn % 4, turn // 4
    if way == 0:
        return
    case.headers.pop("Last-Event-ID", None)
    case.headers["X-Run-Id"] = KNOWN
    if way == 1 and isinstance(case.body, dict):
        case.headers["X-Run-Id"] = f"run-{step}"
        given = case.body.get("messages")
        case.body = {key: value for key, value in case.body.items() if key not in {"runId", "resume"}}
        case.body["threadId"] = f"thread-{step % 3}"
        case.body["messages"] = [*(given if isinstance(given, list) else []), {"role": "user", "content": "hi"}]
    elif way == 2:
        case.path_parameters.update(dict.fromkeys(case.path_parameters, KNOWN))
    elif way == 3:
        case.query["offset"] = ("-1", "now", f"{0:016d}_{3:016d}", f"{0:016d}_{9:016d}")[step % 4]


# Not schemathesis' own parametrisation: all its tests have one and the same id, and pytest-xdist then runs one of them.
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_no_request_breaks_the_gateway(operation: Any, data: st.DataObject, server: FuzzedServer) -> None:
    case: schemathesis.Case[Any] = data.draw(operation.as_strategy())
    steer(case, next(server.turns))
    response = case.call(base_url=server.url, timeout=HANG_S)
    server.statuses[case.method, response.status_code] += 1
    case.validate_response(response, checks=CHECKS)
