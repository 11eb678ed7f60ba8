"""Results of runs of the `local` provider: read where their workspaces are, on the host that a key names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from runtime.core.names import folder_name
from runtime.core.result import ResultAsk, WorkspaceGone, WorkspaceTooLarge
from runtime.sandboxes.baseline import Gone, TooMuch
from runtime.sandboxes.results import read


class LocalResults:
    """Implements `runtime.ports.Results` for the folders of a `LocalProvider`."""

    def __init__(self, workspaces: Path, baselines: Path) -> None:
        self._workspaces = workspaces
        self._baselines = baselines

    async def read_result(self, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        """See `runtime.ports.Results`."""
        thread = folder_name(ask.thread_key)
        pieces = read(
            self._workspaces / thread, self._baselines / thread, folder_name(ask.run_id), ask.form, ask.max_bytes
        )
        with closing(pieces), told():
            while piece := await asyncio.to_thread(next, pieces, b""):
                yield piece


@contextmanager
def told() -> Iterator[None]:
    """Raise what stands against a result as the errors of the port."""
    try:
        yield
    except TooMuch as error:
        raise WorkspaceTooLarge(f"The workspace cannot be sent: {error}.") from error
    except Gone as error:
        raise WorkspaceGone(str(error), code=error.code) from error
