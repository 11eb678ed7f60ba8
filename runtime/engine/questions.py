"""What is asked of a shard and done by its store alone, without its memory: lists, and what ended runs left."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.core.reap_ops import ReapStage
from runtime.core.record import Head, RunSpec
from runtime.engine.clock import Threads
from runtime.ports import RunPage, RunQuery, Store


class Questions:
    """The part of `ports.ShardPort` that asks the store, each question on an OS thread that may wait."""

    def __init__(self, store: Store, shard: int, threads: Threads) -> None:
        self._store = store
        self._shard = shard
        self._threads = threads

    async def unfinished(self) -> list[Head]:
        """Return every run of this shard that is not terminal."""
        return await self._threads.read(lambda: self._store.list_unfinished(self._shard))

    async def destroy_pending(self) -> list[Head]:
        """Return every ended run of this shard whose sandbox is not known to be destroyed."""
        return await self._threads.read(lambda: self._store.list_destroy_pending(self._shard))

    async def reapable(self, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:
        """Return the runs whose `stage` was due by then, longest due first."""
        return await self._threads.read(lambda: self._store.list_reapable(self._shard, stage, before_ms, limit))

    async def drop_log(self, run_id: str) -> int:
        """Remove a stretch of a log that was given up; return how many positions are left."""
        return await self._threads.write(lambda: self._store.drop_log(run_id))

    async def list_runs(self, query: RunQuery) -> RunPage:
        """Return one page of runs."""
        return await self._threads.read(lambda: self._store.list_runs(query))

    async def find_active(self, owner: str, thread_id: str) -> Head | None:
        """Return the thread's active run."""
        return await self._threads.read(lambda: self._store.find_active(owner, thread_id))

    async def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """Return the thread's runs, oldest first."""
        return await self._threads.read(lambda: self._store.list_thread(owner, thread_id))

    async def stderr(self, run_id: str) -> bytes | None:
        """Return the stored stderr tail."""
        return await self._threads.read(lambda: self._store.read_stderr(run_id))

    async def transcripts(self, run_ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        """Return the stored transcripts of runs, which may be other shards', until `max_bytes` are reached."""
        return await self._threads.read(lambda: self._store.read_transcripts(run_ids, max_bytes))
