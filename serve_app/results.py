"""`/api/runs/{runId}/workspace`: what a run made of its workspace, while it runs and after.

    as=files      what it created, modified and deleted, as a JSON list
    as=diff       the same as text that `git apply` takes
    as=archive    the whole workspace, .tar.gz

Whether it can be had is known before the first byte: then it has a status. What goes wrong later breaks the connection
(`download.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.core.ids import thread_key
from runtime.core.record import Launch
from runtime.core.result import Form, ResultAsk, WorkspaceNotFound
from runtime.errors import InputInvalid, TooMany
from serve_app import openapi
from serve_app.access import Caller, caller_of
from serve_app.download import Download
from serve_app.gateway import Gateway
from serve_app.runs import run_id_of

AT_ONCE = 4  # of one replica: each is a process on the node that reads
OWNER_AT_ONCE = 2  # of those; the operator has all
MEDIA = {Form.FILES: "application/json", Form.DIFF: "text/x-diff", Form.ARCHIVE: "application/gzip"}


class RunResults:
    """The handler."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sending: Counter[str] = Counter()  # by who asks

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        router.add_api_route("/api/runs/{run_id}/workspace", self.result, methods=["GET"], **openapi.result())

    async def result(self, request: Request) -> Response:
        """Send a run's result. Raises RunNotFound, InputInvalid `as_invalid`, TooMany, Unauthorized, WorkspaceNotFound,
        and what `runtime.ports.Results` raises."""
        form = _form(request)
        caller = caller_of(request)
        head, spec = await self._gateway.find(caller, run_id_of(request))
        shown = caller.shown(head.run_id)
        if head.sandbox_key is None or head.launch is not Launch.INTENDED:
            raise WorkspaceNotFound(f"Run {shown!r} has no workspace: its agent was not launched.")
        ask = ResultAsk(
            provider=spec.provider,
            key=head.sandbox_key,
            thread_key=thread_key(head.owner, head.thread_id),
            run_id=head.run_id,
            form=form,
            max_bytes=self._gateway.settings.workspace_max_bytes,
        )
        self._check_room(caller)
        pieces = self._counted(caller, ask)
        try:
            first = await anext(pieces, b"")
            self._gateway.check_caller(caller)
        except BaseException:
            await pieces.aclose()
            raise
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Run-Id": shown}
        if form is Form.ARCHIVE:
            headers["Content-Disposition"] = f'attachment; filename="{shown}.tar.gz"'
        return Download(
            caller, first, pieces, headers=headers, media_type=MEDIA[form], under_way=self._gateway.downloads
        )

    def _check_room(self, caller: Caller) -> None:
        if self._sending.total() >= AT_ONCE:
            why = f"This replica sends {AT_ONCE} results of runs already"
        elif not caller.operator and self._sending[caller.owner] >= OWNER_AT_ONCE:
            why = f"This replica sends {OWNER_AT_ONCE} results of runs of yours already"
        else:
            return
        raise TooMany(f"{why}; ask again.", code="too_many_downloads")

    async def _counted(self, caller: Caller, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        self._sending[caller.owner] += 1
        try:
            async with aclosing(self._gateway.cluster.result(ask)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._sending[caller.owner] -= 1


def _form(request: Request) -> Form:
    asked = request.query_params.get("as", "")
    if asked not in {form.value for form in Form}:
        raise InputInvalid(
            f"as must be one of {', '.join(form.value for form in Form)}.", code="as_invalid", field="as"
        )
    return Form(asked)
