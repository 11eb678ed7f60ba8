"""How a driver ends its run: the finish, then the sandbox goes; after a cancel the other way round (P4, P9, P21).

What the finish holds is made in `engine/finishing.py`. Here is the order of things: nothing is destroyed before the
store has said, under our epoch, that the run has ended or that its cancel is recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from runtime.core.launch import AgentExit
from runtime.core.open_items import OpenItems
from runtime.core.ops import Finished, MustAbort, Note, Outcome
from runtime.core.record import CancelReason, Head, Launch, Status
from runtime.engine.appending import Appender
from runtime.engine.authority import Authority, repeat
from runtime.engine.finishing import STDERR_BYTES, aborted, build_finish
from runtime.engine.preparing import CREATE_DEADLINE_S, Preparer, reaching
from runtime.engine.tools import Tools
from runtime.errors import AgentError, OutlastError, OwnershipLost, SandboxUnreachable
from runtime.ports import Ending, Sandbox, SandboxProvider

log = logging.getLogger("outlast.driver")

CANCEL_UNREACHABLE_S = 10.0  # P21: how long a cancel waits for a host that does not answer


@dataclass(frozen=True, slots=True)
class DriveEnd:
    """How a drive ended: `finished`, `refused` (claim), `superseded`, or `handed_over`."""

    kind: str
    status: Status | None = None
    next_run: str | None = None  # the queued run that this finish let start


class Conclusion:
    """One epoch's endings. `sandbox` and `preparer` are what the drive has come to by then; `last` is a chunk that a
    finish has right before its terminal."""

    def __init__(
        self,
        tools: Tools,
        claimed: Head,
        authority: Authority,
        appender: Appender,
        open_items: OpenItems,
        provider: SandboxProvider | None,
        keep_s: int = 0,
    ) -> None:
        """`keep_s`: how long the sandbox stays if the run completes (P19)."""
        self.begun = False  # a cancel or the finish is under way: the cancel's receipt (P21)
        self.sandbox: Sandbox | None = None
        self.preparer: Preparer | None = None
        self.last: bytes | None = None
        self._tools = tools
        self._claimed = claimed
        self._authority = authority
        self._appender = appender
        self._open_items = open_items
        self._provider = provider
        self._keep_s = keep_s

    @property
    def _head(self) -> Head:
        return self._authority.head

    async def stderr(self) -> bytes:
        """Return the end of what the agent said on stderr; nothing if that cannot be had."""
        if self.sandbox is None:
            return b""
        try:
            return await self.sandbox.stderr_tail(STDERR_BYTES)
        except AgentError:
            return b""

    async def finish(self, ending: Ending, exit: AgentExit | None) -> DriveEnd:
        """Store the ending (P9), then give the sandbox back (P4), unless the store says that it is kept (P19)."""
        self.begun = True
        stderr = await self.stderr()
        pending = self._head.sandbox_key is not None
        keep_s = self._keep_s if ending.status is Status.COMPLETED else 0
        outcome = await self._submit_finish(
            ending, exit=exit, stderr=stderr, destroy_pending=pending, last=self.last, keep_s=keep_s
        )
        if isinstance(outcome, MustAbort):
            return await self.abort()
        if isinstance(outcome, Finished) and pending and outcome.head.sandbox_kept_until is None:
            await self._destroy_after_finish()
        return self._end(outcome, ending)

    async def abort(self) -> DriveEnd:
        """A cancel is recorded: destroy, then finish (P4, P21). The store told us so under our epoch."""
        self.begun = True
        stderr = b""
        code = None
        try:
            async with asyncio.timeout(CANCEL_UNREACHABLE_S):
                stderr = await self.stderr()
                await self._authority.ticking(reaching(self.destroy, self._tools.clock, self._tools.sandbox_return_s))
        except (TimeoutError, SandboxUnreachable):
            code = "sandbox_unreachable"
        ending = aborted(await self._cancel_reason(), code)
        creating = (
            self.preparer is not None and self.preparer.creating is not None and not self.preparer.creating.done()
        )
        # A lost driver of ours may still be inside its `create`: then somebody looks again later (P21).
        pending = creating or code is not None or self._claimed.launch is Launch.KEYED
        outcome = await self._submit_finish(ending, stderr=stderr, destroy_pending=pending)
        if isinstance(outcome, Finished) and creating:
            await self._destroy_after_finish()
        return self._end(outcome, ending)

    async def hand_over(self) -> DriveEnd:
        """Store what has been translated, and say in the record that we go: no driver was lost here."""
        await self.quietly(self._appender.drain())
        await self.quietly(self._say_handed_over())
        return DriveEnd("handed_over")

    async def _say_handed_over(self) -> None:
        await self._authority.submit(Note(run_id=self._head.run_id, epoch=self._authority.epoch, handed_over=True))

    async def destroy(self) -> None:
        """Destroy by key: a sandbox may exist although nobody told us (its `create` had no answer)."""
        if self._provider is not None and self._head.sandbox_key is not None:
            await self._authority.permit()
            await self._provider.destroy(self._head.sandbox_key)

    async def quietly(self, storing: Coroutine[Any, Any, None]) -> None:
        """Await `storing`; what does not fit into the log any more is no reason not to end the run."""
        try:
            await self._authority.ticking(storing)
        except OwnershipLost:
            raise
        except OutlastError as error:
            log.debug("run %s: %s", self._head.run_id, error)

    async def _cancel_reason(self) -> CancelReason | None:
        if self._head.cancel_reason is None:
            stored = await repeat(lambda: self._tools.log.record(self._head.run_id))
            return stored[0].cancel_reason if stored is not None else None
        return self._head.cancel_reason

    async def _submit_finish(
        self,
        ending: Ending,
        *,
        exit: AgentExit | None = None,
        stderr: bytes,
        destroy_pending: bool,
        last: bytes | None = None,
        keep_s: int = 0,
    ) -> Outcome:
        """Store what was translated, as far as it still can be; then the finish, at the place after it."""
        await self.quietly(self._appender.seal())
        finish = build_finish(
            self._head,
            self._authority.epoch,
            self._appender.progress.next_seq,
            ending,
            self._open_items,
            exit=exit,
            stderr=stderr,
            destroy_pending=destroy_pending,
            last=last,
            keep_s=keep_s,
        )
        # The shard reads the whole log for the transcript, which may take it longer than a hang (P13).
        outcome: Outcome = await self._authority.ticking(self._authority.submit(finish))
        return outcome

    def _end(self, outcome: Outcome, ending: Ending) -> DriveEnd:
        if isinstance(outcome, Finished):
            unqueued = outcome.unqueued.run_id if outcome.unqueued else None
            return DriveEnd("finished", ending.status, unqueued)
        log.error("run %s: the finish was refused: %s", self._head.run_id, outcome)
        return DriveEnd("superseded")

    async def _destroy_after_finish(self) -> None:
        """Give the sandbox back; one that is still being made is waited for, since its `create` goes on (P21). Where
        that does not end, it stays pending, and somebody looks again."""
        creating = None if self.preparer is None else self.preparer.creating
        try:
            if creating is not None:
                await self._authority.ticking(asyncio.wait((creating,), timeout=CREATE_DEADLINE_S))
            await self._authority.ticking(self.destroy())
            if creating is not None and not creating.done():
                return
            given_back = Note(run_id=self._head.run_id, epoch=self._authority.epoch, destroy_pending=False)
            await self._authority.submit(given_back)
        except AgentError as error:
            log.warning("run %s: its sandbox could not be destroyed now: %s", self._head.run_id, error)
