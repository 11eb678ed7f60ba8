"""What lies in the golden files of the store, and how they were written: `python tests/store_golden.py`.

`golden/store-v1.sql` is a store of schema 1 as SQL text; `golden/head-v1.json` and `spec-v1.json` are one head and one
spec. They are what version 0.1.0 wrote, and are never written again: a new form of what is stored gets new files
beside them, and all stay readable. `golden/claims-v2.json` is that head with claims that tell their end and their last
append, `golden/head-v3.json` that one in another generation, `golden/checkpoint-v1.bin` a checkpoint.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec

from runtime.core.batch import Batch
from runtime.core.checkpoint import encode as encode_checkpoint
from runtime.core.ops import Attach, Note, Op, OpenSupervisor
from runtime.core.record import (
    CancelReason,
    Claim,
    Claimant,
    ClaimEnd,
    ClaimReason,
    FinishMark,
    Head,
    Kept,
    Launch,
    Limits,
    Notice,
    OnDisconnect,
    Reaped,
    RunError,
    RunSpec,
    Status,
)
from runtime.stores import codec
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.sample_ops import append, cancel, checkpoint, claim, create, finish, journal, live

GOLDEN = Path(__file__).parent / "golden"
STORE, HEAD, SPEC = GOLDEN / "store-v1.sql", GOLDEN / "head-v1.json", GOLDEN / "spec-v1.json"
CLAIMS = GOLDEN / "claims-v2.json"
RAISED = GOLDEN / "head-v3.json"
REAPED = GOLDEN / "head-v4.json"
HEARD = GOLDEN / "head-v5.json"
PRUNED = GOLDEN / "head-v6.json"
OWING = GOLDEN / "head-v7.json"
LISTENED = GOLDEN / "head-v8.json"
KEEPING, KEEPING_SPEC = GOLDEN / "head-v9.json", GOLDEN / "spec-v9.json"
CHECKPOINT = GOLDEN / "checkpoint-v1.bin"

BATCHES: list[Batch] = [
    journal(1, 1, "a\u2028\U0001f600", "b", start=100),
    live(3, 1, "emitted", key="emit-1"),
    journal(4, 2, "c", start=300),
]

A_CHECKPOINT = checkpoint(journal(4, 2, "c", start=300), translator=b"\x00\xff state", open_items=b'{"open":[]}')

# Every field of version 1 has another value than its default, every field of now in A_KEEPING_HEAD.
A_HEAD = Head(
    run_id="run-1",
    thread_id="thread-1",
    owner="owner",
    digest="d" * 64,
    created_at=1_700_000_000_000,
    status=Status.FAILED,
    queued=True,
    queued_at=1_700_000_000_001,
    started_at=1_700_000_000_002,
    finished_at=1_700_000_000_003,
    error=RunError(message="it broke: \u2028 \ud83d", code="agent_exit"),
    exit_code=3,
    signal=9,
    usage={"input_tokens": 2**70, "cost": 0.25},
    driver_epoch=2,
    next_seq=7,
    log_bytes=700,
    closed=True,
    finish=FinishMark(epoch=2, seq=6, digest="failed:1:" + "e" * 64),
    cancel_requested=True,
    cancel_reason=CancelReason.DETACHED_EXPIRED,
    handover_epoch=1,
    detached_since=1_700_000_000_004,
    sandbox_key="local:machine:run-1",
    launch=Launch.INTENDED,
    destroy_pending=True,
    attempts_without_progress=2,
    last_assigned_at=1_700_000_000_005,
    last_assignment="4.17",
    claims=(
        Claim(
            epoch=1,
            claimant=Claimant(
                claimant="c1", actor_id="a1", node_id="n1", boot_id="b1", pid=4242, pid_started_at=123456789
            ),
            reason=ClaimReason.START,
            claimed_at=1_700_000_000_002,
            first_append_at=1_700_000_000_003,
            ended_at=1_700_000_000_004,
            chunks=5,
        ),
        Claim(
            epoch=2, claimant=Claimant(claimant="c2"), reason=ClaimReason.LEASE_EXPIRED, claimed_at=1_700_000_000_004
        ),
    ),
    version=11,
)
A_TOLD_HEAD = msgspec.structs.replace(
    A_HEAD,
    claims_without_progress=2,
    claims=tuple(
        msgspec.structs.replace(A_HEAD.claims[0], epoch=epoch, end=end, last_append_at=1_700_000_000_003 + epoch)
        for epoch, end in enumerate(ClaimEnd, 1)
    ),
)
A_RAISED_HEAD = msgspec.structs.replace(A_TOLD_HEAD, generation=1_700_000_000_009)
A_REAPED_HEAD = msgspec.structs.replace(A_RAISED_HEAD, detached_ttl_s=3, reaped=Reaped.EXPIRED)
A_HEARD_HEAD = msgspec.structs.replace(A_REAPED_HEAD, heard_at=1_700_000_000_006)
A_PRUNED_HEAD = msgspec.structs.replace(A_HEARD_HEAD, transcript=True, kept=Kept.TRANSCRIPT)
AN_OWING_HEAD = msgspec.structs.replace(
    A_PRUNED_HEAD, notice=Notice(attempts=2, due_at=1_700_000_000_007, done=("webhook:a",))
)
A_LISTENED_HEAD = msgspec.structs.replace(AN_OWING_HEAD, heard_to=1 << 40)
A_KEEPING_HEAD = msgspec.structs.replace(A_LISTENED_HEAD, sandbox_kept_until=1_700_000_000_008)
A_SPEC = RunSpec(
    harness="claude-code",
    translator_version=3,
    provider="local",
    input={"messages": [{"role": "user", "content": "h\u00e9llo \ud83d", "n": 2**70}], "forwardedProps": {}},
    on_disconnect=OnDisconnect.CANCEL,
    limits=Limits(run_limit_s=1, idle_limit_s=2, detached_ttl_s=3, max_log_bytes=4, max_line_bytes=5),
)
A_KEEPING_SPEC = msgspec.structs.replace(A_SPEC, keep_alive_s=4)


HEADS = (
    (HEAD, A_HEAD),
    (CLAIMS, A_TOLD_HEAD),
    (RAISED, A_RAISED_HEAD),
    (REAPED, A_REAPED_HEAD),
    (HEARD, A_HEARD_HEAD),
    (PRUNED, A_PRUNED_HEAD),
    (OWING, AN_OWING_HEAD),
    (LISTENED, A_LISTENED_HEAD),
    (KEEPING, A_KEEPING_HEAD),
)
SPECS = ((SPEC, A_SPEC), (KEEPING_SPEC, A_KEEPING_SPEC))


def history() -> list[Op]:
    """Return what was done in the golden store, from UTC ms 1000 on, one millisecond apart."""
    return [
        create("run-1", "thread-1", spec=A_SPEC),
        OpenSupervisor(claimant="supervisor"),
        claim(0, "a", "run-1"),
        Note(run_id="run-1", epoch=1, sandbox_key="local:machine:run-1", launch=Launch.INTENDED),
        append(BATCHES[0]),
        append(BATCHES[1]),
        create("run-2", "thread-1", on_busy="enqueue"),
        claim(1, "b", "run-1", ClaimReason.DRIVER_LOST),
        append(BATCHES[2]),
        Attach(run_id="run-1"),
        finish(5, 2, Status.FAILED, error=A_HEAD.error, exit_code=3, usage=A_HEAD.usage, stderr=b"\xff\x00tail"),
        cancel("run-2", CancelReason.USER),
    ]


def fill(path: Path) -> None:
    """Make a store with `history` in it."""
    create_store(path, "golden")
    with closing(SqliteStore(path)) as store:
        epoch = store.open_shard(0, "golden")
        for place, op in enumerate(history()):
            store.commit(0, epoch, [op], 1000 + place)


def write() -> None:
    """Write the golden files that are not there."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        fill(path)
        with closing(sqlite3.connect(path)) as connection:
            (application_id,) = connection.execute("PRAGMA application_id").fetchone()
            text = "\n".join([f"PRAGMA application_id = {application_id};", *connection.iterdump(), ""])
    for golden, content in (
        (STORE, text.encode()),
        *((golden, codec.encode(value)) for golden, value in (*HEADS, *SPECS)),
        (CHECKPOINT, encode_checkpoint(A_CHECKPOINT)),
    ):
        if not golden.exists():
            golden.write_bytes(content)


if __name__ == "__main__":
    write()
