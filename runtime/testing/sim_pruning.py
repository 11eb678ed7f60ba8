"""What must hold of the removal of what is too old: in its time, to its end, and never the only copy."""

from __future__ import annotations

from collections.abc import Callable

from runtime.core.batch import Batch
from runtime.core.ops import Done, Op, Outcome
from runtime.core.reap_ops import Forget, LogDropped, PruneLog
from runtime.core.record import Head, Kept
from runtime.core.retention import Retention
from runtime.ports import Store
from runtime.settings import Settings
from runtime.testing.sim_loop import SimLoop

EVERYTHING = 1 << 40
NAME = "retention"
SLACK_MS = 60_000  # within which whatever is due is removed, once there is no more trouble


class PruneCheck:
    """Sees what is stored and told, and calls `breach(name, text)`."""

    def __init__(self, loop: SimLoop, store: Store, settings: Settings, breach: Callable[[str, str], None]) -> None:
        self.logs: dict[str, list[Batch]] = {}  # that were given up, as they were then
        self.ever: set[str] = set()  # runs that lost something, whatever was lost since
        self.told: dict[str, int] = {}  # of whom whoever gave it up has the answer -> of which epoch of the shard
        self._loop = loop
        self._store = store
        self._retention = Retention(settings.log_retention_s, settings.transcript_retention_s)
        self._breach = breach

    def decided(self, op: Op, outcome: Outcome) -> None:
        """See one operation and its answer, when it is stored."""
        if not isinstance(outcome, Done) or not outcome.changed:
            return
        head, now_ms = outcome.head, self._loop.wall_ms()
        if isinstance(op, PruneLog):
            self._in_time(head, self._retention.logs_before(now_ms), "log")
            if self._store.read_transcript(head.run_id) is None:
                self._breach(NAME, f"{head.run_id}: its log is given up, and was the only copy")
        elif isinstance(op, Forget):
            self._in_time(head, self._retention.transcripts_before(now_ms), "transcript")
        elif isinstance(op, LogDropped) and self._store.read_batches(head.run_id, 0, EVERYTHING):
            self._breach(NAME, f"{head.run_id}: its log is said to be gone, and some of it is there")
        if head.kept is Kept.DROPPING and isinstance(op, PruneLog | Forget):
            self.ever.add(head.run_id)
            self.logs[head.run_id] = self._store.read_batches(head.run_id, 0, EVERYTHING)

    def _in_time(self, head: Head, before_ms: int | None, what: str) -> None:
        if before_ms is None or not head.status.terminal or head.finished_at is None or head.finished_at > before_ms:
            self._breach(NAME, f"{head.run_id}: its {what} goes before its time ({head.status}, {head.finished_at})")

    def heard(self, head: Head, shard_epoch: int) -> None:
        """See that somebody was told that a log is given up: from then on nobody is served from it."""
        if head.log_gone:
            self.told.setdefault(head.run_id, shard_epoch)

    def went_back(self) -> None:
        """The store is what it was: believe what it says."""
        self.told.clear()
        for run_id in list(self.logs):
            stored = self._store.read_run(run_id)
            if stored is None or not stored[0].log_gone:
                del self.logs[run_id]

    def log(self, run_id: str) -> list[Batch]:
        """Return the run's log as it is, or was when it was given up."""
        return self.logs[run_id] if run_id in self.logs else self._store.read_batches(run_id, 0, EVERYTHING)

    def judge(self, head: Head) -> None:
        """See at the end that nothing is left of what is due."""
        due_by = self._retention.logs_before(self._loop.wall_ms() - SLACK_MS)
        accounted = head.detached_since is None or head.reaped is not None
        if due_by is None or head.finished_at is None or head.finished_at > due_by or not accounted:
            return
        if head.transcript and head.kept in (Kept.LOG, Kept.DROPPING):
            self._breach(NAME, f"{head.run_id}: its log was to go, and is kept: {head.kept}")
        if head.kept in (Kept.TRANSCRIPT, Kept.RECORD) and self._store.read_batches(head.run_id, 0, EVERYTHING):
            self._breach(NAME, f"{head.run_id}: some of its log is left")
