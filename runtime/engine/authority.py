"""What a driver may still do: one latch, fed by every answer of the shard (P3, P4, P13).

The first refusal latches the driver shut for ever: `Superseded` is raised by every later use, and the driver ends
without touching anything. A recorded cancel or a handover is not a refusal but an order, told through `changed`.

A side effect asks `permit` first. The answers it rests on may be old: a driver that was paused for an hour between an
answer and the deed hears of its successor there, and does nothing (P4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from runtime.core.ops import Op, Outcome, Superseded, UnknownRun
from runtime.core.record import Head
from runtime.core.refusing import to_error
from runtime.errors import OutlastError, OwnershipLost, RunClaimLostError, StoreError
from runtime.ports import Clock, LogPort, Pulse

T = TypeVar("T")

# Between two tries of the same call while the shard or the store does not answer.
RETRY_FIRST_S = 0.02
RETRY_MOST_S = 1.0


class Orders:
    """What the driver was told to do besides driving. Events, so that any part can wait for them."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.cancel = False
        self.handover = False
        self.lost: OutlastError | None = None

    def obey(self, pulse: Pulse, run_id: str, epoch: int) -> None:
        """Take what an answer of the shard says."""
        if pulse.superseded_by is not None:
            self.lose(RunClaimLostError(run_id, epoch, pulse.superseded_by))
        if pulse.cancel_requested and not self.cancel:
            self.cancel = True
            self.changed.set()
        if pulse.handover and not self.handover:
            self.handover = True
            self.changed.set()

    def raise_if_lost(self) -> None:
        """Raise what latched us shut, if anything did."""
        if self.lost is not None:
            raise self.lost

    def lose(self, error: OutlastError) -> None:
        """Latch shut. The first error stays."""
        if self.lost is None:
            self.lost = error
        self.changed.set()


class Authority:
    """One epoch's way to its shard: repeats calls that got no answer, latches on the first refusal."""

    def __init__(
        self, log: LogPort, claimed: Head, clock: Clock, lease_ttl_s: float, asked: float | None = None
    ) -> None:
        """`asked`: when the claim was sent; its answer may be an hour old by now (P4)."""
        self.log = log
        self.run_id = claimed.run_id
        self.epoch = claimed.driver_epoch
        self.head = claimed  # as the newest answer told it
        self.tick = 0  # counts while the driver moves (P13)
        self.orders = Orders()
        self._clock = clock
        self._lease_ttl_s = lease_ttl_s
        self._answered = (
            clock.monotonic() if asked is None else asked
        )  # when the newest call that got an answer was sent

    async def submit(self, op: Op) -> Outcome:
        """Send an operation of this epoch until it is answered (P4). Raises RunClaimLostError, once and for ever."""
        self.orders.raise_if_lost()
        outcome = await self._ask(lambda: self.log.submit(op))
        if isinstance(outcome, Superseded | UnknownRun):
            self.orders.lose(to_error(outcome))
            self.orders.raise_if_lost()
        head: Head | None = getattr(outcome, "head", None)
        if head is not None:
            self.head = head if head.version > self.head.version else self.head
            self.orders.obey(Pulse.of(head, self.epoch), self.run_id, self.epoch)
        return outcome

    async def pulse(self) -> Pulse:
        """Renew the lease once; raise RunClaimLostError if the epoch is superseded."""
        self.orders.raise_if_lost()
        pulse = await self._ask(lambda: self.log.pulse(self.run_id, self.epoch, self.tick))
        self.orders.obey(pulse, self.run_id, self.epoch)
        self.orders.raise_if_lost()
        return pulse

    async def permit(self) -> None:
        """Return when a side effect may start: the shard has confirmed this epoch within one lease (P4).

        Await nothing between this and the deed. Raises RunClaimLostError."""
        self.orders.raise_if_lost()
        while self._clock.monotonic() - self._answered > self._lease_ttl_s:
            await self.pulse()

    def count(self) -> None:
        """Give a sign of life: the driver has moved (P13)."""
        self.tick += 1

    async def ticking(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await `work` and count meanwhile: waiting for an answer is not a hang."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=1.0)
                self.count()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        sent = self._clock.monotonic()

        async def once() -> T:
            nonlocal sent
            sent = self._clock.monotonic()
            return await call()

        answer = await repeat(once)
        self._answered = max(self._answered, sent)
        return answer


async def repeat(call: Callable[[], Awaitable[T]]) -> T:
    """Await `call` until the shard answers; every call of a LogPort may be repeated (I9)."""
    delay_s = RETRY_FIRST_S
    while True:
        try:
            return await call()
        except OwnershipLost as error:
            if isinstance(error, RunClaimLostError):
                raise
        except StoreError:
            pass
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, RETRY_MOST_S)
