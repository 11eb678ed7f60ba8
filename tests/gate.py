"""A shell agent that stops in the middle until the test lets it go on: so that what a test does to a stream happens
while the agent works, however slow the machine is."""

from __future__ import annotations

import shlex
from pathlib import Path


class Gate:
    """Shell text that prints the numbers 1 to `before`, waits, and prints those to `total`."""

    def __init__(self, folder: Path, before: int, total: int) -> None:
        self._file = folder / "gate"
        self.before = before
        self.total = total

    @property
    def script(self) -> str:
        """Return what the agent runs."""
        first, second = f"seq 1 {self.before}", f"seq {self.before + 1} {self.total}"
        return f"{first}; while [ ! -e {shlex.quote(str(self._file))} ]; do sleep 0.02; done; {second}"

    @property
    def first_text(self) -> str:
        """Return what it prints before it stops."""
        return "".join(f"{number}\n" for number in range(1, self.before + 1))

    @property
    def text(self) -> str:
        """Return all that it prints."""
        return "".join(f"{number}\n" for number in range(1, self.total + 1))

    def open(self) -> None:
        """Let the agent go on."""
        self._file.touch()
