"""What becomes of the files of one `local` workspace, looked at in a thread; nothing where that cannot be said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from runtime.ports import FileChange, WholeDiff
from runtime.sandboxes.baseline import TooMuch
from runtime.sandboxes.file_watch import FileWatch

T = TypeVar("T")


class LocalFiles:
    """One driver's. `baseline`: where that of the run is; None if none was taken."""

    def __init__(self, workspace: str, baseline: str | None) -> None:
        self._workspace = workspace
        self._baseline = baseline
        self._watch: FileWatch | None = None

    async def changes(self, *, diffs: bool, settled: bool) -> list[FileChange]:
        """See `runtime.ports.WatchesFiles`."""
        looked = await self._asked(lambda watch: watch.look(settled=settled), diffs=diffs)
        return [FileChange(**facts) for facts in looked or ()]

    async def whole_diff(self, max_bytes: int, within_s: float) -> WholeDiff | None:
        """See `runtime.ports.TellsDiff`."""
        facts = await self._asked(lambda watch: watch.whole(max_bytes, within_s), diffs=True)
        return None if facts is None else WholeDiff(**facts)

    async def _asked(self, look: Callable[[FileWatch], T], *, diffs: bool) -> T | None:
        if self._baseline is None:
            return None
        if self._watch is None:
            self._watch = FileWatch(self._workspace, self._baseline, diffs=diffs)
        try:
            return await asyncio.to_thread(look, self._watch)
        except (OSError, TooMuch):
            return None
