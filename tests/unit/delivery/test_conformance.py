"""Both implementations of the port pass its kit, and one that does not is noticed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from unit.engine.stage import Stage, claimant, create

from runtime.core.ids import Offset
from runtime.core.ops import Claimed, ClaimRun, Created, Joined
from runtime.core.record import ClaimReason
from runtime.delivery.durability import Entry, StreamDurability
from runtime.delivery.memory import MemoryStreamDurability, MemoryStreams, format_offset
from runtime.delivery.own_log import ClaimedOwnLog, OwnLog
from runtime.engine.authority import Authority
from runtime.engine.clock import SystemClock
from runtime.engine.shard import Shard
from runtime.testing.delivery_kit import LogsUnderTest, StreamDurabilityKit
from runtime.testing.sim_loop import play

T = TypeVar("T")


class MemoryLogs:
    def __init__(self, *, fences: bool) -> None:
        self.streams = MemoryStreams(SystemClock(), fences=fences, first_chunk_deadline_ms=30_000)
        self.epoch = 0

    async def writer(self, run_id: str) -> StreamDurability:
        self.epoch += 1
        log = self.streams.log(run_id)
        await log.claim(self.epoch)
        return log

    def reader(self, run_id: str, offset: str | None = None) -> StreamDurability:
        return self.streams.log(run_id, offset)

    def beyond(self, run_id: str) -> str:
        return format_offset(run_id, 10**9)

    def raw(self, run_id: str) -> list[bytes]:
        log = self.streams._logs[run_id]
        return log.chunks


class TestMemoryLog(StreamDurabilityKit):
    def logs(self) -> LogsUnderTest:
        return MemoryLogs(fences=True)


class TestMemoryLogThatDoesNotFence(StreamDurabilityKit):
    def logs(self) -> LogsUnderTest:
        return MemoryLogs(fences=False)


class OwnLogs:
    """Runs of a real shard over the memory store, on virtual time."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.shard: Shard | None = None
        self.epochs: dict[str, int] = {}

    async def writer(self, run_id: str) -> StreamDurability:
        if self.shard is None:
            self.shard = await self.stage.open()
        assert isinstance(await self.shard.submit(create(run_id)), Created | Joined)
        expected = self.epochs.get(run_id, 0)
        who = claimant(f"driver-{expected}")
        op = ClaimRun(run_id=run_id, expected_epoch=expected, claimant=who, reason=ClaimReason.START)
        claimed = await self.shard.submit(op)
        assert isinstance(claimed, Claimed)
        self.epochs[run_id] = claimed.head.driver_epoch
        authority = Authority(self.shard, claimed.head, self.stage.loop, lease_ttl_s=3.0)
        return ClaimedOwnLog(authority)

    def reader(self, run_id: str, offset: str | None = None) -> StreamDurability:
        return OwnLog(_Opened(self), run_id, offset)

    def beyond(self, run_id: str) -> str:  # noqa: ARG002 - the kit's shape
        return str(Offset(0, 10**9))

    def raw(self, run_id: str) -> list[bytes]:
        return self.stage.log(run_id)


class _Opened:
    """The shard, opened by whoever asks first."""

    def __init__(self, logs: OwnLogs) -> None:
        self._logs = logs

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._logs.shard is None:
                self._logs.shard = await self._logs.stage.open()
            return await getattr(self._logs.shard, name)(*args, **kwargs)

        return call


class TestOwnLog(StreamDurabilityKit):
    terminal_closes = True

    def logs(self) -> LogsUnderTest:
        return OwnLogs()

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        return play(7, work)


# --- the kit notices


class _Broken(MemoryStreamDurability):
    """Loses every second chunk of an append."""

    async def append(self, chunks: Sequence[bytes]) -> list[str]:
        offsets = await super().append(list(chunks)[::2])
        return [*offsets, *offsets][: len(chunks)]


class _Repeating(MemoryStreamDurability):
    """Takes `strictly after` for `from`."""

    async def read(self, offset: str) -> AsyncGenerator[Entry, None]:
        for entry in await self.snapshot():
            if entry.offset == offset:
                yield entry
        async for entry in super().read(offset):
            yield entry


class _Reviving(MemoryStreamDurability):
    """Makes what it is asked for."""

    async def exists(self) -> bool:
        return True


class _NotFencing(MemoryStreamDurability):
    """Says that it fences, and does not."""

    async def claim(self, epoch: int) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (_Broken, "test_each_chunk_gets_an_offset_of_its_own_that_fits_an_sse_id"),
        (_Broken, "test_what_is_stored_is_what_was_appended_byte_for_byte"),
        (_Repeating, "test_a_read_from_any_offset_yields_exactly_what_follows"),
        (_Reviving, "test_an_offset_in_an_unknown_log_is_refused_and_makes_none"),
        (_NotFencing, "test_what_it_says_of_fencing_is_true"),
    ],
)
def test_the_kit_notices(broken: type[MemoryStreamDurability], case: str) -> None:
    class Logs(MemoryLogs):
        def reader(self, run_id: str, offset: str | None = None) -> StreamDurability:
            return broken(self.streams, run_id, offset)

        async def writer(self, run_id: str) -> StreamDurability:
            log = broken(self.streams, run_id, None)
            self.epoch += 1
            await log.claim(self.epoch)
            return log

    class Kit(StreamDurabilityKit):
        def logs(self) -> LogsUnderTest:
            return Logs(fences=True)

        def play(self, work: Coroutine[Any, Any, T]) -> T:
            return play(7, work)

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Kit(), case)()
