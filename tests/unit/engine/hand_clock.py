"""A clock that a test moves by hand."""

from __future__ import annotations


class HandClock:
    """Both clocks; `now` in seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)
