"""What of a run's log came from its journal, as it is stored, and what one undisturbed reading of that journal gives.

A test keeps the journal by a link: the file then outlives its sandbox.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from instance import Instance

from runtime.core.batch import Band
from runtime.core.framing import Framer
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.record import RunSpec
from runtime.ports import Harness
from runtime.stores.sqlite_reading import SqliteReading

# Made anew by each run of an agent, whoever drives it: ids of its sessions and messages, names of its files with long
# output, pauses before retries.
_CHANCE = re.compile(rb'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=/tool-results/)\w+|(?<=_ms":)[0-9.]+')


def keep_journal(instance: Instance, run: str, folder: Path) -> Path:
    """Link the journal of a run that has been launched into `folder`; return the link."""
    kept = folder / f"{run}.journal"
    os.link(instance.sandbox(run) / "journal", kept)
    return kept


def stored(instance: Instance, run: str) -> tuple[RunSpec, list[bytes], bytes]:
    """Return a run's spec, the chunks of its journal band, and the last chunk of its log."""
    store = SqliteReading(instance.data_dir / "outlast.sqlite", busy_ms=1000)
    try:
        found = store.read_run(run)
        assert found is not None
        batches = store.read_batches(run, 0, 1 << 30)
    finally:
        store.close_readers()
    band = [data for batch in batches if batch.band is Band.JOURNAL for data in batch.chunks()]
    return found[1], band, batches[-1].chunks()[-1]


def undisturbed(harness: Harness, spec: RunSpec, run: str, journal: bytes, code: int) -> tuple[list[bytes], bytes]:
    """Return the chunks that one translator makes of a whole journal, and its terminal chunk for that exit code."""
    translator = harness.translator(run, spec)
    framed = Framer(0, spec.limits.max_line_bytes).feed(journal)
    chunks = [data for line in framed.lines for data in translator.feed(line)]
    exit = AgentExit(kind=ExitKind.EXITED, journal_length=len(journal), code=code)
    terminal = translator.finish(exit, b"").terminal
    assert terminal is not None
    return chunks, terminal


def without_chance(run: str, chunks: list[bytes]) -> list[bytes]:
    """Return chunks without what differs from one run of an agent to the next."""
    return [_CHANCE.sub(b"*", data).replace(run.encode(), b"RUN") for data in chunks]
