"""Runs from Python, over actor handles: start, attach, cancel, find, status.

    client = Client(data_dir=".outlast")                     # or Client(address=..., namespace=...)
    run_id = await client.start("make the tests pass", harness="claude-code")
    async for offset, chunk in client.attach(run_id):
        ...                                                  # leave whenever you like, come back with that offset

Leaving `attach` detaches and never cancels (I6). An offset is opaque; the same one works over HTTP. `SyncClient` has
the same methods without `await`. Every call may be repeated: the same `start` joins the same run (I9).
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import ray

from actors.cluster import RayCluster
from actors.compose import harnesses
from actors.ray_access import use_token
from actors.segments import RaySegmentReader
from actors.viewers import Viewers
from runtime.core.chunk import decode_chunk
from runtime.core.ids import LOCAL_OWNER, START, Offset, Owner, RunId, ThreadId, run_key, shown_run_id
from runtime.core.ops import Refusal, RequestCancel
from runtime.core.record import CancelReason, to_wire
from runtime.core.refusing import to_error
from runtime.core.retention import LogPruned
from runtime.delivery.own_runs import OwnRunStore
from runtime.delivery.threads import OwnMessageStore
from runtime.engine.admission import Options, create_op, find_harness
from runtime.engine.authority import repeat
from runtime.engine.tails import skip
from runtime.errors import InputInvalid, InstanceNotFound, OffsetGone, OutlastError, RunNotFound
from runtime.ports import ReadReply
from runtime.settings import Settings

T = TypeVar("T")
PARK_S = 20.0
CHUNK = dict[str, Any]


class Client:
    """One Python process's way to an instance. Use it on one event loop; `close` it at the end."""

    def __init__(
        self,
        *,
        data_dir: str | None = None,
        address: str | None = None,
        namespace: str | None = None,
        owner: str = LOCAL_OWNER,
    ) -> None:
        """Join the Ray of the instance in `data_dir`, or at `address`; one that this process has joined is used.

        `owner` says whose runs these are, and is believed: who reaches Ray could do anything. The local one may name a
        run of another owner as `owner@runId`. Raises InstanceNotFound, InputInvalid `owner_invalid`."""
        self._owner = str(Owner.parse(owner))
        if data_dir is not None and (address is None or namespace is None):
            use_token(Path(data_dir))
            found_address, found_namespace = _read_instance(Path(data_dir))
            address, namespace = address or found_address, namespace or found_namespace
        self._settings: Settings | None = None
        place = Settings(namespace=namespace or Settings().namespace)
        if not ray.is_initialized():
            ray.init(address=address or "auto", namespace=place.namespace, log_to_driver=False)
        self._cluster = RayCluster(place, deployment="")
        self._segments = RaySegmentReader()
        self._stopped = asyncio.Event()
        self._viewers = Viewers(self._cluster, f"python-{uuid.uuid4().hex}", self._stopped)
        self._pushing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop telling who watches. Runs go on."""
        self._stopped.set()
        if self._pushing is not None:
            await self._pushing

    async def start(
        self,
        message: str,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        harness: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Start a run, or join the one that this very call has started before; return its id.

        `options` are further `forwardedProps` of the harness. Raises RequestError (InputInvalid, RunExists,
        ThreadActive, TooMany), StoreError."""
        run_id = str(RunId.parse(run_id or f"run-{uuid.uuid4()}"))
        thread_id = str(ThreadId.parse(thread_id or f"thread-{run_id}"[:128]))
        props = {**(options or {}), **({"harness": harness} if harness else {})}
        settings = await self._instance_settings()
        chosen = find_harness(harness or settings.harness, harnesses(settings))
        asked = {
            "threadId": thread_id,
            "runId": run_id,
            "messages": [{"id": f"{run_id}-user"[:128], "role": "user", "content": message}],
            "forwardedProps": props,
        }
        chosen.validate(asked)
        key = self._key(run_id)
        op = create_op(key, thread_id, self._owner, asked, _options(props), settings, chosen)
        outcome = await repeat(lambda: self._cluster.shard(key).submit(op))
        if isinstance(outcome, Refusal):
            raise to_error(outcome)
        await self._tell(self._cluster.supervisor().start(key))
        return run_id

    async def attach(self, run_id: str, offset: str = "-1") -> AsyncGenerator[tuple[str, CHUNK], None]:
        """Yield (offset after the chunk, chunk) past `offset`, until the log is closed.

        Counts as a viewer meanwhile. Raises RunNotFound, InputInvalid `offset_invalid`, OffsetGone (LogPruned: the
        log is not kept any more)."""
        parsed, key = Offset.parse(offset), self._key(run_id)
        with self._viewers.watching(key):
            if not await repeat(lambda: self._viewers.attach(key)):
                raise RunNotFound(run_id)
            self._push()
            await self._tell(self._cluster.supervisor().ensure(key))
            generation, at = parsed if parsed is not None else await self._tail(key)
            while True:
                reply, chunks = await self._read(key, at)
                if reply.gone:
                    raise await self._pruned(key)
                if (generation, at) == START:
                    generation = reply.generation
                if not Offset(generation, at).leads_into(reply.generation, reply.next):
                    raise OffsetGone(str(Offset(generation, at)), str(Offset(reply.generation, reply.next)))
                for data in chunks:
                    at += 1
                    yield str(Offset(generation, at)), decode_chunk(data)
                if reply.closed:
                    return

    async def _pruned(self, run_id: str) -> OutlastError:
        stored = await repeat(lambda: self._cluster.shard(run_id).record(run_id))
        return RunNotFound(self._shown(run_id)) if stored is None else LogPruned(stored[0])

    async def _tail(self, run_id: str) -> Offset:
        stored = await repeat(lambda: self._cluster.shard(run_id).record(run_id))
        return START if stored is None else Offset(stored[0].generation, stored[0].next_seq)

    async def cancel(self, run_id: str) -> None:
        """Stop a run; returns once that is recorded. Nothing happens to one that has ended. Raises RunNotFound."""
        key = self._key(run_id)
        op = RequestCancel(run_id=key, reason=CancelReason.USER)
        outcome = await repeat(lambda: self._cluster.shard(key).submit(op))
        if isinstance(outcome, Refusal):
            raise to_error(outcome)
        await self._tell(self._cluster.supervisor().cancel(key))

    async def find(self, thread_id: str) -> str | None:
        """Return the id of the thread's active run."""
        head = await repeat(lambda: self._cluster.shards()[0].find_active(self._owner, thread_id))
        return None if head is None else self._shown(head.run_id)

    async def status(self, run_id: str) -> dict[str, Any]:
        """Return the record with its claims. Raises RunNotFound."""
        key = self._key(run_id)
        stored = await repeat(lambda: self._cluster.shard(key).record(key))
        if stored is None:
            raise RunNotFound(run_id)
        refusals = await repeat(lambda: self._cluster.shard(key).refusals(key))
        return {**to_wire(*stored, claims=True, refusals=refusals), "runId": self._shown(key)}

    @property
    def run_store(self) -> OwnRunStore:
        """Return the owner's runs as a `RunStore` (`docs/delivery-logs.md`)."""
        return OwnRunStore(self._cluster, self._owner)

    @property
    def message_store(self) -> OwnMessageStore:
        """Return the owner's threads as a `MessageStore`."""
        return OwnMessageStore(self._cluster, self._owner)

    def _key(self, run_id: str) -> str:
        return run_key(self._owner, run_id)

    def _shown(self, key: str) -> str:
        return key if self._owner == LOCAL_OWNER else shown_run_id(key)

    async def _read(self, run_id: str, at: int) -> tuple[ReadReply, list[bytes]]:
        """Return a reply and its chunks past `at`; a segment that is lost is read from the store instead (P14)."""
        shard = self._cluster.shard(run_id)
        reply = await repeat(lambda: shard.read(run_id, at, PARK_S))
        pieces: list[tuple[int, bytes]] = []
        for sealed in reply.segments:
            data = await self._segments.get(sealed.ref)
            if data is None:
                reply = await repeat(lambda: shard.read(run_id, at, 0, inline=True))
                pieces = []
                break
            pieces.append((sealed.start, data))
        if reply.tail_count:
            pieces.append((reply.tail_start, reply.tail))
        chunks: list[bytes] = []
        for start, data in pieces:
            chunks += skip(data, max(0, at + len(chunks) - start)).split(b"\n")
        return reply, chunks

    async def _instance_settings(self) -> Settings:
        """Return the instance's own settings: its bounds hold for runs from here too."""
        if self._settings is None:
            self._settings = await repeat(self._cluster.supervisor().settings)
        return self._settings

    def _push(self) -> None:
        if self._pushing is None:
            self._pushing = asyncio.create_task(self._viewers.push_forever())

    async def _tell(self, call: Coroutine[Any, Any, None]) -> None:
        """Tell the supervisor; what it does not hear, it finds by lease (I7)."""
        with suppress(OutlastError):
            await call


def _options(props: Mapping[str, Any]) -> Options:
    known = {name: value for name, value in props.items() if name in _OPTION_NAMES}
    try:
        return msgspec.convert(known, Options)
    except msgspec.ValidationError as error:
        raise InputInvalid(f"options: {error}", code="option_invalid", field="options") from None


_OPTION_NAMES = frozenset(Options.__struct_encode_fields__)


def _read_instance(data_dir: Path) -> tuple[str, str]:
    try:
        info = msgspec.json.decode((data_dir / "instance.json").read_bytes())
        return str(info["rayAddress"]), str(info["namespace"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise InstanceNotFound(f"No instance runs in {data_dir}. Start one with `outlast serve`.") from error


class SyncClient:
    """`Client` for code without an event loop: the same methods, made by one adapter."""

    def __init__(self, **place: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outlast client", daemon=True)
        self._thread.start()
        self._client = self._await(_make(place))

    def close(self) -> None:
        """Stop; runs go on."""
        self._await(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def start(self, message: str, **options: Any) -> str:
        """See `Client.start`."""
        return self._await(self._client.start(message, **options))

    def attach(self, run_id: str, offset: str = "-1") -> Iterator[tuple[str, CHUNK]]:
        """See `Client.attach`."""
        chunks = self._client.attach(run_id, offset)
        try:
            while (item := self._await(_next(chunks))) is not None:
                yield item
        finally:
            self._await(chunks.aclose())

    def cancel(self, run_id: str) -> None:
        """See `Client.cancel`."""
        self._await(self._client.cancel(run_id))

    def find(self, thread_id: str) -> str | None:
        """See `Client.find`."""
        return self._await(self._client.find(thread_id))

    def status(self, run_id: str) -> dict[str, Any]:
        """See `Client.status`."""
        return self._await(self._client.status(run_id))

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _make(place: dict[str, Any]) -> Client:
    return Client(**place)


async def _next(chunks: AsyncGenerator[tuple[str, CHUNK], None]) -> tuple[str, CHUNK] | None:
    return await anext(chunks, None)
