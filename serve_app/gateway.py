"""What the routes share: the parts of one replica, and the few steps that more than one route takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from actors.viewers import Viewers
from runtime.core.ids import Offset
from runtime.core.record import Head, RunSpec
from runtime.core.retention import LogPruned
from runtime.errors import OffsetGone, OutlastError, RunNotFound, TooMany
from runtime.ports import Cluster, Harness, ShardPort
from runtime.settings import Settings
from serve_app.access import RELOAD_S, Access, Caller
from serve_app.asking import answer, until_answered
from serve_app.background import Background
from serve_app.download import Download
from serve_app.frames import AGAIN
from serve_app.replica import Replica
from serve_app.requests import Attach
from serve_app.shared_read import Channels
from serve_app.stream import PATIENCE_S, LogStream, View

log = logging.getLogger("outlast.gateway")

T = TypeVar("T")

# What the supervisor is told in the background; what it does not hear, it finds by lease (I7).
TELL_S = 10.0
# A stream over the bound of fresh starts is still served to who comes back, up to this multiple of it: then it is
# dropped, and finds another replica.
RETURNING = 2


class Gateway:
    """One replica at work. Use `running` around everything."""

    def __init__(
        self, cluster: Cluster, settings: Settings, harnesses: Mapping[str, Harness], replica: Replica
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.harnesses = harnesses
        self.replica = replica
        self.background = Background()
        self.channels = Channels(cluster, replica.segments, self.background)
        self.viewers = Viewers(cluster, replica.name, replica.draining)
        self.downloads: set[Download] = set()
        self._streams: set[LogStream] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Push viewer sets and watch for the drain for as long as the context lasts."""
        _ = self.background.spawn(self.viewers.push_forever(), "viewers")
        _ = self.background.spawn(self._cut_on_drain(), "drain")
        if self.replica.access is not None:
            _ = self.background.spawn(self._heed_tokens(self.replica.access), "tokens")
        try:
            yield
        finally:
            await self.background.close()

    async def _cut_on_drain(self) -> None:
        await self.replica.draining.wait()
        log.info("draining: %d streams are cut so that their clients reconnect", len(self._streams))
        for stream in list(self._streams):
            stream.cut()

    async def _heed_tokens(self, access: Access) -> None:
        """Read changed tokens, and cut what is sent to those that are not taken any more.

        Every turn: a request that was begun before the change may have become a stream after it."""
        while True:
            await asyncio.sleep(RELOAD_S)
            await asyncio.to_thread(access.tokens.reload)
            sent: list[LogStream | Download] = [*self._streams, *self.downloads]
            for response in sent:
                if not access.takes(response.caller):
                    response.cut()

    # --- asking ---

    @property
    def any_shard(self) -> ShardPort:
        """Return a shard for questions about the whole store: every shard reads all of it (P12)."""
        return self.cluster.shards()[0]

    async def find(self, caller: Caller, run_id: str) -> tuple[Head, RunSpec]:
        """Return the record of the key `run_id`. Raises RunNotFound (also for another owner's), StoreUnavailable."""
        return _owned(await answer(lambda: self.cluster.shard(run_id).record(run_id)), caller, run_id)

    def check_caller(self, caller: Caller) -> None:
        """Check that who asked is still let in: before what takes effect, if much time may have passed since the
        request began (its body came slowly, a part did not answer). Raises Unauthorized `token_invalid`."""
        if self.replica.access is not None:
            self.replica.access.check(caller)

    def tell(self, what: str, run_id: str, call: Callable[[str], Awaitable[None]]) -> None:
        """Tell the supervisor about a run, in the background and once at a time."""
        self.background.once(f"{what} {run_id}", self._tell(run_id, call))

    async def _tell(self, run_id: str, call: Callable[[str], Awaitable[None]]) -> None:
        try:
            await answer(lambda: call(run_id), TELL_S)
        except OutlastError as error:
            log.info("run %s: the supervisor was not told and finds out by itself: %s", run_id, error)

    # --- streaming ---

    def stream(self, view: View, locate: Callable[[], Awaitable[int]] | None = None) -> LogStream:
        """Return the response that shows `view`; a dropped one if this replica is being stopped or is full.

        Raises Unauthorized."""
        self.check_caller(view.caller)
        full = self.viewers.total >= RETURNING * self.settings.max_viewers or self._full_of(
            view.caller.owner, RETURNING
        )
        return LogStream(
            view,
            self.channels,
            self.viewers,
            beat_s=self.settings.heartbeat_s,
            open_streams=self._streams,
            locate=locate,
            dropped=full or self.replica.draining.is_set(),
        )

    def check_room(self, caller: Caller) -> None:
        """Check that one more stream may begin with a start. Raises TooMany `too_many_viewers`."""
        total, own = self.settings.max_viewers, self.settings.owner_max_viewers
        if self.viewers.total >= total:
            why = f"{total} streams are open here, which is the limit (OUTLAST_MAX_VIEWERS)."
        elif self._full_of(caller.owner):
            why = f"{own} streams of yours are open here, which is the limit (OUTLAST_OWNER_MAX_VIEWERS)."
        else:
            return
        raise TooMany(f"{why} Try again later.", code="too_many_viewers")

    def _full_of(self, owner: str, times: int = 1) -> bool:
        limit = times * self.settings.owner_max_viewers
        return 0 < limit <= sum(stream.caller.owner == owner for stream in self._streams)

    async def attach(self, attach: Attach) -> Response:
        """Answer an attach: the log past the offset; 204 or the terminal chunk once more at the end of a closed log.

        Never fails because a shard does not answer: then it asks on behind heartbeats. Raises RunNotFound,
        OffsetGone, Unauthorized."""
        caller = attach.caller
        view = View(attach.run_id, attach.format, caller, strict=attach.strict)
        if self.replica.draining.is_set():
            return self.stream(view)
        locating = asyncio.create_task(until_answered(lambda: self._locate(attach, view)))
        try:
            done, _ = await asyncio.wait([locating], timeout=PATIENCE_S)
            if done:
                position = locating.result()
                if position is None:
                    shown = {"X-Run-Id": caller.shown(attach.run_id), "Cache-Control": "no-store"}
                    return Response(status_code=204, headers=shown)
                view.position = position
                return self.stream(view)
        finally:
            locating.cancel()
        return self.stream(view, lambda: self._locate_late(attach, view))

    async def _locate(self, attach: Attach, view: View) -> int | None:
        """Return where the stream starts; None if there is nothing to send and the client wants to hear that.

        Makes sure that someone drives. Raises RunNotFound, OffsetGone, StoreError."""
        found = await self.cluster.shard(attach.run_id).record(attach.run_id)
        head, _ = _owned(found, attach.caller, attach.run_id)
        if head.needs_driver:
            self.tell("ensure", head.run_id, self.cluster.supervisor().ensure)
        position = head.next_seq if attach.offset is None else _position(attach.offset, head)
        view.generation = head.generation
        if head.log_gone and not (attach.may_be_empty and position == head.next_seq):
            raise LogPruned(head)
        if not head.closed or position < head.next_seq:
            return position
        if attach.may_be_empty:
            return None
        view.format = AGAIN[attach.format]
        return head.next_seq - 1

    async def _locate_late(self, attach: Attach, view: View) -> int:
        position = await self._locate(attach, view)
        if position is None:
            # The stream is open already: only a new request can be told that nothing more comes.
            raise RunNotFound(attach.caller.shown(attach.run_id))
        return position


def _owned(found: tuple[Head, RunSpec] | None, caller: Caller, run_id: str) -> tuple[Head, RunSpec]:
    if found is None or not caller.sees(found[0]):
        raise RunNotFound(caller.shown(run_id))
    return found


def _position(offset: Offset, head: Head) -> int:
    if not offset.leads_into(head.generation, head.next_seq):
        raise OffsetGone(str(offset), str(Offset(head.generation, head.next_seq)))
    return offset.position


def json_response(value: Any, status: int = 200) -> Response:
    """Return `value` as JSON that nobody caches."""
    return Response(msgspec.json.encode(value), status, {"Cache-Control": "no-store"}, "application/json")
