"""What a shard's process has below it in a simulation: OS threads that are none, and a store that is watched and fails.

The store itself is real. A fault before its commit writes nothing; a fault after it loses the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.ops import Op, Outcome
from runtime.core.record import Head, RunSpec
from runtime.errors import StoreError, StoreFull, StoreUnavailable
from runtime.ports import RunPage, RunQuery, Store

T = TypeVar("T")

PORTION_BYTES = 4096  # of one answer of stored batches


class SimThreads:
    """The `Threads` of one process: a call runs at some moment, and goes on if whoever waits is cancelled."""

    def __init__(self, rng: random.Random, slow_s: float) -> None:
        self.slow_s = slow_s
        self._rng = rng
        self._writing = asyncio.Lock()

    async def write(self, call: Callable[[], T]) -> T:
        """Run `call` after every earlier write."""
        return await asyncio.shield(asyncio.ensure_future(self._write(call)))

    async def read(self, call: Callable[[], T]) -> T:
        """Run `call` beside others."""
        return await asyncio.shield(asyncio.ensure_future(self._run(call)))

    async def _write(self, call: Callable[[], T]) -> T:
        async with self._writing:
            return await self._run(call)

    async def _run(self, call: Callable[[], T]) -> T:
        await self._a_while()
        result = call()
        await self._a_while()
        return result

    async def _a_while(self) -> None:
        await asyncio.sleep(self.slow_s * self._rng.random() ** 3)


class StoreTrouble:
    """When the store fails; all off by default."""

    def __init__(self, rng: random.Random) -> None:
        self.before = 0.0  # share of commits that fail with nothing written
        self.after = 0.0  # share of commits that are written and whose answer is lost
        self.reading = 0.0  # share of reads that fail
        self.damaged = 0.0  # share of checkpoints that are not read as they were written
        self.down = False
        self._rng = rng

    def strike(self, share: float) -> None:
        """Raise StoreUnavailable, rarely StoreFull, in `share` of the calls."""
        if self.down or self._rng.random() < share:
            raise self._error()

    def strike_after(self) -> None:
        """Lose the answer of a commit."""
        if self._rng.random() < self.after:
            raise StoreUnavailable("simulated: the answer of the commit was lost")

    def damage(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return it as it is, or now and then with one thing in it that nobody may trust."""
        if self._rng.random() >= self.damaged:
            return checkpoint
        further = checkpoint.position + self._rng.choice([-9, -1, 1, 9, 10_000])
        name, value = self._rng.choice(
            [
                ("position", max(1, further)),
                ("journal_id", "another"),
                ("translator_version", checkpoint.translator_version + 1),
                ("translator", checkpoint.translator[:-1]),
                ("open_items", checkpoint.open_items[:-1]),
                ("seq", checkpoint.seq + 10_000),
            ]
        )
        return msgspec.structs.replace(checkpoint, **{name: value})

    def _error(self) -> StoreError:
        if self._rng.randrange(8) == 0:
            return StoreFull("simulated: no space left")
        return StoreUnavailable("simulated: the store does not answer")


Watch = Callable[[int, int, Sequence[Op], Sequence[Outcome]], None]


class WatchedStore:
    """A store that tells `watch` of every commit (shard, its epoch, operations, answers), and has trouble."""

    def __init__(self, store: Store, trouble: StoreTrouble, watch: Watch, portion_bytes: int = PORTION_BYTES) -> None:
        self.inner = store
        self._portion_bytes = portion_bytes
        self._trouble = trouble
        self._watch = watch

    def open_shard(self, shard: int, opener: str) -> int:
        """See ports.Store."""
        self._trouble.strike(self._trouble.before)
        return self.inner.open_shard(shard, opener)

    def commit(self, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        """See ports.Store."""
        self._trouble.strike(self._trouble.before)
        outcomes = self.inner.commit(shard, shard_epoch, ops, now_ms)
        self._watch(shard, shard_epoch, ops, outcomes)
        self._trouble.strike_after()
        return outcomes

    def read_run(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.read_run(run_id)

    def read_batches(self, run_id: str, after: int, max_bytes: int) -> list[Batch]:
        """See ports.Store. Answers in small portions, so that every caller has to come again."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.read_batches(run_id, after, min(max_bytes, self._portion_bytes))

    def read_checkpoint(self, run_id: str) -> Checkpoint | None:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        checkpoint = self.inner.read_checkpoint(run_id)
        return None if checkpoint is None else self._trouble.damage(checkpoint)

    def read_stderr(self, run_id: str) -> bytes | None:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.read_stderr(run_id)

    def list_runs(self, query: RunQuery) -> RunPage:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.list_runs(query)

    def list_unfinished(self, shard: int) -> list[Head]:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.list_unfinished(shard)

    def list_changed(self, shard: int, known: Mapping[str, int]) -> list[Head]:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.list_changed(shard, known)

    def list_destroy_pending(self, shard: int) -> list[Head]:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.list_destroy_pending(shard)

    def find_active(self, owner: str, thread_id: str) -> Head | None:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.find_active(owner, thread_id)

    def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.list_thread(owner, thread_id)

    def check(self) -> Mapping[str, Any]:
        """See ports.Store."""
        return self.inner.check()

    def close(self) -> None:
        """See ports.Store."""
        self.inner.close()
