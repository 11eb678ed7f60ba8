"""One viewer's place in one log: hands out the bytes to send, each position once and in order (I3).

Where the bytes come from, in this order:

    the channel's ring        everything the shared read brought since this viewer's position
    a read of its own         while the ring does not reach back to it: joined from far back, or a slow client
    a heartbeat               after OUTLAST_HEARTBEAT_S without anything else

A viewer of the class that is strict about AG-UI is shown nothing before RUN_STARTED except RUN_ERROR (P26). It starts
at the log's beginning whatever its offset, to learn where that is: the offsets it is given stay those of the log, and
what is hidden from it is hidden always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from serve_app.frames import Format, Piece
from serve_app.log_reader import LogGone, Stretch
from serve_app.shared_read import Channels

# A read of one's own that brings less has come so near to the tail that the shared read may begin behind it.
NEAR_BYTES = 256 << 10
# A stream with nothing to say yet says so early: proxies and browsers show a response as open at its first byte.
FIRST_BEAT_S = 0.05

Spawn = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]


class Subscription:
    """A viewer of the run's log past `position`, until `close`. `spawn` runs a task that ends with its response."""

    def __init__(
        self,
        channels: Channels,
        run_id: str,
        format: Format,
        *,
        position: int,
        generation: int | None,
        strict: bool,
        beat_s: float,
        spawn: Spawn,
    ) -> None:
        self._channels = channels
        self._run_id = run_id
        self._format = format
        self._spawn = spawn
        self._show_from = position
        self._generation = generation  # None: of whatever it is at the first look
        self._hiding = strict
        self._position = 0 if strict else position
        self._end: int | None = None  # the log's end, if a read of our own has found it
        self._own: asyncio.Task[Stretch | Exception] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._heart = Heart(beat_s, self.wake)
        self._channel = channels.join(run_id, self, generation)

    def close(self) -> None:
        """Leave the channel, and end what was begun for this viewer alone."""
        self._heart.stop()
        if self._own is not None:
            self._own.cancel()
        self._channels.leave(self._run_id, self, self._channel)

    def know(self, piece: Piece) -> None:
        """Take the log's first piece from whoever has just stored it: one read less before the first byte."""
        self._channel.start(piece.end, piece)

    def wake(self) -> None:
        """Look again: pieces came, the log ended, a read of our own was answered, or a heartbeat is due."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> bytes | None:
        """Return the bytes to send next, as soon as there are any; None once everything up to the end of a closed
        log was returned. Raises LogGone."""
        while True:
            self._same_log()
            pieces = self._channel.since(self._position)
            if pieces is None:
                pieces = self._catch_up()
            if pieces:
                frames = self._render(pieces)
                if frames:
                    self._heart.sent()
                    return frames
                continue
            if self._channel.gone:
                raise LogGone("the shared read has ended")
            if self._position in (self._channel.closed_at, self._end):
                return None
            if self._heart.due:
                self._heart.sent()
                return self._format.heartbeat
            await self._pause()

    def _same_log(self) -> None:
        """Raise LogGone if this viewer's position is of another generation than what is read (P10)."""
        read = self._channel.reader.generation
        if self._generation is None:
            self._generation = read
        elif read is not None and read != self._generation:
            raise LogGone(f"run {self._run_id} is of generation {read} and was of {self._generation}")

    async def _pause(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # --- reading for itself ---

    def _catch_up(self) -> list[Piece]:
        """Return what a read of our own brought; [] while it is under way, or there is nothing to read."""
        if self._position == self._end:
            return []
        if self._own is None:
            self._own = self._spawn(self._read_own(self._position))
            self._own.add_done_callback(lambda _: self.wake())
        if not self._own.done():
            return []
        stretch = self._own.result()
        self._own = None
        if isinstance(stretch, Exception):
            raise stretch
        if stretch.closed:
            self._end = stretch.next
        elif stretch.size < NEAR_BYTES:
            self._channel.start(stretch.next)
        return stretch.pieces

    async def _read_own(self, position: int) -> Stretch | Exception:
        try:
            return await self._channel.reader.read(position, 0)
        except Exception as error:  # noqa: BLE001 - raised again where the viewer is, not in a task beside it
            return error

    # --- rendering ---

    def _render(self, pieces: list[Piece]) -> bytes:
        frames: list[bytes] = []
        for piece in pieces:
            if piece.end <= self._position:
                continue
            if piece.start > self._position:
                raise ValueError(f"a gap: [{piece.start}, {piece.end}) follows {self._position}")
            shown_from = self._shown_from(piece)
            if shown_from < piece.end:
                frames.append(piece.frames_from(shown_from, self._format))
            self._position = piece.end
        if not self._hiding and self._position < self._show_from:
            self._position = self._show_from
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _shown_from(self, piece: Piece) -> int:
        """Return the first position of `piece` that this viewer is shown; its end if there is none."""
        if self._hiding:
            opening = piece.opening()
            if opening is None:
                return piece.end
            self._hiding = False
            return max(opening, self._show_from)
        return max(self._position, self._show_from)


class Heart:
    """Tells when a heartbeat is due. Costs nothing per chunk: the timer looks at the time of the last byte when it
    fires, and is not moved before."""

    def __init__(self, beat_s: float, wake: Callable[[], None]) -> None:
        self.due = False
        self._beat_s = beat_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time() - beat_s + min(FIRST_BEAT_S, beat_s)
        self._timer = self._loop.call_at(self._sent_at + beat_s, self._fire)

    def sent(self) -> None:
        """Something was sent just now."""
        self.due = False
        self._sent_at = self._loop.time()

    def stop(self) -> None:
        """Never fire again."""
        self._timer.cancel()

    def _fire(self) -> None:
        now = self._loop.time()
        silent_s = now - self._sent_at
        if silent_s >= self._beat_s:
            self.due = True
            self._wake()
            silent_s = 0
        self._timer = self._loop.call_at(now + self._beat_s - silent_s, self._fire)
