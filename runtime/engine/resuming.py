"""Where a driver begins to follow: after a checkpoint that can be trusted, else at byte 0 (P25).

Each doubt leads to byte 0, and byte 0 is always right: another journal, a shorter one, other bytes before the place,
another harness or version of its translator, a state that is not taken. What a checkpoint skips is not compared; what
follows it is, chunk by chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from runtime.core.checkpoint import LOOKBACK_BYTES, Checkpoint, lookback_digest
from runtime.core.record import RunSpec
from runtime.errors import JournalUnavailable
from runtime.ports import Resumable, Sandbox, Translator

log = logging.getLogger("outlast.driver")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a follow begins. `before`: the journal's bytes before `position`, up to LOOKBACK_BYTES of them."""

    translator: Translator
    journal_id: str | None  # None: the sandbox cannot say, and no checkpoint is taken
    position: int = 0
    journal_chunks: int = 0
    before: bytes = b""


async def find_start(
    checkpoint: Checkpoint | None, sandbox: Sandbox, spec: RunSpec, translator: Callable[[], Translator]
) -> Start:
    """Return where to begin, with a translator that is there already. Raises what the sandbox raises."""
    try:
        journal_id = await sandbox.journal_id()
    except JournalUnavailable:
        return Start(translator(), None)
    if checkpoint is None:
        return Start(translator(), journal_id)
    before = await _before(checkpoint, sandbox)
    resumed = translator()
    doubt = _doubt(checkpoint, journal_id, before, spec) or _not_taken(checkpoint, resumed)
    if doubt is not None:
        log.warning("run %s: the checkpoint at %d is not used: %s", checkpoint.run_id, checkpoint.seq, doubt)
        return Start(translator(), journal_id)
    return Start(resumed, journal_id, checkpoint.position, checkpoint.journal_chunks, before)


async def _before(checkpoint: Checkpoint, sandbox: Sandbox) -> bytes:
    size = min(checkpoint.position, LOOKBACK_BYTES)
    try:
        return await sandbox.read_journal(checkpoint.position - size, size)
    except JournalUnavailable:
        return b""


def _doubt(checkpoint: Checkpoint, journal_id: str, before: bytes, spec: RunSpec) -> str | None:
    if (spec.harness, spec.translator_version) != (checkpoint.harness, checkpoint.translator_version):
        return f"it is of {checkpoint.harness} {checkpoint.translator_version}"
    if journal_id != checkpoint.journal_id:
        return "it is of another journal"
    if len(before) < min(checkpoint.position, LOOKBACK_BYTES):
        return f"the journal does not reach to {checkpoint.position}"
    if lookback_digest(before) != checkpoint.lookback:
        return f"the journal has other bytes before {checkpoint.position}"
    return None


def _not_taken(checkpoint: Checkpoint, translator: Translator) -> str | None:
    if not isinstance(translator, Resumable):
        return "the translator cannot be put aside"
    try:
        translator.restore(checkpoint.translator)
    except Exception as error:  # noqa: BLE001 - whatever a translator says to bytes that are not its own
        return f"the translator does not take it ({error!r})"
    return None
