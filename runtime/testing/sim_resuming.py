"""What must be true of every checkpoint of a simulated history: it says what a reader from byte 0 would know (P25).

Looked at when it is stored, from the world's journal and the stored log, by means that know of no checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.core.batch import Band
from runtime.core.checkpoint import Checkpoint
from runtime.core.open_items import OpenItems
from runtime.core.ops import Append, Appended, Finish, Finished, Op, Outcome
from runtime.ports import Store
from runtime.testing.sim_agent import MAX_LINE_BYTES, SimTranslator, translate
from runtime.testing.sim_world import World

EVERYTHING = 1 << 40


class CheckpointCheck:
    """Sees what is stored, and calls `breach(name, text)`."""

    def __init__(self, store: Store, world: World, breach: Callable[[str, str], None]) -> None:
        self._store = store
        self._world = world
        self._breach = breach
        self._newest: dict[str, Checkpoint | None] = {}

    def decided(self, op: Op, outcome: Outcome) -> None:
        """See one operation and its answer."""
        match op, outcome:
            case Append(checkpoint=Checkpoint() as mark), Appended(repeat=False):
                self._newest[op.run_id] = mark
                self._look(op, mark)
            case Finish(), Finished():
                self._newest[op.run_id] = None

    def forget(self) -> None:
        """What was stored may be lost (P10)."""
        self._newest.clear()

    def committed(self) -> None:
        """See that the store holds, of every run, what its newest stored append brought, and nothing else."""
        for run_id, mark in self._newest.items():
            if self._store.read_checkpoint(run_id) != mark:
                self._breach("P25", f"{run_id}: its stored checkpoint is not that of a stored append")

    def _look(self, op: Append, mark: Checkpoint) -> None:
        where = f"{op.run_id}: the checkpoint at {mark.seq}"
        head, spec = self._store.read_run(op.run_id) or (None, None)
        assert head is not None
        assert spec is not None
        journals = self._world.journals.get(op.run_id, b""), self._world.told.get(op.run_id, b"")
        begun = max((bytes(journal[: mark.position]) for journal in journals), key=len)
        if len(begun) != mark.position or not begun.endswith(b"\n"):
            self._breach("P25", f"{where} is not at the end of a line: {begun[-20:]!r} before {mark.position}")
            return
        batches = [batch for batch in self._store.read_batches(op.run_id, 0, EVERYTHING) if batch.seq < mark.seq]
        made = translate(op.run_id, head.thread_id, begun)
        stored = [data for batch in batches if batch.band is Band.JOURNAL for data in batch.chunks()]
        if made != stored or mark.journal_chunks != len(stored):
            self._breach(
                "P25", f"{where} counts {mark.journal_chunks} chunks; {len(made)} are made, {len(stored)} stored"
            )
        if mark.translator != _state(op.run_id, head.thread_id, begun):
            self._breach("P25", f"{where} has another translator than a replay has")
        items = OpenItems()
        items.feed([data for batch in batches for data in batch.chunks()])
        if mark.open_items != items.state():
            self._breach("P25", f"{where} has other items open than the log has")


def _state(run_id: str, thread_id: str, journal: bytes) -> bytes:
    translator = SimTranslator(run_id, thread_id)
    for line in journal.split(b"\n")[:-1]:
        if len(line) <= MAX_LINE_BYTES:
            translator.feed(line)
    return translator.state()
