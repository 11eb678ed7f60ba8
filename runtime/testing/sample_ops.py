"""Operations for tests, short to write: every field that a test does not speak of has a plain value."""

from __future__ import annotations

from typing import Any

from runtime.core import chunk
from runtime.core.batch import Band, Batch, pack_ends
from runtime.core.checkpoint import Checkpoint
from runtime.core.ops import Append, ClaimRun, Create, Finish, RequestCancel
from runtime.core.record import CancelReason, Claimant, ClaimReason, RunSpec, Status

OWNER = "owner"
RUN = "run-1"
THREAD = "thread-1"


def spec(text: str = "hello", **changes: Any) -> RunSpec:
    """Return a spec of the `shell` harness whose one message is `text`."""
    fields: dict[str, Any] = {
        "harness": "shell",
        "translator_version": 1,
        "provider": "local",
        "input": {"messages": [text]},
    }
    return RunSpec(**(fields | changes))


def create(run_id: str = RUN, thread_id: str = THREAD, **changes: Any) -> Create:
    """Return the creation of a run; the digest is a function of run, thread and owner unless given."""
    owner = changes.setdefault("owner", OWNER)
    changes.setdefault("digest", chunk.digest(f"{owner}/{thread_id}/{run_id}".encode()))
    return Create(run_id=run_id, thread_id=thread_id, **({"spec": spec()} | changes))


def claim(
    expected: int = 0, who: str = "driver", run_id: str = RUN, reason: ClaimReason = ClaimReason.START
) -> ClaimRun:
    """Return the claim of epoch `expected + 1` by process `who`."""
    claimant = Claimant(claimant=who, actor_id=f"actor-of-{who}", boot_id="boot", pid=1000, pid_started_at=5)
    return ClaimRun(run_id=run_id, expected_epoch=expected, claimant=claimant, reason=reason)


def text(word: str) -> bytes:
    """Return one chunk that holds `word`."""
    return chunk.encode({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": word})


def live(seq: int, epoch: int, *words: str, run_id: str = RUN, key: str | None = None) -> Batch:
    """Return a batch of the live band with one chunk for each word."""
    data = b"\n".join(text(word) for word in words)
    return Batch(run_id=run_id, seq=seq, count=len(words), epoch=epoch, band=Band.LIVE, data=data, key=key)


def journal(seq: int, epoch: int, *words: str, run_id: str = RUN, start: int = 0) -> Batch:
    """Return a batch of the journal band: one chunk for each word, from lines of 100 bytes that begin at `start`."""
    data = b"\n".join(text(word) for word in words)
    ends = pack_ends([start + 100 * (place + 1) for place in range(len(words))])
    return Batch(run_id=run_id, seq=seq, count=len(words), epoch=epoch, band=Band.JOURNAL, data=data, ends=ends)


def append(batch: Batch, max_log_bytes: int = 0, checkpoint: Checkpoint | None = None) -> Append:
    """Return the append of `batch`."""
    return Append(batch=batch, max_log_bytes=max_log_bytes, checkpoint=checkpoint)


def checkpoint(batch: Batch, **changes: Any) -> Checkpoint:
    """Return a checkpoint that fits the append of `batch`, unless it is changed."""
    fields: dict[str, Any] = {
        "run_id": batch.run_id,
        "epoch": batch.epoch,
        "seq": batch.next_seq,
        "position": 100 * batch.next_seq,
        "journal_chunks": batch.next_seq - 1,
        "journal_id": "the journal",
        "lookback": bytes(range(32)),
        "harness": "shell",
        "translator_version": 1,
        "translator": b"\x00\xff state",
        "open_items": b"{}",
    }
    return Checkpoint(**(fields | changes))


def ending(seq: int, epoch: int, run_id: str = RUN) -> Batch:
    """Return the last batch of a log: one terminal chunk."""
    data = chunk.run_finished(run_id, THREAD)
    return Batch(run_id=run_id, seq=seq, count=1, epoch=epoch, band=Band.LIVE, data=data)


def nothing(seq: int, epoch: int, run_id: str = RUN) -> Batch:
    """Return the empty batch with which an interrupted run is ended."""
    return Batch(run_id=run_id, seq=seq, count=0, epoch=epoch, band=Band.LIVE, data=b"")


def finish(
    seq: int,
    epoch: int,
    status: Status = Status.COMPLETED,
    run_id: str = RUN,
    batch: Batch | None = None,
    **changes: Any,
) -> Finish:
    """Return the finish whose batch is `ending` at `seq`, unless another is given."""
    return Finish(batch=batch if batch is not None else ending(seq, epoch, run_id), status=status, **changes)


def cancel(run_id: str = RUN, reason: CancelReason = CancelReason.USER, **changes: Any) -> RequestCancel:
    """Return a cancel."""
    return RequestCancel(run_id=run_id, reason=reason, **changes)
