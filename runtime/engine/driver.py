"""A run's driver: claim, make or find the sandbox, follow its journal, append, finish. Chunk path 1/6.

Before: `sandboxes/follow.py` yields the journal's bytes. After: `engine/appending.py` batches the chunks.

One `drive` is one epoch's whole life, and it is the same for a first driver and for every successor: read the stored
log in the claim's answer, replay the journal from byte 0 through a fresh translator, and let alignment keep what is
not stored yet (P24). Wherever it stops, the next one can go on; wherever it is paused, its next write is refused (I1).

Three things interrupt it: losing the epoch (stop, touch nothing), a recorded cancel (destroy, then finish as
aborted), and a handover (stop; the successor is being made). A finish that is under way is not interrupted: the
store decides which of finish and cancel came first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from runtime.core import chunk
from runtime.core.align import BandAligner
from runtime.core.batch import Band
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.open_items import OpenItems
from runtime.core.ops import Claimed, ClaimRun, Finished, MustAbort, Note, Outcome
from runtime.core.record import CancelReason, Claimant, ClaimReason, Head, Launch, RunSpec, Status
from runtime.engine.appending import Appender, Progress
from runtime.engine.authority import Authority, repeat
from runtime.engine.claimed_log import pages
from runtime.engine.finishing import STDERR_BYTES, aborted, build_finish, failed, failed_by
from runtime.engine.following import Follower, Limits
from runtime.engine.plugins import pick
from runtime.engine.preparing import CREATE_DEADLINE_S, History, Preparer, reaching
from runtime.errors import (
    AgentError,
    LogClosedError,
    OutlastError,
    OwnershipLost,
    SandboxUnreachable,
)
from runtime.ports import Clock, Ending, Harness, LogPort, Sandbox, SandboxProvider

log = logging.getLogger("outlast.driver")

T = TypeVar("T")

PROGRESS_AFTER_S = 30.0  # P19: aligned, and then followed for this long
CANCEL_UNREACHABLE_S = 10.0  # P21: how long a cancel waits for a host that does not answer


@dataclass(frozen=True, slots=True)
class Tools:
    """What a driver works with; made by a composition root, the same for every run of a process."""

    log: LogPort
    clock: Clock
    providers: Mapping[str, SandboxProvider]
    harnesses: Mapping[str, Harness]
    agent_env: Mapping[str, str]
    history: History
    lease_ttl_s: float
    sandbox_return_s: float


@dataclass(frozen=True, slots=True)
class DriveEnd:
    """How a drive ended: `finished`, `refused` (claim), `superseded`, or `handed_over`."""

    kind: str
    status: Status | None = None
    next_run: str | None = None  # the queued run that this finish let start


class Driver:
    """Drives one run once."""

    def __init__(self, run_id: str, tools: Tools, claimant: Claimant) -> None:
        self.run_id = run_id
        self.epoch = 0
        self.ending = False  # true once a cancel or the finish is under way: the cancel's receipt (P21)
        self._tools = tools
        self._claimant = claimant
        self._drive: _Drive | None = None

    async def emit(self, name: str, value: Any, emit_id: str) -> int:
        """Append a CUSTOM live chunk; return the position after it. `emit_id` makes a repeat harmless (P8).

        Raises LogClosedError when the run has no driver here any more."""
        drive = self._drive
        if drive is None:
            raise LogClosedError(self.run_id)
        return await drive.appender.put_live(chunk.custom(name, value), emit_id)

    async def look(self) -> bool:
        """Ask the shard now what it orders; return whether a cancel is recorded and seen (P21's receipt)."""
        drive = self._drive
        if drive is None:
            return False
        try:
            return (await drive.authority.pulse()).cancel_requested
        except OwnershipLost:
            return False

    async def drive(self, expected_epoch: int, reason: ClaimReason) -> DriveEnd:
        """Claim once (P1), and drive until the run has ended or is somebody else's."""
        asked = self._tools.clock.monotonic()
        claim = ClaimRun(run_id=self.run_id, expected_epoch=expected_epoch, claimant=self._claimant, reason=reason)
        outcome: Outcome = await repeat(lambda: self._tools.log.submit(claim))
        if not isinstance(outcome, Claimed):
            log.info("run %s: claim of epoch %d refused: %s", self.run_id, expected_epoch + 1, outcome)
            return DriveEnd("refused")
        self.epoch = outcome.head.driver_epoch
        self._drive = _Drive(self, outcome, self._tools, asked)
        try:
            return await self._drive.run()
        except OwnershipLost as error:
            log.info("run %s: epoch %d stops: %s", self.run_id, self.epoch, error)
            return DriveEnd("superseded")
        finally:
            self._drive = None


class _Drive:
    """One epoch: state that begins with the claim and ends with it."""

    def __init__(self, driver: Driver, claimed: Claimed, tools: Tools, asked: float) -> None:
        self.driver = driver
        self.tools = tools
        self.run_id = claimed.head.run_id
        self.spec: RunSpec = claimed.spec
        self.harness = pick(tools.harnesses, self.spec.harness)
        self.provider = pick(tools.providers, self.spec.provider)
        self.authority = Authority(tools.log, claimed.head, tools.clock, tools.lease_ttl_s, asked)
        self.open_items = OpenItems()
        self.claimed = claimed
        self.progress = Progress(next_seq=claimed.head.next_seq)
        self.appender = Appender(self.authority, self.progress, self.open_items, self.spec.limits.max_log_bytes)
        self.aligner = BandAligner([])
        self.preparer: Preparer | None = None
        self.sandbox: Sandbox | None = None

    @property
    def head(self) -> Head:
        """Return the record as the newest answer told it."""
        return self.authority.head

    async def run(self) -> DriveEnd:
        """Drive to an end; the renewal and the appender live exactly as long."""
        helpers = [asyncio.create_task(self._renew()), asyncio.create_task(self.appender.run())]
        try:
            await self._read_log()
            return await self._run()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            self.appender.close(LogClosedError(self.run_id))

    async def _read_log(self) -> None:
        """Take the claim's log (P24): what is open in it, whose effects it holds, what a replay must meet."""
        journal = []
        async for page in pages(self.authority.log, self.claimed):
            self._count()
            for batch in page:
                self.open_items.feed(batch.chunks())
                if batch.key is not None:
                    self.progress.keys[batch.key] = batch.next_seq
                if batch.band is Band.JOURNAL:
                    journal.append(batch)
            await asyncio.sleep(0)
        self.aligner = BandAligner(journal)

    async def _run(self) -> DriveEnd:
        orders = self.authority.orders
        if self.head.cancel_requested:
            return await self._abort()
        ending, exit = await self._until_ordered(self._work())
        orders.raise_if_lost()
        if ending is None and orders.cancel:
            return await self._abort()
        if ending is not None:
            return await self._finish(ending, exit)
        await self._quietly(self.appender.drain())
        return DriveEnd("handed_over")

    async def _until_ordered(
        self, work: Coroutine[Any, Any, tuple[Ending, AgentExit | None]]
    ) -> tuple[Ending | None, AgentExit | None]:
        """Run `work` until it ends or an order comes; orders win only over unfinished work."""
        task = asyncio.create_task(work)
        ordered = asyncio.create_task(self.authority.orders.changed.wait())
        try:
            await asyncio.wait((task, ordered), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None, None
        finally:
            for one in (task, ordered):
                one.cancel()
            await asyncio.gather(task, ordered, return_exceptions=True)

    # --- the work ---

    async def _work(self) -> tuple[Ending, AgentExit | None]:
        """Drive the agent to its exit; return what the run then is."""
        try:
            return await self._follow_agent()
        except AgentError as error:
            return failed_by(error), None
        except OutlastError:
            if self.appender.full:
                limit = self.spec.limits.max_log_bytes
                return failed("log_limit", f"The run's log reached its bound of {limit} bytes."), None
            raise

    async def _follow_agent(self) -> tuple[Ending, AgentExit | None]:
        if self.harness is None or self.provider is None:
            what = f"harness {self.spec.harness!r}" if self.harness is None else f"provider {self.spec.provider!r}"
            return failed("launch_failed", f"This instance has no {what}. Check OUTLAST_HARNESSES and PROVIDERS."), None
        self.preparer = Preparer(self.tools, self.authority, self.spec, self.harness, self.provider)
        self.sandbox = await self._ticking(self.preparer.ready())
        translator = self.harness.translator(self.run_id, self.spec)
        follower = Follower(self.sandbox, translator, self.aligner, self.appender, self._count, self._limits())
        if (stopped_by := await follower.follow()) is not None:
            return stopped_by, None
        exit = await self._exit(follower.no_exit)
        stderr = await self._stderr()
        if self.aligner.remaining:
            return self._shorter(exit, follower.cut)
        await self._ticking(self.appender.drain())
        return translator.finish(exit, stderr), exit

    def _limits(self) -> Limits:
        started_ms = self.head.started_at or self.tools.clock.wall_ms()
        elapsed_s = max(0, self.tools.clock.wall_ms() - started_ms) / 1000
        limits = self.spec.limits
        return Limits(
            clock=self.tools.clock,
            run_s=limits.run_limit_s - elapsed_s if limits.run_limit_s else None,
            run_limit_s=limits.run_limit_s,
            idle_s=limits.idle_limit_s or None,
            unreachable_s=self.tools.sandbox_return_s,
            max_line_bytes=limits.max_line_bytes,
        )

    async def _exit(self, no_exit: bool) -> AgentExit:
        assert self.sandbox is not None
        if no_exit:
            return AgentExit(kind=ExitKind.NO_EXIT, journal_length=0)
        exit = await self._reaching(self.sandbox.exit)
        return exit or AgentExit(kind=ExitKind.LOST, journal_length=0)

    def _shorter(self, exit: AgentExit, cut: AgentError | None) -> tuple[Ending, AgentExit | None]:
        """The journal ended before the stored log did: lost with its host, or not the same journal (P24)."""
        if exit.kind is ExitKind.LOST:
            return failed("agent_lost", "The agent's host lost the end of its journal; the agent is gone."), exit
        if cut is not None:
            return failed_by(cut), exit
        left = self.aligner.remaining
        return failed("journal_diverged", f"The journal's replay ended {left} chunks before the stored log."), exit

    async def _stderr(self) -> bytes:
        if self.sandbox is None:
            return b""
        try:
            return await self.sandbox.stderr_tail(STDERR_BYTES)
        except AgentError:
            return b""

    # --- endings ---

    async def _finish(self, ending: Ending, exit: AgentExit | None) -> DriveEnd:
        """Store the ending (P9), then give the sandbox back (P4)."""
        self.driver.ending = True
        stderr = await self._stderr()
        pending = self.head.sandbox_key is not None
        outcome = await self._submit_finish(ending, exit=exit, stderr=stderr, destroy_pending=pending)
        if isinstance(outcome, MustAbort):
            return await self._abort()
        if isinstance(outcome, Finished) and pending:
            await self._destroy_after_finish()
        return self._end(outcome, ending)

    async def _abort(self) -> DriveEnd:
        """A cancel is recorded: destroy, then finish (P4, P21). The store told us so under our epoch."""
        self.driver.ending = True
        stderr = b""
        code = None
        try:
            async with asyncio.timeout(CANCEL_UNREACHABLE_S):
                stderr = await self._stderr()
                await self._ticking(self._reaching(self._destroy))
        except (TimeoutError, SandboxUnreachable):
            code = "sandbox_unreachable"
        ending = aborted(await self._cancel_reason(), code)
        creating = (
            self.preparer is not None and self.preparer.creating is not None and not self.preparer.creating.done()
        )
        # A lost driver of ours may still be inside its `create`: then somebody looks again later (P21).
        pending = creating or code is not None or self.claimed.head.launch is Launch.KEYED
        outcome = await self._submit_finish(ending, stderr=stderr, destroy_pending=pending)
        if isinstance(outcome, Finished) and creating:
            await self._destroy_after_finish()
        return self._end(outcome, ending)

    async def _cancel_reason(self) -> CancelReason | None:
        if self.head.cancel_reason is None:
            stored = await repeat(lambda: self.tools.log.record(self.run_id))
            return stored[0].cancel_reason if stored is not None else None
        return self.head.cancel_reason

    async def _submit_finish(
        self, ending: Ending, *, exit: AgentExit | None = None, stderr: bytes, destroy_pending: bool
    ) -> Outcome:
        """Store what was translated, as far as it still can be; then the finish, at the place after it."""
        await self._quietly(self.appender.seal())
        finish = build_finish(
            self.head,
            self.authority.epoch,
            self.appender.progress.next_seq,
            ending,
            self.open_items,
            exit=exit,
            stderr=stderr,
            destroy_pending=destroy_pending,
        )
        return await self.authority.submit(finish)

    def _end(self, outcome: Outcome, ending: Ending) -> DriveEnd:
        if isinstance(outcome, Finished):
            unqueued = outcome.unqueued.run_id if outcome.unqueued else None
            return DriveEnd("finished", ending.status, unqueued)
        log.error("run %s: the finish was refused: %s", self.run_id, outcome)
        return DriveEnd("superseded")

    async def _destroy(self) -> None:
        """Destroy by key: a sandbox may exist although nobody told us (its `create` had no answer)."""
        if self.provider is not None and self.head.sandbox_key is not None:
            await self.authority.permit()
            await self.provider.destroy(self.head.sandbox_key)

    async def _destroy_after_finish(self) -> None:
        """Give the sandbox back; one that is still being made is waited for, since its `create` goes on (P21)."""
        try:
            if self.preparer is not None and self.preparer.creating is not None:
                await self._ticking(asyncio.wait((self.preparer.creating,), timeout=CREATE_DEADLINE_S))
            await self._ticking(self._destroy())
            await self.authority.submit(Note(run_id=self.run_id, epoch=self.authority.epoch, destroy_pending=False))
        except AgentError as error:
            log.warning("run %s: its sandbox could not be destroyed now: %s", self.run_id, error)

    async def _quietly(self, storing: Coroutine[Any, Any, None]) -> None:
        """Await `storing`; what does not fit into the log any more is no reason not to end the run."""
        try:
            await self._ticking(storing)
        except OwnershipLost:
            raise
        except OutlastError as error:
            log.debug("run %s: %s", self.run_id, error)

    async def _reaching(self, call: Callable[[], Awaitable[T]]) -> T:
        return await reaching(call, self.tools.clock, self.tools.sandbox_return_s)

    # --- life signs ---

    def _count(self) -> None:
        self.authority.tick += 1

    async def _ticking(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await `work` and count ticks meanwhile: waiting for an answer is not a hang."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=1.0)
                self._count()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _renew(self) -> None:
        """Renew the lease three times per TTL; note progress once (P13, P19)."""
        period_s = self.tools.lease_ttl_s / 3
        begun = self.tools.clock.monotonic()
        noted = self.head.attempts_without_progress == 0
        try:
            while True:
                await self.authority.pulse()
                await asyncio.sleep(period_s)
                followed_s = self.tools.clock.monotonic() - begun
                if not noted and self.aligner.done and followed_s > PROGRESS_AFTER_S:
                    noted = True
                    await self.authority.submit(Note(run_id=self.run_id, epoch=self.authority.epoch, progressed=True))
        except OutlastError as error:
            self.authority.orders.lose(error)
