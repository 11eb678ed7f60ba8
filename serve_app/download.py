"""The response that sends a run's result, piece after piece, to a client that takes them.

A process on the workspace's node reads what is sent, so nobody keeps it by not reading: a client that takes nothing for
SEND_S is cut off. So is one whose token was taken away, and whoever gets a result that cannot be read to its end:
StreamCut is raised out of the body, the server closes the connection without a final chunk, and nobody takes a part for
the whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from runtime.errors import OutlastError
from serve_app.access import Caller
from serve_app.stream import StreamCut

log = logging.getLogger("outlast.gateway")

SEND_S = 60.0  # until the connection has room for one more piece


class Download(Response):
    """Sends `first` and then `pieces` to `caller`; is in `under_way` meanwhile, and closes `pieces` in the end."""

    def __init__(
        self,
        caller: Caller,
        first: bytes,
        pieces: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str],
        media_type: str,
        under_way: set[Download],
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self.caller = caller
        self._first = first
        self._pieces = pieces
        self._under_way = under_way
        self._why_cut = ""
        self._sending: asyncio.Task[None] | None = None

    def cut(self) -> None:
        """Break the connection now, wherever it stands."""
        if self._sending is not None and not self._sending.done():
            self._why_cut = "it was cut"
            self._sending.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises StreamCut."""
        del scope
        self._under_way.add(self)
        try:
            async with aclosing(self._pieces), asyncio.TaskGroup() as group:
                sending = self._sending = group.create_task(self._send_all(send))
                watcher = group.create_task(self._watch(receive, sending))
                sending.add_done_callback(lambda _: watcher.cancel())
        finally:
            self._under_way.discard(self)
        if self._why_cut:
            log.warning("run %s: its result is cut off: %s", self.headers["x-run-id"], self._why_cut)
            raise StreamCut(self._why_cut)

    async def _watch(self, receive: Receive, sending: asyncio.Task[None]) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except Exception as error:  # noqa: BLE001 - a proxy of Ray's that is going raises what it likes
            log.info("run %s: a client's connection is lost: %r", self.headers["x-run-id"], error)
        sending.cancel()

    async def _send_all(self, send: Send) -> None:
        try:
            await _in_time(
                send, {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if self._first:
                await _in_time(send, {"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in self._pieces:
                await _in_time(send, {"type": "http.response.body", "body": piece, "more_body": True})
            await _in_time(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except (OutlastError, StreamCut) as error:
            self._why_cut = str(error)
        except Exception as error:
            self._why_cut = repr(error)
            log.exception("run %s: a failure in sending its result", self.headers["x-run-id"])


async def _in_time(send: Send, message: Message) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await send(message)
    except TimeoutError:
        raise StreamCut(f"its client has taken nothing for {SEND_S:g} s") from None
    except OSError as error:
        raise StreamCut(f"its client is gone ({error})") from None
