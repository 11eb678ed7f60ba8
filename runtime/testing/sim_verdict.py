"""What must be true when a simulated history is over: each log against the world's journal and against its readers."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.core import chunk
from runtime.core.batch import Band, Batch
from runtime.core.record import CancelReason, Head, Status
from runtime.ports import Store
from runtime.testing.sim_agent import translate
from runtime.testing.sim_check import Checker
from runtime.testing.sim_world import PREFIX, World

# From the note that a run holds nothing any more to the sweep that tells of it, which may fail once.
TOLD_S = 12.0


@dataclass(slots=True)
class Session:
    """What one connection of one viewer was sent: `chunks` from position `start` on."""

    viewer: str
    run_id: str
    start: int
    chunks: list[bytes] = field(default_factory=list)
    closed: bool = False
    gone: bool = False  # it was told that the log is not kept any more
    generation: int | None = None  # once something was read


# (run, key) -> positions that the callers of an outside effect were told.
Emitted = dict[tuple[str, str], set[int]]


def judge(checker: Checker, store: Store, world: World, sessions: list[Session], emitted: Emitted) -> None:
    """Record a breach for everything that does not hold."""
    logs: dict[str, list[bytes]] = {}
    for run_id in checker.runs:
        stored = store.read_run(run_id)
        if stored is None:
            checker.breach("I2", f"{run_id}: its record is gone")
            continue
        batches = checker.pruning.log(run_id)
        checker.pruning.judge(stored[0])
        logs[run_id] = [data for batch in batches for data in batch.chunks()]
        _judge_log(checker, stored[0], batches, logs[run_id])
        _judge_journal(checker, stored[0], batches, world)
        _judge_code(checker, stored[0])
        _judge_world(checker, stored[0], world)
    for (run_id, key), positions in emitted.items():
        places = {at for at, data in enumerate(logs.get(run_id, []), 1) if data == chunk.custom("effect", key)}
        if run_id not in checker.loss.runs and (len(places) > 1 or not positions <= places):
            checker.breach("P8", f"{run_id}: effect {key} is at {places}, its callers were told {positions}")
    for session in sessions:
        stored = store.read_run(session.run_id)
        if stored is not None and stored[0].generation == session.generation:
            _judge_session(checker, session, logs.get(session.run_id, []))


def _judge_log(checker: Checker, head: Head, batches: list[Batch], log: list[bytes]) -> None:
    run_id, at, epoch = head.run_id, 0, 0
    for batch in batches:
        if batch.seq != at or batch.count != len(batch.chunks()):
            checker.breach("I3", f"{run_id}: a batch at {batch.seq} of {batch.count} follows {at}")
        if batch.epoch < epoch:
            checker.breach("I1", f"{run_id}: epoch {batch.epoch} at {batch.seq} follows epoch {epoch}")
        at, epoch = batch.next_seq, batch.epoch
    if at != head.next_seq:
        checker.breach("I3", f"{run_id}: the record says {head.next_seq} chunks, the log has {at}")
    for seq, data in checker.runs[run_id].acknowledged.items():
        if data not in [batch.data for batch in batches if batch.seq == seq]:
            checker.breach("I2", f"{run_id}: what was acknowledged at {seq} is not there")
    # A closed log stays in its generation, but a run that asks has no ending yet: its epoch is raised.
    raised = checker.loss.happened and run_id in checker.questions.asked
    if head.generation or raised or run_id in checker.loss.runs:
        if sorted({claim.epoch for claim in head.claims}) != [claim.epoch for claim in head.claims]:
            checker.breach("I1", f"{run_id}: claims {[claim.epoch for claim in head.claims]}")
    elif [claim.epoch for claim in head.claims] != list(range(1, len(head.claims) + 1)) or (
        len(head.claims) != head.driver_epoch
    ):
        checker.breach("I1", f"{run_id}: claims {[claim.epoch for claim in head.claims]} at epoch {head.driver_epoch}")
    _judge_ending(checker, head, log)


def _judge_ending(checker: Checker, head: Head, log: list[bytes]) -> None:
    run_id = head.run_id
    kinds = [chunk.chunk_type(data) for data in log]
    terminals = [at for at, kind in enumerate(kinds) if kind in chunk.TERMINAL_TYPES]
    if not head.status.terminal:
        checker.breach("I7", f"{run_id}: still {head.status}, queued={head.queued}, epoch {head.driver_epoch}")
    if terminals != ([len(log) - 1] if head.status.terminal else []):
        checker.breach("I5", f"{run_id}: {head.status} with terminal chunks at {terminals} of {len(log)}")
    if not head.status.terminal == head.closed == (head.finished_at is not None) == (head.finish is not None):
        checker.breach("I5", f"{run_id}: {head.status}, closed={head.closed}, finished at {head.finished_at}")
    well = head.status is Status.COMPLETED or run_id in checker.questions.asked  # which ends with its question
    if terminals and (kinds[-1] == chunk.RUN_FINISHED) != well:
        checker.breach("I5", f"{run_id}: {head.status}, but its log ends with {kinds[-1]}")
    opened: dict[str, None] = {}
    for data in log:
        event = chunk.decode_chunk(data)
        if event["type"] == "TEXT_MESSAGE_START":
            opened[event["messageId"]] = None
        elif event["type"] == "TEXT_MESSAGE_END":
            opened.pop(event["messageId"], None)
    _judge_reaping(checker, head)
    if opened and head.status.terminal:
        checker.breach("P9", f"{run_id}: ended with messages {list(opened)} open")


def _judge_reaping(checker: Checker, head: Head) -> None:
    """An expired run says so; what ended unwatched was told of, if it holds nothing any more."""
    expired = head.cancel_reason is CancelReason.DETACHED_EXPIRED
    code = head.error.code if head.error is not None else None
    if expired and head.status.terminal and code not in ("detached_expired", "sandbox_unreachable"):
        checker.breach("P22", f"{head.run_id}: expired, but its code is {code}")
    told = head.reaped or head.destroy_pending or checker.noted_within(head.run_id, TOLD_S)
    if head.status.terminal and head.detached_since is not None and not told:
        checker.breach("P22", f"{head.run_id}: ended while nobody watched, and nobody tells of it")


def _judge_journal(checker: Checker, head: Head, batches: list[Batch], world: World) -> None:
    """Each line of the journal once, in order; all of it if the agent's own exit ended the run."""
    journal = bytes(world.journals.get(head.run_id, b""))
    expected = translate(head.run_id, head.thread_id, journal)
    band = [data for batch in batches if batch.band is Band.JOURNAL for data in batch.chunks()]
    if band != expected[: len(band)] and not _was_told(head, band, world.told.get(head.run_id, b"")):
        at = next(
            (at for at, pair in enumerate(zip(band, expected, strict=False)) if pair[0] != pair[1]), len(expected)
        )
        checker.breach("I4", f"{head.run_id}: journal chunk {at} of {len(band)} is not what the journal says")
    elif head.exit_code is not None and len(band) != len(expected):
        checker.breach("I3", f"{head.run_id}: {len(band)} of the journal's {len(expected)} chunks were stored")


def _judge_code(checker: Checker, head: Head) -> None:
    """A translator is deterministic, and a journal that a crash has cut is `agent_lost`: nothing diverges (P24)."""
    if head.error is not None and head.error.code == "journal_diverged":
        checker.breach("P24", f"{head.run_id}: {head.error.message}")


def _was_told(head: Head, band: list[bytes], told: bytes) -> bool:
    """Return whether the band is what somebody read before a crash cut the journal, up to whatever byte."""
    return any(
        band == translate(head.run_id, head.thread_id, told[:end])[: len(band)] for end in range(len(told), 0, -1)
    )


def _judge_world(checker: Checker, head: Head, world: World) -> None:
    run_id = head.run_id
    if world.started[run_id] > 1 and run_id not in checker.loss.runs:
        checker.breach("P15", f"{run_id}: {world.started[run_id]} agents were started")
    if head.status is Status.COMPLETED and not world.started[run_id]:
        checker.breach("P15", f"{run_id}: completed without an agent")
    box = world.boxes.get(PREFIX + run_id)
    if box is not None and box.launch_file and head.status.terminal:
        pending = f"destroyPending {head.destroy_pending}, agent alive {box.agent_alive}"
        checker.breach("P19", f"{run_id}: {head.status}, and its sandbox was not given back ({pending})")
    if box is not None and head.status.terminal and not head.destroy_pending:
        checker.breach("P22", f"{run_id}: {head.status}, and a sandbox is left that nobody will ever look after")


def _judge_session(checker: Checker, session: Session, log: list[bytes]) -> None:
    who = f"{session.run_id}: {session.viewer} from {session.start}"
    end = session.start + len(session.chunks)
    if session.chunks != log[session.start : end]:
        checker.breach("I3", f"{who} got something else than the log says")
    if session.closed and end != len(log):
        checker.breach("I3", f"{who} was told that the log ends at {end}, it ends at {len(log)}")
