"""What the engine asks of the world. Each protocol has one fact to state per method: what it may raise, and on whose
account.

    Store               the truth: transactions over records and logs       stores/, kit: testing/store_kit.py
    LogPort             a shard, as drivers, supervisor and gateway see it  engine/shard.py, actors/shard_client.py
    SandboxProvider     where agents live                                   sandboxes/    (in agent_ports.py)
    Sandbox             one of them
    Harness, Translator one kind of agent                                   harnesses/    (in agent_ports.py)
    Clock               time, which the simulator owns in tests             engine/clock.py
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from runtime.agent_ports import (
    Capabilities,
    CarriesCalls,
    Ending,
    FileChange,
    Harness,
    KeepsSessions,
    LaunchSpec,
    LendsTools,
    Results,
    Resumable,
    Sandbox,
    SandboxProvider,
    SessionFile,
    TellsDiff,
    TellsMaking,
    ToolServer,
    Translator,
    WatchesFiles,
    WholeDiff,
)
from runtime.core.batch import Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.ops import Op, Outcome
from runtime.core.reap_ops import ReapStage
from runtime.core.record import Head, Refused, RunSpec, Status, Struct
from runtime.core.result import ResultAsk


class Clock(Protocol):
    """Time. Wall and monotonic are never mixed: records carry wall ms, leases and waits use monotonic seconds."""

    def wall_ms(self) -> int:
        """Return UTC ms since the epoch."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back; also the event loop's clock."""


# --- store -----------------------------------------------------------------------------------------------------


class RunQuery(Struct, frozen=True, kw_only=True):
    """A page of runs, newest first; without `owner` those of all. `cursor` is the `next` of the page before."""

    owner: str | None
    status: Status | None = None
    thread_id: str | None = None
    limit: int = 50
    cursor: str | None = None


class RunPage(Struct, frozen=True, kw_only=True):
    """Runs of one page; `next` is None on the last."""

    runs: list[tuple[Head, RunSpec]]
    next: str | None


class Store(Protocol):
    """The durable store of one deployment. Blocking: call it from an OS thread that may wait.

    One thread writes (`commit`), any number read. Every method may raise StoreUnavailable or StoreFull on the
    store's account; `commit` then wrote nothing, or an unknown part of nothing: read back before you answer (P7).
    """

    def open_shard(self, shard: int, opener: str) -> int:
        """Take shard `shard` and return its new epoch, one above every earlier one (P11). `opener` is free text
        for people. Raises StoreRefused if the store is not set up for this shard."""

    def commit(self, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        """Decide and store `ops` in order in one transaction, durably, and answer each (I1, I2, P7).

        Raises ShardSuperseded, having written nothing, if `shard_epoch` is not the newest."""

    def drop_log(self, run_id: str) -> int:
        """Remove a bounded stretch from the end of a log that was given up (`PruneLog`), and return how many positions
        are left: 0, it is all gone. Of another it removes nothing, and returns 0. Whoever is in the middle of it
        finds its beginning whole, or nothing."""

    def raise_generation(self, now_ms: int, above: int = 0) -> int:
        """Say that acknowledged chunks are lost (P10): return the new generation, one past `above` at least.

        Everybody who holds an epoch of a shard, of the supervisor or of a run that is not terminal is superseded, and
        offsets of logs that are not closed are of another generation from now on. Durable when it returns."""

    def read_run(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """Return the record, or None."""

    def read_batches(self, run_id: str, after: int, max_bytes: int) -> list[Batch]:
        """Return the stored batches that hold positions past `after`, in order, until `max_bytes` are reached (at
        least one if there is any). The first one may begin before `after`."""

    def read_checkpoint(self, run_id: str) -> Checkpoint | None:
        """Return the run's newest checkpoint (P25); None if there is none, or none that this version understands."""

    def read_stderr(self, run_id: str) -> bytes | None:
        """Return the stderr tail stored with the finish; None for an unknown run or one that has not ended."""

    def read_transcript(self, run_id: str) -> bytes | None:
        """Return the transcript stored with the finish (`core/transcript.py`); None for a run that has not ended."""

    def read_transcripts(self, run_ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        """Return the stored transcripts of runs, in this order, until `max_bytes` are reached (at least one if there is
        any), with one question to the store. Runs without one are passed over."""

    def list_runs(self, query: RunQuery) -> RunPage:
        """Return one page of runs. Raises InputInvalid `cursor_invalid`."""

    def list_unfinished(self, shard: int) -> list[Head]:
        """Return every run of this shard that is not terminal, oldest first."""

    def list_changed(self, shard: int, known: Mapping[str, int]) -> list[Head]:
        """Return the unfinished runs of this shard whose rows are newer than their versions in `known`, or not in it,
        oldest first: what transactions of other shards have changed (P12)."""

    def list_destroy_pending(self, shard: int) -> list[Head]:
        """Return every run of this shard that has ended and whose sandbox is not known to be destroyed (P19)."""

    def list_reapable(self, shard: int, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:
        """Return at most `limit` runs of this shard of which `stage` is what the reaper does next, and was due by
        `before_ms`; those that have been due for longest first (`core/reaping.py`). Of those to account for, none whose
        sandbox is still to be destroyed: nothing can be done about it, and others are not to wait behind it."""

    def find_active(self, owner: str, thread_id: str) -> Head | None:
        """Return the newest run of the thread that is `running` and not queued (design 8, `activeRun`)."""

    def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """Return the thread's runs, oldest first; empty for an unknown thread."""

    def check(self) -> Mapping[str, Any]:
        """Return facts about durability and reachability for `doctor` and `/readyz`."""

    def close(self) -> None:
        """Release everything. Idempotent."""


# --- shard -----------------------------------------------------------------------------------------------------


class Pulse(Struct, frozen=True, kw_only=True):
    """What a driver is told in every answer of its shard (P13)."""

    superseded_by: int | None = None  # a newer epoch: stop
    cancel_requested: bool = False
    handover: bool = False
    closed: bool = False

    @classmethod
    def of(cls, head: Head, epoch: int) -> Pulse:
        """Return what the stored `head` means for the driver at `epoch`."""
        return cls(
            superseded_by=head.driver_epoch if head.driver_epoch != epoch else None,
            cancel_requested=head.cancel_requested,
            handover=epoch > 0 and head.handover_epoch == epoch,
            closed=head.closed,
        )


class Sealed(Struct, frozen=True, kw_only=True):
    """A sealed segment: positions [`start`, `end`); `ref` is opaque to all but the port that made it.

    In a reply, a segment may begin before the position that the reader has reached: skip what lies before it."""

    start: int
    end: int
    ref: Any


class ReadReply(Struct, frozen=True, kw_only=True):
    """What lies past the asked position: first sealed segments in order, then `tail`, joined by 0x0A.

    `tail` starts at `tail_start` and holds `tail_count` chunks; `next` is the position after everything in this
    reply. `closed` means that the log ends at `next`. `known` is False for a run that does not exist.
    """

    shard_epoch: int
    known: bool
    start: int
    next: int
    closed: bool
    segments: tuple[Sealed, ...] = ()
    tail_start: int = 0
    tail_count: int = 0
    tail: bytes = b""
    generation: int = 0
    gone: bool = False  # the log is not kept any more; nothing of it is in this reply


class Due(Struct, frozen=True, kw_only=True):
    """A run that needs the supervisor's eye: its lease has expired, it was never claimed, or it is queued and
    cancelled. `expected_epoch` is what the decision must rest on (P1)."""

    head: Head
    why: str  # lease_expired | never_claimed | queued_cancelled | handover | cancel


class LogPort(Protocol):
    """One shard from outside. Any call may raise StoreError; a shard that is gone or replaced shows as
    StoreUnavailable, and the caller asks again: every call may be repeated (I9)."""

    async def submit(self, op: Op) -> Outcome:
        """Decide and store one operation; answered when durable."""

    async def pulse(self, run_id: str, epoch: int, tick: int) -> Pulse:
        """Renew the lease of `epoch`; a `tick` that did not move for OUTLAST_HANG_S renews nothing (P13)."""

    async def read(self, run_id: str, after: int, wait_s: float, inline: bool = False) -> ReadReply:
        """Return what lies past `after`; with nothing there, park up to `wait_s` (at most 25 s). `inline` answers
        from the store alone, without segments (P14)."""

    async def record(self, run_id: str) -> tuple[Head, RunSpec] | None:
        """Return the record as stored."""

    async def batches(self, run_id: str, after: int) -> list[Batch]:
        """Return the next stored batches past `after`, a page of a few MB at most; empty at the end. Of a log
        that is not kept any more, its beginning or nothing: ask `record` afterwards."""


class ShardPort(LogPort, Protocol):
    """A shard, as the gateway and the supervisor see it: a LogPort with the questions that are not a driver's."""

    async def attach(self, run_id: str, viewer: str, number: int) -> bool:
        """A viewer of replica `viewer` came (P20): `detachedSince` is clear when this returns. `number` grows with
        every call of that replica. False: unknown run."""

    async def set_viewers(self, viewer: str, number: int, counts: Mapping[str, int]) -> None:
        """Replace the whole set of runs that replica `viewer` has viewers of; void after 5 s (P20)."""

    async def due(self, wait_s: float) -> list[Due]:
        """Return the runs that need the supervisor now; with none, park up to `wait_s`."""

    async def unfinished(self) -> list[Head]:
        """Return every run of this shard that is not terminal."""

    async def destroy_pending(self) -> list[Head]:
        """Return every ended run of this shard whose sandbox is not known to be destroyed (P19)."""

    async def reapable(self, stage: ReapStage, before_ms: int, limit: int) -> list[Head]:
        """Return the runs of this shard whose `stage` was due by then, longest due first."""

    async def drop_log(self, run_id: str) -> int:
        """Remove a stretch of a log that was given up; see `Store.drop_log`."""

    async def list_runs(self, query: RunQuery) -> RunPage:
        """Return one page of runs."""

    async def find_active(self, owner: str, thread_id: str) -> Head | None:
        """Return the thread's active run."""

    async def list_thread(self, owner: str, thread_id: str) -> list[tuple[Head, RunSpec]]:
        """Return the thread's runs, oldest first."""

    async def stderr(self, run_id: str) -> bytes | None:
        """Return the stored stderr tail."""

    async def transcripts(self, run_ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        """Return the stored transcripts of runs, which may be other shards', in this order until `max_bytes` are
        reached. A run that has none (yet) is left out, and so are those that were not read any more."""

    async def refusals(self, run_id: str) -> list[Refused]:
        """Return what was refused to superseded drivers of the run, as far as this incarnation remembers."""

    async def stats(self) -> dict[str, Any]:
        """Return counters and facts: `epoch`, `appends`, `reads`, `segment_reads`, `runs`, `viewers`, `store` (the
        store's `check()`), and what `engine/story.py` counts."""


# --- supervisor ------------------------------------------------------------------------------------------------


class SupervisorPort(Protocol):
    """The supervisor, as gateway and command line see it. Every call may be repeated and may raise
    StoreUnavailable while the supervisor is being replaced; none is needed for safety: what is lost is found by
    lease (I7)."""

    async def start(self, run_id: str) -> None:
        """A run was created or un-queued: give it a driver now."""

    async def ensure(self, run_id: str) -> None:
        """A viewer attached: make sure that someone drives. Returns at once; never fails because driving failed."""

    async def cancel(self, run_id: str) -> None:
        """A cancel was recorded: tell the driver, or make one that ends the run (P21)."""

    async def takeover(self, run_id: str) -> int:
        """Replace the driver because a person says so; return the epoch that is replaced. Raises RunEnded."""

    async def watch(self, replica: str, wait_s: float) -> bool:
        """A gateway replica's ping: park up to `wait_s`, return whether streams are to be cut now (drain)."""

    async def drain(self) -> None:
        """Tell every replica to cut its streams so that clients reconnect; returns when told."""

    async def drain_node(self, node: str, within_s: float) -> dict[str, Any]:
        """Have a node drained, unless it is already; return `{nodeId, deadline, left: {name: why}, gone}`: what is
        still on it. `node`: its id, the beginning of it, its address or host name.

        Raises InputInvalid `node_unknown`, and `node_refused` for the node of `serve` or of Ray's head."""

    async def node_of(self, provider: str, key: str) -> str:
        """Return the id of a node that reaches the sandbox's host. Raises SandboxUnreachable while there is none."""

    async def reap(self, dry_run: bool) -> dict[str, Any]:
        """Sweep once, now, and return the report (`engine/reaping.py`); `dry_run`: only look. What is recorded goes on
        when the answer is there, whether it came to its end within it or not."""

    async def status(self) -> dict[str, Any]:
        """Return `{epoch, actors: [{name, nodeId, pid, alive}], takeovers, takeoverSeconds}`."""


class Cluster(Protocol):
    """The way to everything that is not in this process."""

    def shard(self, run_id: str) -> ShardPort:
        """Return the shard that serves the run."""

    def shards(self) -> Sequence[ShardPort]:
        """Return every shard, in order."""

    def supervisor(self) -> SupervisorPort:
        """Return the supervisor."""

    def result(self, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        """Yield a run's result as `Results.read_result` does, from a node of its host."""


__all__ = [
    "Capabilities",
    "CarriesCalls",
    "Clock",
    "Cluster",
    "Due",
    "Ending",
    "FileChange",
    "Harness",
    "KeepsSessions",
    "LaunchSpec",
    "LendsTools",
    "LogPort",
    "Pulse",
    "ReadReply",
    "Results",
    "Resumable",
    "RunPage",
    "RunQuery",
    "Sandbox",
    "SandboxProvider",
    "Sealed",
    "SessionFile",
    "ShardPort",
    "Store",
    "SupervisorPort",
    "TellsDiff",
    "TellsMaking",
    "ToolServer",
    "Translator",
    "WatchesFiles",
    "WholeDiff",
]
