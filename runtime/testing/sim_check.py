"""What must be true of a simulated history, by the names of the design's invariants. Shares no rule with the core.

`Checker` listens to every commit, every answer that a process gets, and every deed in the world, while they happen;
`sim_verdict.py` looks at what is left at the end. A breach is one line that begins with the name of what is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.core.ops import (
    Append,
    Appended,
    Assign,
    Assigned,
    Claimed,
    ClaimRun,
    Created,
    Done,
    Finish,
    Finished,
    Note,
    Op,
    Outcome,
    RequestCancel,
    Superseded,
    SupervisorOpened,
)
from runtime.core.reap_ops import Account, Expire, Forget, LogDropped, PruneLog
from runtime.core.record import CancelReason, Head, OnDisconnect, RunSpec, Status
from runtime.engine.viewers import VIEWER_TTL_S
from runtime.ports import Pulse, Store
from runtime.settings import Settings
from runtime.testing.sim_asking import AskCheck
from runtime.testing.sim_loop import SimLoop
from runtime.testing.sim_loss import LossCheck
from runtime.testing.sim_pruning import PruneCheck
from runtime.testing.sim_resuming import CheckpointCheck
from runtime.testing.sim_telling import TranscriptCheck
from runtime.testing.sim_world import World

MAX_BREACHES = 20


class RunView:
    """One run as the commits told it, kept beside the store and by other means."""

    def __init__(self, head: Head, spec: RunSpec, began: float) -> None:
        self.thread_id = head.thread_id
        self.queued = head.queued
        self.on_disconnect = spec.on_disconnect
        self.ttl_s = spec.limits.detached_ttl_s
        self.created = began
        self.reaped = 0
        self.noted = began  # when its newest note was stored
        self.epoch = 0
        self.holder = ""  # the claimant of `epoch`
        self.length = 1
        self.cancelled = False
        self.status = Status.RUNNING
        self.acknowledged: dict[int, bytes] = {}  # position of a batch -> its bytes, as its sender was told

    def go_back(self, head: Head) -> None:
        """Be what `head` says."""
        self.queued, self.epoch, self.length = head.queued, head.driver_epoch, head.next_seq
        self.cancelled, self.status, self.reaped = head.cancel_requested, head.status, int(head.reaped is not None)
        claims = [claim for claim in head.claims if claim.epoch == head.driver_epoch]
        self.holder = claims[-1].claimant.claimant if claims else ""
        self.acknowledged = {seq: data for seq, data in self.acknowledged.items() if seq < head.next_seq}


class Checker:
    """Listens. `breaches` is empty for a history in which everything holds."""

    def __init__(self, loop: SimLoop, store: Store, world: World, settings: Settings) -> None:
        self.breaches: list[str] = []
        self.trace: list[str] = []
        self.runs: dict[str, RunView] = {}
        self._lost: dict[str, RunView] = {}  # that were created, and whose creation the store has lost
        self.supervisor_epoch = 0
        self.closed = False  # once judged: what ends now, ends because we end it
        self._loop = loop
        self._store = store
        self._world = world
        self._lease_ttl_s = settings.lease_ttl_s
        self._grace_s = settings.disconnect_grace_s
        self._shard_epochs: dict[int, int] = {}
        self._watched: dict[str, float] = {}  # when the newest shard last took note of a viewer of the run
        self._gone: set[str] = set()  # viewers that have left for good
        self._refused: set[tuple[str, str]] = set()
        self._answered: dict[tuple[str, str], float] = {}
        self._checkpoints = CheckpointCheck(store, world, self.breach)
        self.loss = LossCheck(store, self.breach)
        self._transcripts = TranscriptCheck(store, self.breach)
        self.pruning = PruneCheck(loop, store, settings, self.breach)
        self.questions = AskCheck(store, self.breach)

    def noted_within(self, run_id: str, seconds: float) -> bool:
        """Return whether the newest note of the run was stored so lately."""
        return self._loop.time() - self.runs[run_id].noted < seconds

    def write(self, text: str) -> None:
        """Write one line of the trace."""
        if not self.closed:
            self.trace.append(f"{self._loop.time():10.4f} {text}")

    def breach(self, name: str, text: str) -> None:
        """Record that `name` does not hold."""
        self.write(f"BREACH {name}: {text}")
        if len(self.breaches) < MAX_BREACHES and not self.closed:
            self.breaches.append(f"{name}: {text}")

    def went_back(self, generation: int, supervisor_epoch: int) -> None:
        """The store is what it was, or was raised since: believe of each run what it says, and no more (P10)."""
        self.loss.until(generation)
        self.supervisor_epoch = supervisor_epoch
        self._checkpoints.forget()
        self.pruning.went_back()
        self.questions.went_back()
        known = self._lost | self.runs  # what an earlier copy had not, the next one may have
        self.runs, self._lost = {}, {}
        for run_id, run in known.items():
            head = self.loss.lost(run_id)
            if head is None:
                self._lost[run_id] = run
            else:
                self.runs[run_id] = run
                run.go_back(head)

    # --- commits ---

    def committed(self, shard: int, shard_epoch: int, ops: Sequence[Op], outcomes: Sequence[Outcome]) -> None:
        """See one transaction, in the order in which it decided."""
        newest = self._shard_epochs.get(shard, 0)
        if shard_epoch < newest:
            self.breach("P11", f"epoch {shard_epoch} of log:{shard} committed after {newest}")
        self._shard_epochs[shard] = max(shard_epoch, newest)
        for op, outcome in zip(ops, outcomes, strict=True):
            self.write(f"log:{shard} {shard_epoch}: {_brief(op)} -> {_brief(outcome)}")
            self._decided(op, outcome)
            self._checkpoints.decided(op, outcome)
            self._transcripts.decided(op, outcome)
            self.pruning.decided(op, outcome)
            self.questions.decided(op, outcome)
        self._checkpoints.committed()
        self._transcripts.committed()

    def _decided(self, op: Op, outcome: Outcome) -> None:
        match outcome:
            case Created(head=head, cancelled_previous=previous, resumed=resumed):
                if head.run_id in self.runs:
                    self.breach("I9", f"{head.run_id} was created twice")
                assert not isinstance(op, Append | Assign)
                began = (
                    self._loop.time() - (self._loop.wall_ms() - head.created_at) / 1000
                )  # its commit may take a while
                self.runs[head.run_id] = RunView(head, getattr(op, "spec"), began)  # noqa: B009 - a Create's
                if resumed is not None:
                    self.runs[resumed.run_id].status = Status.COMPLETED
                self._holds_alone(head.run_id)
                if previous is not None:
                    self.runs[previous].cancelled = True
            case Claimed():
                assert isinstance(op, ClaimRun)
                self._claimed(op, outcome)
            case Appended(repeat=False):
                assert isinstance(op, Append)
                self._stored(op)
            case Finished(repeat=False):
                assert isinstance(op, Finish)
                self._finished(op)
                if outcome.unqueued is not None:
                    self.runs[outcome.unqueued.run_id].queued = False
                    self._holds_alone(outcome.unqueued.run_id)
            case Done(head=head, changed=True) if isinstance(op, Note):
                self._under_epoch(op.run_id, op.epoch, "a note")
                self.runs[op.run_id].noted = self._loop.time()
            case Done(head=head, changed=True) if isinstance(op, RequestCancel):
                self._cancelled(op)
            case Done(head=head, changed=True) if isinstance(op, Expire | Account):
                self._by_the_newest(op.supervisor_epoch)
                self._reaped(op, head)
            case Done(changed=True) if isinstance(op, PruneLog | LogDropped | Forget):
                self._by_the_newest(op.supervisor_epoch)
            case Assigned():
                assert isinstance(op, Assign)
                self._by_the_newest(op.supervisor_epoch)
            case SupervisorOpened(epoch=epoch):
                self.supervisor_epoch = max(epoch, self.supervisor_epoch)

    def _holds_alone(self, run_id: str) -> None:
        thread_id = self.runs[run_id].thread_id
        holders = [
            other
            for other, run in self.runs.items()
            if run.thread_id == thread_id and not run.queued and not run.status.terminal
        ]
        if len(holders) > 1:
            self.breach("P12", f"{' and '.join(holders)} hold {thread_id} at once")

    def _claimed(self, op: ClaimRun, outcome: Claimed) -> None:
        run, epoch = self.runs[op.run_id], outcome.head.driver_epoch
        if epoch == run.epoch and op.claimant.claimant == run.holder:
            return  # the first answer again
        if op.expected_epoch != run.epoch or epoch != max(run.epoch, outcome.head.generation) + 1:
            self.breach("I1", f"{op.run_id}: epoch {epoch} was given on {op.expected_epoch}, {run.epoch} is current")
        run.epoch, run.holder = epoch, op.claimant.claimant

    def _under_epoch(self, run_id: str, epoch: int, what: str) -> None:
        run = self.runs[run_id]
        if epoch != run.epoch:
            self.breach("I1", f"{run_id}: {what} of epoch {epoch} was stored, {run.epoch} is current")

    def _stored(self, op: Append) -> None:
        run = self.runs[op.run_id]
        stored = self._store.read_run(op.run_id)
        if stored is None or stored[0].next_seq < op.batch.next_seq:
            self.breach("I2", f"{op.run_id}: a batch at {op.batch.seq} was answered and is not stored")
        self._under_epoch(op.run_id, op.batch.epoch, "an append")
        if run.status is not Status.RUNNING:
            self.breach("I5", f"{op.run_id}: an append was stored after the end")
        if op.batch.seq != run.length:
            self.breach("I3", f"{op.run_id}: a batch at {op.batch.seq} was stored in a log of {run.length}")
        run.length = op.batch.next_seq

    def _finished(self, op: Finish) -> None:
        run = self.runs[op.run_id]
        self._under_epoch(op.run_id, op.batch.epoch, "a finish")
        if run.status.terminal:
            self.breach("I5", f"{op.run_id}: ended twice")
        if run.cancelled and op.status is not Status.ABORTED:
            self.breach("P9", f"{op.run_id}: cancelled, but ended as {op.status}")
        if op.status is Status.ABORTED and not run.cancelled:
            self.breach("I6", f"{op.run_id}: aborted although nobody asked")
        run.status = op.status
        run.length = op.batch.next_seq

    def _cancelled(self, op: RequestCancel) -> None:
        run = self.runs[op.run_id]
        run.cancelled = True
        if op.reason is not CancelReason.DISCONNECT:
            return
        if run.on_disconnect is not OnDisconnect.CANCEL:
            self.breach("I6", f"{op.run_id}: a disconnect cancelled it")
        alone_s = self._loop.time() - self._watched.get(op.run_id, 0.0)
        if alone_s < self._grace_s - 0.01:
            self.breach("P20", f"{op.run_id}: a disconnect cancelled it {alone_s:.1f} s after somebody watched")

    def _by_the_newest(self, epoch: int) -> None:
        if epoch != self.supervisor_epoch:
            self.breach("P6", f"supervisor {epoch} decided, {self.supervisor_epoch} is current")

    def _reaped(self, op: Expire | Account, head: Head) -> None:
        """No run expires under a viewer who lives, or before its own TTL is over; each is told of once (P22)."""
        run = self.runs[op.run_id]
        if isinstance(op, Account):
            run.reaped += 1
            if run.reaped > 1 or not run.status.terminal:
                self.breach("P22", f"{op.run_id}: accounted for {run.reaped} times, {run.status}")
            return
        if run.cancelled or run.status.terminal:
            self.breach("P22", f"{op.run_id}: expired although it was to end anyway")
        run.cancelled = True
        alone_s = self._loop.time() - self._watched.get(op.run_id, run.created)
        if run.ttl_s is None or alone_s < max(run.ttl_s, VIEWER_TTL_S if op.run_id in self._watched else 0) - 0.01:
            self.breach("P22", f"{op.run_id}: expired {alone_s:.1f} s after somebody watched, TTL {run.ttl_s}")
        if head.detached_since is None:
            self.breach("P22", f"{op.run_id}: its expiry cleared detachedSince")

    def left(self, viewer: str) -> None:
        """See a viewer leave for good: what still comes of it is an old message."""
        self.write(f"{viewer} leaves for good")
        self._gone.add(viewer)

    def served(self, shard: int, shard_epoch: int, method: str, args: tuple[Any, ...]) -> None:
        """See that a shard has done what it was asked."""
        if shard_epoch < self._shard_epochs.get(shard, 0):
            return
        if method in ("attach", "set_viewers") and args[1 if method == "attach" else 0] in self._gone:
            return
        if method == "attach":
            self._watched[args[0]] = self._loop.time()
        elif method == "set_viewers":
            self._watched.update(dict.fromkeys(args[2], self._loop.time()))

    # --- what a process was told ---

    def heard(self, process: str, method: str, args: tuple[Any, ...], value: Any) -> None:
        """See an answer at the moment at which its process has it."""
        if method == "pulse":
            assert isinstance(value, Pulse)
            self._told(process, args[0], refused=value.superseded_by is not None)
        elif method == "record" and value is not None:
            self._told(process, args[0], refused=False)
        elif method == "submit" and hasattr(args[0], "run_id"):
            op = args[0]
            self._told(process, op.run_id, refused=isinstance(value, Superseded) and not isinstance(op, Assign))
            if isinstance(op, PruneLog | Forget) and isinstance(value, Done):
                self.pruning.heard(value.head, max(self._shard_epochs.values()))
            if isinstance(value, Appended | Finished) and not self.loss.may_be_lost(value.head):
                self._acknowledged(op, value)

    def _acknowledged(self, op: Op, value: Appended | Finished) -> None:
        if isinstance(value, Appended) and isinstance(op, Append) and value.seq == op.batch.seq:
            self.runs[op.run_id].acknowledged[value.seq] = op.batch.data
        if isinstance(value, Finished) and isinstance(op, Finish) and op.batch.count:
            self.runs[op.run_id].acknowledged[op.batch.seq] = op.batch.data

    def _told(self, process: str, run_id: str, *, refused: bool) -> None:
        if refused:
            self._refused.add((process, run_id))
            self.write(f"{process}: is told that it lost {run_id}")
        else:
            self._answered[process, run_id] = self._loop.time()

    # --- deeds ---

    def did(self, kind: str, run_id: str, by: str) -> None:
        """See what is asked of the world, and what happens in it."""
        self.write(f"{by}: {kind} {run_id}")
        if kind.startswith("ask "):
            gives_back = kind == "ask destroy" and by.startswith("supervisor") and self._ended(run_id)
            if (by, run_id) in self._refused and not gives_back:
                self.breach("I1", f"{run_id}: {by} asks to {kind[4:]} although it was told that it lost the run")
            silent_s = self._loop.time() - self._answered.get((by, run_id), 0.0)
            if silent_s > self._lease_ttl_s:
                self.breach("P4", f"{run_id}: {by} asks to {kind[4:]} after {silent_s:.1f} s without an answer")
        elif kind == "launch" and self._world.started[run_id] and run_id not in self.loss.runs:
            self.breach("P15", f"{run_id}: {by} started a second agent")
        elif kind == "destroy" and by != "chaos":
            self._destroyed(run_id, by)

    def _ended(self, run_id: str) -> bool:
        return run_id in self.runs and self.runs[run_id].status is not Status.RUNNING

    def _destroyed(self, run_id: str, by: str) -> None:
        stored = self._store.read_run(run_id)
        allowed = stored is not None and (stored[0].status is not Status.RUNNING or stored[0].cancel_requested)
        if not allowed and run_id not in self.loss.runs:
            self.breach("P4", f"{run_id}: {by} destroyed the sandbox of a run that nobody ended")


def _brief(value: Op | Outcome) -> str:
    """Return an operation or answer in a few words, the same in every process."""
    named = ("run_id", "expected_epoch", "epoch", "seq", "next_seq", "status", "reason", "repeat", "changed")
    words = [type(value).__name__, *(f"{name}={getattr(value, name)}" for name in named if hasattr(value, name))]
    batch, head = getattr(value, "batch", None), getattr(value, "head", None)
    mark = getattr(value, "checkpoint", None)
    if batch is not None:
        words.append(f"[{batch.seq},{batch.next_seq}) epoch={batch.epoch} {batch.band}")
    if head is not None:
        words.append(f"head: {head.run_id} epoch={head.driver_epoch} next={head.next_seq} {head.status}")
    if mark is not None:
        words.append(f"checkpoint: {mark.position}")
    return " ".join(words)
