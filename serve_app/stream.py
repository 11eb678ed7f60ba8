"""The response that shows a log: headers at once, everything up to the end of the closed log, then a clean end.

A client tells four ends apart, and so do we (contract 1.5):

    END     the log is closed and everything was sent: the final HTTP chunk, the run is over
    LEFT    the client went away: nothing but bookkeeping. It is a detach, never a cancel (I6)
    CUT     we must stop (drain, a failure, a log that went away): StreamCut is raised out of the body, so that the
            server closes the connection without a final chunk, and the client comes back. A clean end without a
            terminal chunk, or any status but 200, would make it give up. Node's fetch takes a missing final chunk for
            a clean end if the answer says `Connection: close` (HAProxy adds that while it is replaced), so the body
            ends in the middle of a line as well
    (none)  the replica dies: the same as CUT for the client

What must be asked before the first chunk (the record, the attach) is asked here too if the shard was too slow for the
request's handler: heartbeats go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from enum import Enum

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from actors.viewers import Viewers
from runtime.errors import OutlastError
from serve_app.access import Caller
from serve_app.asking import until_answered
from serve_app.frames import Format, Piece
from serve_app.log_reader import LogGone
from serve_app.shared_read import Channels
from serve_app.subscription import Subscription

log = logging.getLogger("outlast.gateway")

# How long headers wait for the shard. Twice this (record, attach) stays below the 2 s after which a client that
# re-joins gives up on a silent stream (contract 1.6).
PATIENCE_S = 0.5
# How long a stream that is cut waits for a client that does not read.
LAST_WORDS_S = 0.5


class StreamCut(Exception):
    """Raised out of a response that was begun: the server closes the connection in mid-body."""


class Ending(Enum):
    """How a stream ended; see the module."""

    END = "end"
    LEFT = "left"
    CUT = "cut"


class View:
    """What a stream shows to `caller`: the log of `run_id` past `position`. `known` is the piece before the shared
    read's start, if that is at hand. `strict` hides what a strict AG-UI client does not take (P26). `generation` is
    that of `position`, where it is known (P10): what is shown is of it, or of none."""

    def __init__(
        self,
        run_id: str,
        format: Format,
        caller: Caller,
        position: int = 0,
        *,
        strict: bool = False,
        known: Piece | None = None,
        generation: int | None = None,
    ) -> None:
        self.generation = generation
        self.run_id = run_id
        self.caller = caller
        self.format = format
        self.position = position
        self.strict = strict
        self.known = known


class LogStream(Response):
    """Streams one log to one viewer. `position` is asked for while the stream is open already if it is not known
    yet; an OutlastError from it cuts the stream: the client's next request gets the proper answer."""

    def __init__(
        self,
        view: View,
        channels: Channels,
        viewers: Viewers,
        *,
        beat_s: float,
        open_streams: set[LogStream],
        locate: Callable[[], Awaitable[int]] | None = None,
        dropped: bool = False,
    ) -> None:
        super().__init__(media_type=view.format.media_type)
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"
        if view.run_id:
            self.headers["X-Run-Id"] = view.caller.shown(view.run_id)
        self._view = view
        self._channels = channels
        self._viewers = viewers
        self._beat_s = beat_s
        self._locate = locate
        self._open_streams = open_streams
        self._dropped = dropped
        self._started = False
        self._ending: Ending | None = None
        self._pump_task: asyncio.Task[None] | None = None

    @property
    def caller(self) -> Caller:
        """Return who watches."""
        return self._view.caller

    def cut(self) -> None:
        """Break the stream now, wherever it stands."""
        self._stop(Ending.CUT)

    def _stop(self, ending: Ending) -> None:
        if self._ending is None and self._pump_task is not None:
            self._ending = ending
            self._pump_task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises StreamCut."""
        del scope
        if self._dropped:
            await self._tear(send)
            raise StreamCut("this replica is being stopped")
        self._open_streams.add(self)
        try:
            with self._viewers.watching(self._view.run_id):
                async with asyncio.TaskGroup() as group:
                    self._pump_task = group.create_task(self._pump(send, group))
                    watcher = group.create_task(self._watch(receive))
                    self._pump_task.add_done_callback(lambda _: watcher.cancel())
        finally:
            self._open_streams.discard(self)
        if self._ending is Ending.CUT:
            await self._tear(send)
            raise StreamCut("the stream was cut so that its client reconnects")

    async def _watch(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except Exception as error:  # noqa: BLE001 - a proxy of Ray's that is going raises what it likes
            log.info("run %s: a client's connection is lost: %r", self._view.run_id, error)
            self._stop(Ending.CUT)  # whoever is there after all comes back
        self._stop(Ending.LEFT)

    async def _start(self, send: Send) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    async def _tear(self, send: Send) -> None:
        """Leave the body in the middle of a line. An answer that has not begun begins: no answer would be a 500."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                if not self._started:
                    await self._start(send)
                await send({"type": "http.response.body", "body": self._view.format.torn, "more_body": True})

    # --- one pump per stream ---

    async def _pump(self, send: Send, group: asyncio.TaskGroup) -> None:
        attached = group.create_task(self._attach())
        try:
            if self._view.known is None:
                await self._begin(send, attached)
            else:
                # The run is this request's own and not detached yet: its first byte need not wait (P20).
                attached.add_done_callback(self._attached_late)
                await self._start(send)
            await self._serve(send, group)
            self._ending = Ending.END
        except OSError:
            self._ending = Ending.LEFT
        except (OutlastError, LogGone) as error:
            self._ending = Ending.CUT
            log.info("a stream of run %s is cut: %s", self._view.run_id, error)
        except Exception:
            self._ending = Ending.CUT
            log.exception("a stream of run %s is cut", self._view.run_id)
        finally:
            attached.cancel()

    async def _begin(self, send: Send, attached: asyncio.Task[Exception | None]) -> None:
        """Send the headers, at the latest after PATIENCE_S, and return when the viewer is attached (P20)."""
        await asyncio.wait([attached], timeout=PATIENCE_S)
        await self._start(send)
        while not attached.done():
            await send({"type": "http.response.body", "body": self._view.format.heartbeat, "more_body": True})
            await asyncio.wait([attached], timeout=self._beat_s)
        if (error := attached.result()) is not None:
            raise error

    def _attached_late(self, attached: asyncio.Task[Exception | None]) -> None:
        if not attached.cancelled() and (error := attached.result()) is not None:
            log.info("a stream of run %s is cut: %s", self._view.run_id, error)
            self.cut()

    async def _attach(self) -> Exception | None:
        try:
            if self._locate is not None:
                self._view.position = await until_answered(self._locate)
            known = await until_answered(lambda: self._viewers.attach(self._view.run_id))
        except Exception as error:  # noqa: BLE001 - raised again in the pump
            return error
        return None if known else LogGone(f"there is no run {self._view.run_id}")

    async def _serve(self, send: Send, group: asyncio.TaskGroup) -> None:
        view = self._view
        subscription = Subscription(
            self._channels,
            view.run_id,
            view.format,
            position=view.position,
            generation=view.generation,
            strict=view.strict,
            beat_s=self._beat_s,
            spawn=group.create_task,
        )
        with closing(subscription):
            if view.known is not None:
                subscription.know(view.known)
            while (frames := await subscription.next()) is not None:
                await send({"type": "http.response.body", "body": frames, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
