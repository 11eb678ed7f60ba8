"""What a shard's process has below it in a simulation: OS threads that are none, and a store that is watched and fails.

The store itself is real. A fault before its commit writes nothing; a fault after it loses the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.ops import Op, Outcome
from runtime.core.reap_ops import ReapStage
from runtime.core.record import Head, RunSpec
from runtime.errors import StoreError, StoreFull, StoreUnavailable
from runtime.ports import RunPage, RunQuery, Store
from runtime.testing.sim_loop import THREAD_SLOW_S, SimLoop
from runtime.testing.sim_net import answer, fail
from runtime.testing.sim_turns import PROCESS, Timer

T = TypeVar("T")

PORTION_BYTES = 4096  # of one answer of stored batches


class SimThreads:
    """The `Threads` of one process: a call runs at some moment, and goes on if whoever waits is cancelled."""

    def __init__(self, rng: random.Random, slow_s: float, crossing: Crossing | None = None) -> None:
        self.slow_s = slow_s
        self._random = rng.random
        self._crossing = crossing
        self._writes: deque[Callable[[], None]] = deque()  # the first one runs

    async def write(self, call: Callable[[], T]) -> T:
        """Run `call` after every earlier write."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writes.append(partial(self._begin_write, call, done))
        if len(self._writes) == 1:
            self._writes[0]()
        return await done

    async def read(self, call: Callable[[], T]) -> T:
        """Run `call` beside others."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._begin(call, done, _nothing)
        return await done

    def _begin_write(self, call: Callable[[], T], done: asyncio.Future[T]) -> None:
        timer = self._begin(call, done, self._next_write)
        if self._crossing is not None:
            self._crossing.waiting[self] = timer

    def _begin(self, call: Callable[[], T], done: asyncio.Future[T], then: Callable[[], None]) -> Timer:
        return cast("SimLoop", done.get_loop()).call_later(self._a_while_s(), self._run, call, done, then)

    def _run(self, call: Callable[[], T], done: asyncio.Future[T], then: Callable[[], None]) -> None:
        if self._crossing is not None:
            self._crossing.waiting.pop(self, None)
        try:
            tell = partial(answer, done, call())
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            tell = partial(fail, done, error)
        done.get_loop().call_later(self._a_while_s(), self._end, tell, then)

    def _end(self, tell: Callable[[], None], then: Callable[[], None]) -> None:
        tell()
        then()

    def _next_write(self) -> None:
        self._writes.popleft()
        if self._writes:
            self._writes[0]()

    def _a_while_s(self) -> float:
        slow_s = self.slow_s if self._crossing is None else self._crossing.slow_s
        return slow_s * self._random() ** 3


def _nothing() -> None:
    pass


class Crossing:
    """What the writes of several processes have to do with one another: any may come between two statements of one."""

    def __init__(self, loop: SimLoop, write: Callable[[str], None]) -> None:
        self.write = write  # a line of the trace
        self.share = 0.0  # of the moments at which another's write may come, those at which one does
        self.slow_s = THREAD_SLOW_S
        self.waiting: dict[SimThreads, Timer] = {}  # writes that have not begun
        self._loop = loop
        self._crossed = False

    def cross(self) -> None:
        """Perhaps let a write of another process happen now."""
        if self._crossed or self._loop.rng.random() >= self.share:
            return
        here = PROCESS.get()
        others = [timer for timer in self.waiting.values() if self._may_run(timer, here)]
        if others:
            timer = self._loop.rng.choice(others)
            self.write(f"{here}: a write of {timer.context.run(PROCESS.get)} comes between")
            callback, args = timer.callback, timer.args
            timer.cancel()
            self._crossed = True
            try:
                timer.context.run(callback, *args)
            finally:
                self._crossed = False

    def _may_run(self, timer: Timer, here: str) -> bool:
        process = timer.context.run(PROCESS.get)
        return process != here and self._loop.runs(process)


class StoreTrouble:
    """When the store fails; all off by default."""

    def __init__(self, rng: random.Random) -> None:
        self.before = 0.0  # share of commits that fail with nothing written
        self.after = 0.0  # share of commits that are written and whose answer is lost
        self.reading = 0.0  # share of reads that fail
        self.damaged = 0.0  # share of checkpoints that are not read as they were written
        self.down = False
        self.fell: Callable[[], None] = _nothing  # told when an outage begins, ...
        self.rose: Callable[[], None] = _nothing  # ... and when it ends
        self._rng = rng

    def fall(self) -> None:
        """Begin an outage."""
        self.down = True
        self.fell()

    def rise(self) -> None:
        """End it."""
        self.down = False
        self.rose()

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
    """A store that tells `watch` of every commit (shard, its epoch, operations, answers), and has trouble.

    Without a `watch` commits are as they are: they have trouble of their own, and others who watch."""

    def __init__(
        self, store: Store, trouble: StoreTrouble, watch: Watch | None, portion_bytes: int = PORTION_BYTES
    ) -> None:
        self.inner = store
        self._portion_bytes = portion_bytes
        self._trouble = trouble
        self._watch = watch

    def open_shard(self, shard: int, opener: str) -> int:
        """See ports.Store."""
        if self._watch is not None:
            self._trouble.strike(self._trouble.before)
        return self.inner.open_shard(shard, opener)

    def commit(self, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        """See ports.Store."""
        if self._watch is None:
            return self.inner.commit(shard, shard_epoch, ops, now_ms)
        self._trouble.strike(self._trouble.before)
        outcomes = self.inner.commit(shard, shard_epoch, ops, now_ms)
        self._watch(shard, shard_epoch, ops, outcomes)
        self._trouble.strike_after()
        return outcomes

    def drop_log(self, run_id: str) -> int:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.drop_log(run_id)

    def raise_generation(self, now_ms: int, above: int = 0) -> int:
        """See ports.Store."""
        return self.inner.raise_generation(now_ms, above)

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

    def read_transcript(self, run_id: str) -> bytes | None:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.read_transcript(run_id)

    def read_transcripts(self, run_ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.read_transcripts(run_ids, max_bytes)

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

    def list_reapable(self, shard: int, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:
        """See ports.Store."""
        self._trouble.strike(self._trouble.reading)
        return self.inner.list_reapable(shard, stage, before_ms, limit)

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
