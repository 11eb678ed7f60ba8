"""A shell agent that stops in the middle until the test lets it go on: so that what a test does to a stream happens
while the agent works, however slow the machine is."""

from __future__ import annotations

import shlex
from pathlib import Path


class Gate:
    """Shell text that prints the numbers after `since` to `before`, waits, and prints those to `total`. Several may
    follow one another in one agent, each with its `name`."""

    def __init__(self, folder: Path, before: int, total: int, since: int = 0, name: str = "gate") -> None:
        self._file = folder / name
        self.since = since
        self.before = before
        self.total = total

    @property
    def script(self) -> str:
        """Return what the agent runs."""
        first, second = f"seq {self.since + 1} {self.before}", f"seq {self.before + 1} {self.total}"
        return f"{first}; while [ ! -e {shlex.quote(str(self._file))} ]; do sleep 0.02; done; {second}"

    @property
    def first_text(self) -> str:
        """Return what it prints before it stops."""
        return "".join(f"{number}\n" for number in range(self.since + 1, self.before + 1))

    @property
    def text(self) -> str:
        """Return all that it prints."""
        return "".join(f"{number}\n" for number in range(self.since + 1, self.total + 1))

    def open(self) -> None:
        """Let the agent go on."""
        self._file.touch()
