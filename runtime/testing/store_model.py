"""What a store should do, told a second time in the plainest way: dicts, lists and words.

It shares no code with the stores or the machine, not even their words for status and band, so that the same mistake
would have to be made twice. `answer` takes what was asked as plain values and returns what should come back: the
answer's name, and the facts that matter. It is slow and forgets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Facts = dict[str, Any]
ENDED = ("completed", "failed", "aborted")
LAUNCH = ("none", "keyed", "intended")


@dataclass
class ModelRun:
    """One run, as a person would note it down."""

    run_id: str
    owner: str
    thread: str
    digest: str
    status: str = "running"
    queued: bool = False
    was_queued: bool = False
    closed: bool = False
    cancel: str | None = None
    epoch: int = 0
    claimants: list[str] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    stored: list[Facts] = field(default_factory=list)  # each batch: seq, epoch, key, chunks, band
    ending: Facts | None = None
    detached: int | None = None
    reaped: str | None = None
    finished: int = 0
    handover: int = 0
    launch: str = "none"
    key: str | None = None
    attempts: int = 0
    idle_claims: int = 0  # since something was stored
    stderr: bytes | None = None
    transcript: bytes | None = None
    told: bool = False  # a transcript came with an ending
    kept: str = "log"
    dropped: bool = False  # nothing of the log is there any more
    checkpoint: Facts | None = None  # epoch, seq, state

    def holds_thread(self) -> bool:
        """Return whether nobody else may run in its thread."""
        return self.status not in ENDED and not self.queued

    def facts(self) -> Facts:
        """Return what must be seen in the stored record."""
        return {
            "status": self.status,
            "queued": self.queued,
            "closed": self.closed,
            "cancel_reason": self.cancel,
            "cancel_requested": self.cancel is not None,
            "driver_epoch": self.epoch,
            "next_seq": len(self.chunks),
            "log_bytes": sum(map(len, self.chunks)) + sum(len(batch["chunks"]) - 1 for batch in self.stored),
            "detached_since": self.detached,
            "reaped": self.reaped,
            "transcript": self.told,
            "kept": self.kept,
            "handover_epoch": self.handover,
            "launch": self.launch,
            "sandbox_key": self.key,
            "attempts_without_progress": self.attempts,
            "claims_without_progress": self.idle_claims,
        }


class StoreModel:
    """All runs, in the order of their creation."""

    def __init__(self, first_chunk: bytes) -> None:
        self.runs: dict[str, ModelRun] = {}
        self.first_chunk = first_chunk
        self.supervisor = 0
        self.supervisor_name = ""
        self.now = 0  # of the transaction in which what is asked will be

    def in_thread(self, owner: str, thread: str) -> list[ModelRun]:
        """Return the thread's runs, oldest first."""
        return [run for run in self.runs.values() if (run.owner, run.thread) == (owner, thread)]

    def active(self, owner: str, thread: str) -> ModelRun | None:
        """Return the run that is running and not queued."""
        found = [run for run in self.in_thread(owner, thread) if run.holds_thread() and run.status == "running"]
        return found[0] if found else None

    def create(
        self, run_id: str, thread: str, owner: str, digest: str, on_busy: str, now: int, resumes: bool = False
    ) -> tuple[str, Facts]:
        """Answer a creation."""
        known = self.runs.get(run_id)
        if known is not None:
            return ("Joined" if (known.digest, known.owner) == (digest, owner) else "DigestDiffers"), {}
        busy = [run for run in self.in_thread(owner, thread) if run.holds_thread()]
        cancelled = None
        if resumes:
            if not busy or busy[0].status != "interrupted" or busy[0].cancel is not None:
                return "NothingToResume", {}
            resumed = busy.pop()
            resumed.status, resumed.finished = "completed", now
        if busy and busy[0].cancel is None:
            if on_busy == "reject":
                return "ThreadBusy", {"active_run_id": busy[0].run_id}
            if on_busy == "cancel-previous":
                busy[0].cancel, cancelled = "user", busy[0].run_id
        run = ModelRun(run_id, owner, thread, digest, queued=bool(busy), was_queued=bool(busy), detached=now)
        run.chunks.append(self.first_chunk)
        run.stored.append({"seq": 0, "epoch": 0, "key": None, "chunks": [self.first_chunk], "band": "live"})
        self.runs[run_id] = run
        return "Created", {"cancelled_previous": cancelled}

    def claim(self, run_id: str, expected: int, claimant: str, reason: str) -> tuple[str, Facts]:
        """Answer a claim."""
        run = self.runs.get(run_id)
        if run is None:
            return "UnknownRun", {}
        if run.epoch == expected + 1 and run.claimants[-1] == claimant:
            return "Claimed", {}
        if run.epoch != expected:
            return "Superseded", {"current_epoch": run.epoch}
        if run.status in ENDED:
            return "AlreadyEnded", {}
        if (run.queued or run.status != "running") and reason not in ("cancel", "reap"):
            return "NotClaimable", {}
        run.epoch += 1
        run.idle_claims += 1
        run.claimants.append(claimant)
        return "Claimed", {}

    def append(
        self, run_id: str, epoch: int, seq: int, batch: Facts, bound: int, checkpoint: Facts | None = None
    ) -> tuple[str, Facts]:
        """Answer an append; `batch` is its key, chunks and band."""
        run = self.runs.get(run_id)
        if run is None:
            return "UnknownRun", {}
        if epoch == 0 or epoch != run.epoch:
            return "Superseded", {"held_epoch": epoch, "current_epoch": run.epoch}
        for old in [] if run.dropped else run.stored:
            if batch["key"] is not None and batch["key"] == old["key"]:
                return "Appended", {"repeat": True, "seq": old["seq"]}
            if batch["key"] is None and old == {**batch, "seq": seq, "epoch": epoch}:
                return "Appended", {"repeat": True, "seq": seq}
        if run.closed:
            return "Closed", {}
        fits = checkpoint is None or (
            batch["band"] == "journal"
            and (checkpoint["epoch"], checkpoint["seq"]) == (epoch, seq + len(batch["chunks"]))
        )
        if seq != len(run.chunks) or not batch["chunks"] or not fits:
            return "SeqConflict", {"next_seq": len(run.chunks)}
        if bound and run.facts()["log_bytes"] + len(b"\n".join(batch["chunks"])) > bound:
            return "LogFull", {}
        self._store(run, seq, epoch, batch)
        run.checkpoint = run.checkpoint if checkpoint is None else checkpoint
        return "Appended", {"repeat": False, "seq": seq, "next_seq": len(run.chunks)}

    def finish(
        self,
        run_id: str,
        epoch: int,
        seq: int,
        chunks: list[bytes],
        status: str,
        stderr: bytes,
        transcript: bytes | None = None,
    ) -> tuple[str, Facts]:
        """Answer a finish."""
        run = self.runs.get(run_id)
        if run is None:
            return "UnknownRun", {}
        if epoch == 0 or epoch != run.epoch:
            return "Superseded", {"held_epoch": epoch, "current_epoch": run.epoch}
        ending = {"epoch": epoch, "seq": seq, "chunks": chunks, "status": status}
        if run.ending == ending:
            holder = [other for other in self.in_thread(run.owner, run.thread) if other.holds_thread()]
            told = bool(holder) and holder[0].was_queued and run.status in ENDED
            return "Finished", {"repeat": True, "unqueued": holder[0].run_id if told else None}
        if run.status in ENDED:
            return "AlreadyEnded", {}
        resumes = run.status == "interrupted" and not chunks
        if run.closed and not resumes:
            return "Closed", {}
        if seq != len(run.chunks) or not (chunks or resumes):
            return "SeqConflict", {"next_seq": len(run.chunks)}
        if run.cancel is not None and status != "aborted":
            return "MustAbort", {"reason": run.cancel}
        refused = {"running": ("running",), "interrupted": ("running", "interrupted", "failed")}[run.status]
        if (
            status in refused
            or (status == "aborted" and run.cancel is None)
            or (run.queued and status == "interrupted")
        ):
            return "IllegalMove", {}
        return "Finished", {"repeat": False, "unqueued": self._end(run, ending, stderr, transcript)}

    def _end(self, run: ModelRun, ending: Facts, stderr: bytes, transcript: bytes | None) -> str | None:
        if ending["chunks"]:
            self._store(run, ending["seq"], ending["epoch"], {"key": None, "chunks": ending["chunks"], "band": "live"})
        if stderr or run.stderr is None:
            run.stderr = stderr
        if transcript is not None:
            run.transcript, run.told = transcript, True
        run.checkpoint = None
        had_thread = run.holds_thread()
        run.status, run.closed, run.queued, run.ending = ending["status"], True, False, ending
        run.attempts = run.idle_claims = 0
        run.finished = self.now
        waiting = [other for other in self.in_thread(run.owner, run.thread) if other.queued]
        if not waiting or not had_thread or run.status not in ENDED:
            return None
        waiting[0].queued = False
        return waiting[0].run_id

    def _store(self, run: ModelRun, seq: int, epoch: int, batch: Facts) -> None:
        run.stored.append({**batch, "seq": seq, "epoch": epoch})
        run.chunks += batch["chunks"]
        run.attempts = run.idle_claims = 0

    def intend(self, run_id: str, what: str, value: Any) -> tuple[str, Facts]:
        """Answer an outsider's intent: cancel (a reason), attach, detach (a time), handover."""
        run = self.runs.get(run_id)
        if run is None:
            return "UnknownRun", {}
        over = run.status in ENDED
        if what == "handover" and over:
            return "AlreadyEnded", {}
        before = run.facts()
        if what == "cancel" and not over and run.cancel is None:
            run.cancel = value
        elif what == "attach" and not over:
            run.detached = None
        elif what == "detach" and not over and run.detached is None:
            run.detached = value
        elif what == "handover":
            run.handover = run.epoch
        return "Done", {"changed": run.facts() != before}

    def expire(self, run_id: str, supervisor: int, now: int, ttl_ms: int) -> tuple[str, Facts]:
        """Answer the expiry of a run that nobody came back for."""
        if supervisor == 0 or supervisor != self.supervisor:
            return "SupervisorStale", {"current_epoch": self.supervisor}
        run = self.runs.get(run_id)
        if run is None:
            return "UnknownRun", {}
        over = run.detached is not None and run.detached + ttl_ms <= now
        if run.status in ENDED or run.cancel is not None or not over:
            return "Done", {"changed": False}
        run.cancel = "detached_expired"
        return "Done", {"changed": True}

    def account(self, run_id: str, supervisor: int) -> tuple[str, Facts]:
        """Answer whoever accounts for a run that ended unwatched."""
        if supervisor == 0 or supervisor != self.supervisor:
            return "SupervisorStale", {"current_epoch": self.supervisor}
        run = self.runs.get(run_id)
        if run is None:
            return "UnknownRun", {}
        if run.status not in ENDED or run.detached is None or run.reaped is not None:
            return "Done", {"changed": False}
        run.reaped = "expired" if run.cancel == "detached_expired" else "finalized"
        return "Done", {"changed": True}

    def prune(self, run_id: str, supervisor: int, what: str, before: int, keep: int = 0) -> tuple[str, Facts]:
        """Answer whoever removes what is too old: of the stage `what`, if the run ended no later than `before`, and
        `keep` ago; that a log is gone, only if it is."""
        if supervisor == 0 or supervisor != self.supervisor:
            return "SupervisorStale", {"current_epoch": self.supervisor}
        run = self.runs.get(run_id)
        if run is None:
            return "UnknownRun", {}
        if run.status not in ENDED or self._stage(run) != what:
            return "Done", {"changed": False}
        early = not run.dropped if what == "drop" else run.finished > before or run.finished + keep > self.now
        if early:
            return "Done", {"changed": False}
        if what == "prune" or run.kept == "log":
            run.kept = "dropping"
        elif what == "drop" and run.told:
            run.kept = "transcript"
        else:
            run.kept, run.transcript, run.stderr = "record", None, None
        return "Done", {"changed": True}

    def _stage(self, run: ModelRun) -> str | None:
        """Return what is next about a run that has ended."""
        if run.detached is not None and run.reaped is None:
            return "account"
        after = {"log": "prune" if run.told else "forget", "dropping": "drop", "transcript": "forget"}
        return after.get(run.kept)

    def reapable(self, ttl_ms: int) -> dict[str, list[str]]:
        """Return what is to be done about which runs, longest due first."""
        names = "expire", "account", "prune", "drop", "forget"
        due: dict[str, list[tuple[int, int, str]]] = {name: [] for name in names}
        for place, run in enumerate(self.runs.values()):
            if run.status in ENDED:
                if (stage := self._stage(run)) is not None:
                    due[stage].append((run.finished, place, run.run_id))
            elif run.cancel is None and run.detached is not None:
                due["expire"].append((run.detached + ttl_ms, place, run.run_id))
        return {stage: [run_id for _, _, run_id in sorted(found)] for stage, found in due.items()}

    def note(self, run_id: str, epoch: int, key: str | None, launch: str | None, progressed: bool) -> tuple[str, Facts]:
        """Answer a driver's remark."""
        run = self.runs.get(run_id)
        if run is None:
            return "UnknownRun", {}
        if epoch == 0 or epoch != run.epoch:
            return "Superseded", {"current_epoch": run.epoch}
        before = run.facts()
        run.key = key if key is not None else run.key
        if launch is not None:
            run.launch = max(run.launch, launch, key=LAUNCH.index)
        if progressed:
            run.attempts = run.idle_claims = 0
        return "Done", {"changed": run.facts() != before}

    def open_supervisor(self, claimant: str) -> tuple[str, Facts]:
        """Answer a supervisor that starts."""
        if self.supervisor == 0 or claimant != self.supervisor_name:
            self.supervisor, self.supervisor_name = self.supervisor + 1, claimant
        return "SupervisorOpened", {"epoch": self.supervisor}

    def assign(self, run_id: str, expected: int, supervisor: int, most: int) -> tuple[str, Facts]:
        """Answer a supervisor's decision."""
        run = self.runs.get(run_id)
        if supervisor == 0 or supervisor != self.supervisor:
            return "SupervisorStale", {"current_epoch": self.supervisor}
        if run is None:
            return "UnknownRun", {}
        if expected != run.epoch:
            return "Superseded", {"current_epoch": run.epoch}
        if run.status in ENDED:
            return "AlreadyEnded", {}
        if run.cancel is None and (run.queued or run.status == "interrupted"):
            return "NotClaimable", {}
        if run.attempts >= most and run.idle_claims >= most:
            return "Exhausted", {}
        run.attempts += 1
        return "Assigned", {"attempt": run.attempts}
