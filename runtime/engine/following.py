"""From journal bytes to chunks in the appender's hands: frame, translate, align, and mark where to go on (P25).

Each piece of the journal becomes lines, each line chunks, and alignment keeps those that the log does not hold yet.
Nothing here decides how a run ends, except by the bounds that were chosen in advance for it (I6): its run limit, its
idle limit, and the grace after a result that no exit follows.

Silence is the agent's, not a driver's: it counts from the last bytes of the agent that any driver read, or from its
launch. Bytes of which a chunk is stored are known by it; of those that made none the record tells up to where they were
read (`heard_to`). What a replay finds again is no sign of the agent, and what it finds for the first time is one. So a
run whose drivers keep dying ends as well: by the first one that listens for LISTEN_S (P19 ends it if none does).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from runtime.core import chunk
from runtime.core.align import BandAligner
from runtime.core.framing import Framed, Framer
from runtime.engine.appending import Appender
from runtime.engine.checkpointing import Mark, Marker
from runtime.engine.finishing import failed
from runtime.engine.resuming import Start
from runtime.errors import JournalReplayDivergedError, SandboxUnreachable
from runtime.ports import Clock, Ending, Sandbox

# An agent that said its result should exit; one CLI stays 5 s after it when offline.
RESULT_GRACE_S = 15.0
LOOK_S = 1.0  # how often the bounds are looked at while nothing comes
LISTEN_S = 30.0  # before silence that began with an earlier driver ends a run: its agent may have printed since
MAX_REST_BYTES = 1 << 20  # of an unfinished line that goes into the finish; a longer one is only told


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of this follow, in seconds from its start; None means none."""

    clock: Clock
    run_s: float | None
    run_limit_s: int
    idle_s: float | None
    unreachable_s: float
    max_line_bytes: int
    silent_s: float = 0.0  # for how long the agent has been silent at the start, as the record knows it
    heard_to: int = 0  # up to where the record knows of bytes that made no chunk

    def run_reached(self) -> Ending:
        """Return the ending of a run that reached its limit."""
        return failed("run_limit", f"The run reached its limit of {self.run_limit_s} s (runLimitS).")


class Follower:
    """Follows one journal from where it is told to start to its end. Without a marker no checkpoints are taken."""

    def __init__(
        self,
        sandbox: Sandbox,
        start: Start,
        aligner: BandAligner,
        appender: Appender,
        count: Callable[[], None],
        limits: Limits,
        marker: Marker | None = None,
    ) -> None:
        self.no_exit = False
        self.cut: JournalReplayDivergedError | None = None  # the partial last line is not what the log holds there
        self._sandbox = sandbox
        self._translator = start.translator
        self._made = start.journal_chunks  # by the journal so far
        self._marker = marker
        self._aligner = aligner
        self._appender = appender
        self._count = count
        self._limits = limits
        self._framer = Framer(start.position, limits.max_line_bytes)
        self._begun = limits.clock.monotonic()
        self._heard = self._begun - limits.silent_s
        self._read_to = max(start.position, limits.heard_to)  # nothing before it is a sign of the agent any more
        self._chunks_to = start.position  # the end of the last line that made a chunk
        self._caught_up = False  # a moment came in which the journal had nothing more
        self._result_at: float | None = None

    @property
    def untold_to(self) -> int:
        """Return up to where bytes were read of which no chunk tells; 0 if all that were read are told of by chunks."""
        return self._read_to if self._read_to > self._chunks_to else 0

    async def follow(self) -> Ending | None:
        """Feed the whole journal. Return None at its end, or the ending that a bound demands.

        Sets `no_exit` if the result came and the exit did not; sets `cut` if the journal ends within a line that the
        log holds whole, as it does after a crash of its host (P24). Raises JournalReplayDivergedError and what the
        sandbox or the appender raises."""
        stop = await self._follow_to_the_end()
        if stop is None and not self.no_exit:
            try:
                self._feed(self._framer.finish())
            except JournalReplayDivergedError as error:
                self.cut = error
        return stop

    def rest(self) -> list[bytes]:
        """Return what the line makes that the agent was in the middle of when its run was ended by force: once, for the
        finish.

        Not for the log before: the agent may still write, so a successor could find the line whole. Nothing if the log
        may hold it whole already."""
        torn = self._framer.finish()
        if not torn.lines or not self._aligner.done:
            return []
        (line,), (end,) = torn.lines, torn.ends
        if end in torn.skipped:
            return [chunk.line_skipped(*torn.skipped[end])]
        if len(line) > MAX_REST_BYTES:
            return [chunk.line_skipped(end - len(line), len(line))]
        return self._translator.feed(line, torn=True)

    async def _follow_to_the_end(self) -> Ending | None:
        """Read on where we are whenever the host answers again: unreachable is not gone (P17)."""
        clock = self._limits.clock
        reached = clock.monotonic()
        while True:
            begun = clock.monotonic()
            try:
                return await self._follow_from(self._framer.position)
            except SandboxUnreachable:
                now = clock.monotonic()
                reached = now if now - begun > LOOK_S else max(reached, self._heard)
                if now - reached >= self._limits.unreachable_s:
                    raise
            await asyncio.sleep(LOOK_S)
            self._count()

    async def _follow_from(self, position: int) -> Ending | None:
        pieces = self._sandbox.follow(position)
        try:
            while True:
                piece, stop = await self._next(pieces)
                if piece is None:
                    return stop
                if self._marker is not None:
                    self._marker.read(piece)
                self._listen(made_new=self._feed(self._framer.feed(piece)))
                await self._room()
                if (stop := self._bound_reached()) is not None:
                    return stop
        finally:
            await pieces.aclose()

    def _listen(self, *, made_new: bool) -> None:
        """Note a sign of the agent, if what was just read is one: nobody has read it before."""
        position = self._framer.position
        if made_new or (self._aligner.done and position > max(self._read_to, self._chunks_to)):
            self._heard = self._limits.clock.monotonic()
            self._read_to = position

    async def _room(self) -> None:
        """Wait until the appender takes more; a store that stalls is not a driver that hangs (P13)."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    return await self._appender.room()
            except TimeoutError:
                self._count()

    async def _next(self, pieces: AsyncGenerator[bytes, None]) -> tuple[bytes | None, Ending | None]:
        """Return the next piece (None: the end), or the ending of a bound that was reached meanwhile.

        Raises what ended the appender: a silent agent must not hide it."""
        task = asyncio.ensure_future(anext(pieces, None))
        try:
            while True:
                await asyncio.wait((task,), timeout=LOOK_S)
                self._count()
                if task.done():
                    return task.result(), None
                self._caught_up = True
                self._appender.raise_if_ended()
                stop = self._bound_reached()
                if stop is not None or self.no_exit:
                    return None, stop
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _bound_reached(self) -> Ending | None:
        now = self._limits.clock.monotonic()
        limits = self._limits
        if limits.run_s is not None and now - self._begun >= limits.run_s:
            return limits.run_reached()
        if limits.idle_s is not None and self._silent_for(now, limits.idle_s):
            return failed("agent_idle", f"The agent printed nothing for {limits.idle_s:.0f} s.")
        if self._translator.has_result:
            self._result_at = now if self._result_at is None else self._result_at
            self.no_exit = now - max(self._result_at, self._heard) >= RESULT_GRACE_S
        return None

    def _silent_for(self, now: float, idle_s: float) -> bool:
        listened = self._caught_up and now - self._begun >= min(idle_s, LISTEN_S)
        return listened and now - self._heard >= idle_s

    def _feed(self, framed: Framed) -> bool:
        """Translate whole lines and hand over what the log does not hold yet; return whether there was any."""
        feed, skipped, torn = self._translator.feed, framed.skipped, framed.torn
        chunks: list[bytes] = []
        ends: list[int] = []
        for line, end in zip(framed.lines, framed.ends, strict=True):
            made = feed(line, torn) if line or end not in skipped else [chunk.line_skipped(*skipped[end])]
            for data in made:
                chunks.append(data)
                ends.append(end)
        self._made += len(chunks)
        self._chunks_to = ends[-1] if ends else self._chunks_to
        new = self._aligner.feed(chunks)
        self._appender.put_journal(new, ends[len(ends) - len(new) :], self._mark() if new and not torn else None)
        return bool(new)

    def _mark(self) -> Mark | None:
        return self._marker.mark(self._framer.line_start, self._made) if self._marker is not None else None
