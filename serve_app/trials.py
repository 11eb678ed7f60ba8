"""How long the command line tries again, and what it tries again at all.

What an attempt can meet, and what follows:

    Refusal             the instance said no, in its own shape (`error_table.py`): final
    Lost                no answer, a cut answer, 5xx, or an answer that is not an instance's: again, for a while
    InstanceNotFound    it stayed lost
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.errors import InstanceNotFound


class Refusal(Exception):
    """The instance said no. `code` and `message` are its words."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Lost(Exception):
    """One attempt failed, and another may not. `sent`: the instance may have got the request. `refusal`: what to
    raise if it stays so."""

    def __init__(
        self, why: str, *, sent: bool = False, refusal: Refusal | None = None, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        self.refusal = refusal
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long is waited for what. Seconds."""

    first_s: float = 20.0  # for the first answer, if there is a sign of life: a start takes 10 to 15 s
    lost_s: float = 60.0  # for the next answer after a first one: a stop within 30 s, then a start
    pause_s: float = 0.1  # between two attempts; doubles up to the next
    longest_pause_s: float = 2.0
    silence_s: float = 45.0  # of an open stream, until it is taken for dead: four heartbeats of the default


class Trial:
    """The attempts of one request, and when to give up."""

    def __init__(self, patience: Patience, begun: bool, lives: Callable[[], bool]) -> None:
        self._patience = patience
        self._begun = begun
        self._reached = False
        self._lives = lives
        self._since: float | None = None
        self._pause_s = patience.pause_s

    def begin(self) -> None:
        """Note that the instance took the request."""
        self._begun = True

    def hear(self) -> None:
        """Note a sign of life in the answer: the next failure is the first one again."""
        self._since = None

    def move(self) -> None:
        """Note that the answer brought something new: the next pause is short again."""
        self._pause_s = self._patience.pause_s

    def wait(self, lost: Lost, notice: Callable[[str], None] = lambda _: None) -> None:
        """Pause before the next attempt; `notice` hears of the first one. Raises the refusal in `lost`, or
        InstanceNotFound, when patience is at an end."""
        now = time.monotonic()
        failed_before = self._since is not None
        self._since = self._since if self._since is not None else now
        self._reached = self._reached or lost.sent
        pause_s = max(self._pause_s, lost.retry_after_s)
        if now + pause_s > self._since + self._bound_s():
            raise lost.refusal or InstanceNotFound(lost.why)
        if not failed_before:
            notice(f"{lost.why} Trying again.")
        time.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, self._patience.longest_pause_s)

    def _bound_s(self) -> float:
        if self._begun:
            return self._patience.lost_s
        return self._patience.first_s if self._reached or self._lives() else 0.0
