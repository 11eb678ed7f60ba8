"""A run's driver: claim, make or find the sandbox, follow its journal, append, finish. Chunk path 1/6.

Before: `sandboxes/follow.py` yields the journal's bytes. After: `engine/appending.py` batches the chunks.

One `drive` is one epoch's whole life, and it is the same for a first driver and for every successor: read the stored
log of the claim, replay the journal, and let alignment keep what is not stored yet (P24); all that from the last
checkpoint on if it can be trusted, else from the start (P25). Wherever it stops, the next one can go on; wherever it is
paused, its next write is refused (I1).

Three things interrupt it: losing the epoch (stop, touch nothing), a recorded cancel (destroy, then finish as
aborted), and a handover (stop; the successor is being made). A finish that is under way is not interrupted: the
store decides which of finish and cancel came first.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from runtime.core import chunk
from runtime.core.align import BandAligner
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.ops import Claimed, ClaimRun, Note, Outcome
from runtime.core.record import Claimant, ClaimReason, Head, Launch, RunSpec
from runtime.core.workspace import read_file_events
from runtime.engine.appending import Appender, Progress
from runtime.engine.authority import Authority, repeat
from runtime.engine.checkpointing import Marker
from runtime.engine.claimed_log import ClaimedLog
from runtime.engine.concluding import Conclusion, DriveEnd
from runtime.engine.file_events import FileEvents
from runtime.engine.finishing import failed, failed_by
from runtime.engine.following import Follower, Limits
from runtime.engine.host_calls import serving
from runtime.engine.plugins import pick, translator_of
from runtime.engine.preparing import Preparer, reaching
from runtime.engine.resuming import Start, find_start
from runtime.engine.tools import Tools
from runtime.errors import AgentError, LogClosedError, OutlastError, OwnershipLost, RunNotFound
from runtime.ports import Ending, Resumable, Sandbox, Translator, WatchesFiles

log = logging.getLogger("outlast.driver")

T = TypeVar("T")

PROGRESS_AFTER_S = 30.0  # P19: aligned, and then followed for this long
TOLD_PER_IDLE = 8  # so often per idle limit, at most, is told that an agent was heard of whom no chunk tells


class Driver:
    """Drives one run once."""

    def __init__(self, run_id: str, tools: Tools, claimant: Claimant) -> None:
        self.run_id = run_id
        self.epoch = 0
        self._conclusion: Conclusion | None = None
        self._tools = tools
        self._claimant = claimant
        self._drive: _Drive | None = None

    @property
    def ending(self) -> bool:
        """Return whether a cancel or the finish is under way: the cancel's receipt (P21)."""
        return self._conclusion is not None and self._conclusion.begun

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
        self._drive = _Drive(outcome, self._tools, asked)
        self._conclusion = self._drive.conclusion
        try:
            return await self._drive.run()
        except (OwnershipLost, RunNotFound) as error:  # the store may have lost the whole run (P10)
            log.info("run %s: epoch %d stops: %s", self.run_id, self.epoch, error)
            return DriveEnd("superseded")
        finally:
            self._drive = None


class _Drive:
    """One epoch: state that begins with the claim and ends with it."""

    def __init__(self, claimed: Claimed, tools: Tools, asked: float) -> None:
        self.tools = tools
        self.claimed_at = (claimed.head.claims[-1].claimed_at, tools.clock.monotonic())  # of the shard, and here
        self.run_id = claimed.head.run_id
        self.spec: RunSpec = claimed.spec
        self.harness = pick(tools.harnesses, self.spec.harness)
        self.provider = pick(tools.providers, self.spec.provider)
        self.authority = Authority(tools.log, claimed.head, tools.clock, tools.lease_ttl_s, asked)
        self.log = ClaimedLog(tools.log, claimed)
        self.progress = Progress(next_seq=claimed.head.next_seq, keys=self.log.keys)
        self.appender = Appender(self.authority, self.progress, self.log.open_items, self.spec.limits.max_log_bytes)
        self.aligner = BandAligner([])
        self.follower: Follower | None = None
        self.conclusion = Conclusion(
            tools,
            claimed.head,
            self.authority,
            self.appender,
            self.log.open_items,
            self.provider,
            self.spec.keep_alive_s,
        )

    @property
    def head(self) -> Head:
        """Return the record as the newest answer told it."""
        return self.authority.head

    async def run(self) -> DriveEnd:
        """Drive to an end; the renewal and the appender live exactly as long."""
        helpers = [asyncio.create_task(self._renew()), asyncio.create_task(self.appender.run())]
        try:
            await self.log.read(self.authority.count)
            self.aligner = BandAligner(self.log.journal)
            return await self._run()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            self.appender.close(LogClosedError(self.run_id))

    async def _run(self) -> DriveEnd:
        orders = self.authority.orders
        if self.head.cancel_requested:
            return await self.conclusion.abort()
        ending, exit = await self._until_ordered(self._work())
        orders.raise_if_lost()
        if ending is None and orders.cancel:
            return await self.conclusion.abort()
        if ending is not None:
            return await self.conclusion.finish(ending, exit)
        return await self.conclusion.hand_over()

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
            return self._with_rest(failed_by(error)), None
        except OutlastError:
            if self.appender.full:
                limit = self.spec.limits.max_log_bytes
                return failed("log_limit", f"The run's log reached its bound of {limit} bytes."), None
            raise

    async def _follow_agent(self) -> tuple[Ending, AgentExit | None]:
        if self.harness is None or self.provider is None:
            what = f"harness {self.spec.harness!r}" if self.harness is None else f"provider {self.spec.provider!r}"
            return failed("launch_failed", f"This instance has no {what}. Check OUTLAST_HARNESSES and PROVIDERS."), None
        harness = self.harness
        fresh = partial(translator_of, harness, self.run_id, self.spec)
        fresh()  # before anything is launched that it must read
        preparer = Preparer(self.tools, self.authority, self.spec, harness, self.provider, self.appender.put_live)
        self.conclusion.preparer = preparer
        sandbox = await self._prepared(preparer)
        if sandbox is None:
            return self._limits().run_reached(), None
        self.conclusion.sandbox = sandbox
        start = await self._start(sandbox, fresh)
        follower = self.follower = Follower(
            sandbox, start, self.aligner, self.appender, self.authority.count, self._limits(), self._marker(start)
        )
        lent = serving(self.tools.lent, self.spec.input, self.head, self.authority, self.appender, sandbox)
        async with lent:
            stopped_by = await self._beside_files(sandbox, follower.follow())
        if stopped_by is not None:
            return self._with_rest(stopped_by), None
        exit = await self._exit(sandbox, follower.no_exit)
        stderr = await self.conclusion.stderr()
        if self.aligner.remaining:
            return self._shorter(exit, follower.cut)
        await self.authority.ticking(self.appender.drain())
        rest = follower.rest()
        ending = start.translator.finish(exit, stderr)
        return replace(ending, chunks=(*rest, *ending.chunks)), exit

    async def _beside_files(self, sandbox: Sandbox, following: Coroutine[Any, Any, T]) -> T:
        """Await what follows the agent, and tell meanwhile what that does to its files, if the run or a setting says
        so and the sandbox can."""
        asked = read_file_events(self.spec.input) or self.tools.file_events
        if asked == "off" or not isinstance(sandbox, WatchesFiles):
            return await following
        events = FileEvents(
            self.run_id,
            sandbox,
            self.tools.clock,
            self.appender.put_live,
            lambda: self.log.open_items.run_started,
            lambda: self.head.log_bytes,
            max_log_bytes=self.spec.limits.max_log_bytes,
            diffs=asked == "diff",
        )
        followed = await events.beside(following)
        self.conclusion.last = await events.whole()
        return followed

    async def _prepared(self, preparer: Preparer) -> Sandbox | None:
        """Return the sandbox with its agent launched; None if the run's limit came first. Where an agent may have
        printed already, that is read before the limit is looked at."""
        bound = asyncio.timeout(None if self.head.launch is Launch.INTENDED else self._limits().run_s)
        try:
            async with bound:
                sandbox: Sandbox = await self.authority.ticking(preparer.ready())
        except TimeoutError:
            if not bound.expired():
                raise
            return None
        return sandbox

    def _with_rest(self, ending: Ending) -> Ending:
        """Return the ending of a run that is ended by force, with what its agent was in the middle of saying."""
        return ending if self.follower is None else replace(ending, chunks=(*self.follower.rest(), *ending.chunks))

    async def _start(self, sandbox: Sandbox, fresh: Callable[[], Translator]) -> Start:
        """Return where to begin; at byte 0 the replay is to meet everything that is stored."""
        finding = self._reaching(lambda: find_start(self.log.checkpoint, sandbox, self.spec, fresh))
        start: Start = await self.authority.ticking(finding)
        if start.position == 0 and self.log.checkpoint is not None:
            self.aligner = BandAligner(await self.log.whole_journal(self.authority.count))
        return start

    def _marker(self, start: Start) -> Marker | None:
        """Return what takes this drive's checkpoints; None if its translator cannot be put aside."""
        if start.journal_id is None or not isinstance(start.translator, Resumable):
            return None
        return Marker(
            self.tools.pace,
            start.translator,
            start.journal_id,
            self.spec.harness,
            self.spec.translator_version,
            position=start.position,
            journal_chunks=start.journal_chunks,
            before=start.before,
        )

    def _limits(self) -> Limits:
        started_ms = self.head.started_at or self.tools.clock.wall_ms()
        elapsed_s = max(0, self.tools.clock.wall_ms() - started_ms) / 1000
        limits = self.spec.limits
        return Limits(
            clock=self.tools.clock,
            run_s=limits.run_limit_s - elapsed_s if limits.run_limit_s else None,
            run_limit_s=limits.run_limit_s,
            idle_s=limits.idle_limit_s or None,
            silent_s=self._silent_s(),
            heard_to=self.head.heard_to,
            unreachable_s=self.tools.sandbox_return_s,
            max_line_bytes=limits.max_line_bytes,
        )

    def _silent_s(self) -> float:
        """Return for how long the agent has been silent, as the record knows it: by the shard's clock up to the claim,
        by ours from its answer on. The clocks of two hosts are never compared."""
        if self.head.heard_at is None:
            return 0.0
        at_shard, here = self.claimed_at
        return max(0.0, (at_shard - self.head.heard_at) / 1000 + self.tools.clock.monotonic() - here)

    async def _exit(self, sandbox: Sandbox, no_exit: bool) -> AgentExit:
        if no_exit:
            return AgentExit(kind=ExitKind.NO_EXIT, journal_length=0)
        exit = await self._reaching(sandbox.exit)
        return exit or AgentExit(kind=ExitKind.LOST, journal_length=0)

    def _shorter(self, exit: AgentExit, cut: AgentError | None) -> tuple[Ending, AgentExit | None]:
        """The journal ended before the stored log did: lost with its host, or not the same journal (P24)."""
        if exit.kind is ExitKind.LOST:
            return failed("agent_lost", "The agent's host lost the end of its journal; the agent is gone."), exit
        if cut is not None:
            return failed_by(cut), exit
        left = self.aligner.remaining
        return failed("journal_diverged", f"The journal's replay ended {left} chunks before the stored log."), exit

    async def _reaching(self, call: Callable[[], Awaitable[T]]) -> T:
        return await reaching(call, self.tools.clock, self.tools.sandbox_return_s)

    # --- life signs ---

    async def _renew(self) -> None:
        """Renew the lease three times per TTL; note progress once (P13, P19), and what no chunk tells of the agent."""
        period_s = self.tools.lease_ttl_s / 3
        begun = self.tools.clock.monotonic()
        noted = self.head.claims_without_progress == 0
        told_s = -math.inf
        try:
            while True:
                await self.authority.pulse()
                await asyncio.sleep(period_s)
                followed_s = self.tools.clock.monotonic() - begun
                if not noted and self.aligner.done and followed_s > PROGRESS_AFTER_S:
                    noted = True
                    await self.authority.submit(Note(run_id=self.run_id, epoch=self.authority.epoch, progressed=True))
                if followed_s - told_s > self.spec.limits.idle_limit_s / TOLD_PER_IDLE and await self._tell_heard():
                    told_s = followed_s
        except OutlastError as error:
            self.authority.orders.lose(error)

    async def _tell_heard(self) -> bool:
        """Have the record know of bytes that made no chunk, for whoever drives next; return whether it had to be told.

        Bytes that it does not know are a new sign of the agent to a successor: told late, silence counts from later."""
        to = self.follower.untold_to if self.follower is not None and self.spec.limits.idle_limit_s else 0
        if to <= self.head.heard_to:
            return False
        await self.authority.submit(Note(run_id=self.run_id, epoch=self.authority.epoch, heard_to=to))
        return True
