"""Hooks as tests declare them. What they are called with they write into the file that FILE names."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from runtime.hooks import Hooks, RunFacts

FILE = "TEST_HOOKS_FILE"
SETTING = "hook_classes:Noting,hook_classes:Raising,hook_classes:Hanging"


def noted(path: Path, run_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Return what was noted of a run: which hooks, and their facts."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [(name, facts) for name, facts in found if facts["run_id"] == run_id]


class Noting(Hooks):
    """Notes every call, half of them as an async hook."""

    def _note(self, name: str, run: RunFacts, **more: Any) -> None:
        facts = {name: getattr(run, name) for name in run.__struct_fields__} | more
        with Path(os.environ[FILE]).open("a") as file:
            file.write(json.dumps([name, facts]) + "\n")

    def start(self, run: RunFacts) -> None:
        self._note("start", run)

    async def attach(self, run: RunFacts) -> None:
        self._note("attach", run)

    async def detach(self, run: RunFacts) -> None:
        self._note("detach", run)

    def chunk(self, run: RunFacts, offset: str, event: dict[str, Any]) -> None:
        self._note("chunk", run, offset=offset, event=event)

    async def finish(self, run: RunFacts) -> None:
        self._note("finish", run)

    def error(self, run: RunFacts) -> None:
        self._note("error", run)

    def cancel(self, run: RunFacts) -> None:
        self._note("cancel", run)


class Raising(Hooks):
    """Fails."""

    def start(self, run: RunFacts) -> None:
        raise SystemExit(run.run_id)

    async def finish(self, run: RunFacts) -> None:
        raise LookupError(run.run_id)


class Hanging(Hooks):
    """Never comes back from `start`."""

    def start(self, run: RunFacts) -> None:
        del run
        threading.Event().wait()


class Broken(Hooks):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ValueError("no password")

    def start(self, run: RunFacts) -> None:
        """Never called."""


class Empty(Hooks):
    """Overrides nothing."""


AN_INSTANCE = Noting()
