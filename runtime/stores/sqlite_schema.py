"""All SQL of the SQLite store: the schema with its migrations, and every statement, named.

Layout. A run is one row in each of two tables: `run` holds what changes (its head as JSON, and beside it the columns
that are searched), `spec` what never does: an UPDATE rewrites a row with its overflow pages, and a spec may be as
large as a request body. Batches are rows of their own, found by (run, seq); `run` is the row number of the run, since
a run id may have 128 characters. Rows are appended to `batch` in commit order, which keeps big blobs out of the index.

Page size 8192: measured best for commits of one chunk (0.18 ms against 0.28 at 4096 and 0.26 at 16384, fsync included).

Deliberately not: foreign keys and triggers. What may be written is decided in `core.machine`, in one place for all
stores; the unique indexes only catch a bug there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

APPLICATION_ID: Final = 0x4F75746C  # "Outl", in the file's header: tells our file from another application's
PAGE_BYTES: Final = 8192


class Migration(NamedTuple):
    """One step of the schema: brings a store from `version - 1` to `version`, in the transaction of the set-up."""

    version: int
    what: str
    statements: tuple[str, ...]


MIGRATIONS: Final = (
    Migration(
        1,
        "runs, their logs, shards and the supervisor",
        (
            """CREATE TABLE meta (
                only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
                deployment_id TEXT NOT NULL,
                schema_version INTEGER NOT NULL,
                shards INTEGER NOT NULL)""",
            """CREATE TABLE shard (
                shard INTEGER PRIMARY KEY,
                epoch INTEGER NOT NULL,
                opener TEXT NOT NULL)""",
            """CREATE TABLE supervisor (
                only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
                epoch INTEGER NOT NULL,
                claimant TEXT NOT NULL)""",
            # `ordinal` is the order of creation: for paging, queues, and as the short name of the run in other tables.
            """CREATE TABLE run (
                ordinal INTEGER PRIMARY KEY,
                run_id TEXT NOT NULL UNIQUE,
                owner TEXT NOT NULL,
                thread_id TEXT NOT NULL,
                status TEXT NOT NULL,
                terminal INTEGER NOT NULL,
                queued INTEGER NOT NULL,
                created_at INTEGER NOT NULL,
                version INTEGER NOT NULL,
                head BLOB NOT NULL)""",
            # At most one active run per thread (P12).
            "CREATE UNIQUE INDEX run_active ON run (owner, thread_id) WHERE terminal = 0 AND queued = 0",
            "CREATE INDEX run_queued ON run (owner, thread_id, ordinal) WHERE terminal = 0 AND queued = 1",
            "CREATE INDEX run_unfinished ON run (ordinal) WHERE terminal = 0",
            "CREATE INDEX run_of_owner ON run (owner, ordinal)",
            "CREATE INDEX run_of_thread ON run (owner, thread_id, ordinal)",
            "CREATE INDEX run_of_status ON run (owner, status, ordinal)",
            "CREATE TABLE spec (run INTEGER PRIMARY KEY, spec BLOB NOT NULL)",
            """CREATE TABLE batch (
                run INTEGER NOT NULL,
                seq INTEGER NOT NULL,
                n INTEGER NOT NULL,
                epoch INTEGER NOT NULL,
                band TEXT NOT NULL,
                first_index INTEGER NOT NULL,
                key TEXT,
                ends BLOB NOT NULL,
                data BLOB NOT NULL)""",
            "CREATE UNIQUE INDEX batch_place ON batch (run, seq)",
            "CREATE UNIQUE INDEX batch_key ON batch (run, key) WHERE key IS NOT NULL",
            "CREATE TABLE stderr (run INTEGER PRIMARY KEY, tail BLOB NOT NULL)",
        ),
    ),
    Migration(
        2,
        "ended runs whose sandbox is still to be destroyed",
        ("CREATE TABLE destroy_pending (run INTEGER PRIMARY KEY)",),
    ),
    Migration(
        3,
        "where a successor may go on, for runs that go on",
        ("CREATE TABLE checkpoint (run INTEGER PRIMARY KEY, data BLOB NOT NULL)",),
    ),
    Migration(
        4,
        "what ended runs said, kept longer than their logs",
        ("CREATE TABLE transcript (run INTEGER PRIMARY KEY, data BLOB NOT NULL)",),
    ),
    Migration(
        5,
        "the generation of offsets",
        ("ALTER TABLE meta ADD COLUMN generation INTEGER NOT NULL DEFAULT 0",),
    ),
    Migration(
        6,
        "what the reaper does next, and when",
        (
            "CREATE TABLE reap (run INTEGER PRIMARY KEY, stage TEXT NOT NULL, due INTEGER NOT NULL)",
            "CREATE INDEX reap_due ON reap (stage, due)",
            # Runs that go on get theirs with the next claim; a head says so first then.
            """INSERT INTO reap (run, stage, due)
                SELECT ordinal, 'prune', coalesce(json_extract(CAST(head AS TEXT), '$.finishedAt'), created_at)
                FROM run WHERE terminal = 1""",
        ),
    ),
    Migration(
        7,
        "logs are kept for a time of their own",
        # Heads of before do not say whether there is a transcript: their logs are kept as if there was none.
        ("UPDATE reap SET stage = 'forget' WHERE stage = 'prune'",),
    ),
    Migration(
        8,
        "what owners' logs hold",
        (
            "CREATE TABLE owned (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
            """INSERT INTO owned (owner, bytes)
                SELECT owner, sum(json_extract(CAST(head AS TEXT), '$.logBytes')) FROM run
                WHERE terminal = 1 AND coalesce(json_extract(CAST(head AS TEXT), '$.kept'), 'log') = 'log'
                GROUP BY owner""",
        ),
    ),
)
SCHEMA_VERSION: Final = MIGRATIONS[-1].version

# --- connections -----------------------------------------------------------------------------------------------

# For every connection: a commit is durable when it returns (P10); checkpoints are the writer's, between transactions.
EVERY_CONNECTION: Final = ("PRAGMA synchronous = FULL", "PRAGMA wal_autocheckpoint = 0")
# For connections that only read.
READ_ONLY: Final = "PRAGMA query_only = 1"
# A WAL that once grew is cut back to this size when it is begun anew.
BOUND_WAL_FILE: Final = f"PRAGMA journal_size_limit = {64 << 20}"
# Answers "wal"; makes it so if a person changed it.
USE_WAL: Final = "PRAGMA journal_mode = WAL"
# Answers (busy, frames in the WAL, frames copied); never waits for a reader.
COPY_WAL: Final = "PRAGMA wal_checkpoint(PASSIVE)"
# Takes the write lock at once, so that what is read after it cannot change before the commit (I1).
BEGIN: Final = "BEGIN IMMEDIATE"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"

# --- set-up and opening ----------------------------------------------------------------------------------------

# Whose file it is: APPLICATION_ID if it is ours.
READ_APPLICATION_ID: Final = "PRAGMA application_id"
WRITE_APPLICATION_ID: Final = f"PRAGMA application_id = {APPLICATION_ID}"
WRITE_PAGE_SIZE: Final = f"PRAGMA page_size = {PAGE_BYTES}"
# How many tables there are: 0 in a file that set-up has not filled yet.
COUNT_TABLES: Final = "SELECT count(*) FROM sqlite_master"
# What the store was set up as (P12).
READ_META: Final = "SELECT deployment_id, schema_version, shards FROM meta"
# Set-up: what the store is, from now on.
WRITE_META: Final = "INSERT INTO meta (only_row, deployment_id, schema_version, shards) VALUES (1, ?, ?, ?)"
# Set-up: a migration was made.
WRITE_SCHEMA_VERSION: Final = "UPDATE meta SET schema_version = ?"
# Set-up: a shard that nobody has opened yet.
ADD_SHARD: Final = "INSERT INTO shard (shard, epoch, opener) VALUES (?, 0, '')"
# Set-up: nobody decides yet.
ADD_SUPERVISOR: Final = "INSERT INTO supervisor (only_row, epoch, claimant) VALUES (1, 0, '')"
# The newest epoch of a shard: checked first in every write transaction (P11).
READ_SHARD: Final = "SELECT epoch FROM shard WHERE shard = ?"
# One epoch more, for a new incarnation of a shard.
TAKE_SHARD: Final = "UPDATE shard SET epoch = epoch + 1, opener = ? WHERE shard = ?"

# --- a loss (P10) ----------------------------------------------------------------------------------------------

READ_GENERATION: Final = "SELECT generation FROM meta"
# How far a run has come that a mark names.
READ_VERSION: Final = "SELECT version FROM run WHERE ordinal = ?"
LIST_OPEN: Final = "SELECT ordinal, head FROM run WHERE terminal = 0 ORDER BY ordinal"
RAISE_META: Final = "UPDATE meta SET generation = ?"
RAISE_SHARDS: Final = "UPDATE shard SET epoch = max(epoch + 1, ?)"
RAISE_SUPERVISOR: Final = "UPDATE supervisor SET epoch = max(epoch + 1, ?), claimant = ''"

# --- what a transaction reads ----------------------------------------------------------------------------------

READ_HEAD: Final = "SELECT ordinal, head FROM run WHERE run_id = ?"
READ_SPEC: Final = "SELECT spec FROM spec WHERE run = (SELECT ordinal FROM run WHERE run_id = ?)"
# The run that holds a thread; by the unique partial index.
READ_HOLDER: Final = """SELECT ordinal, head FROM run
    WHERE owner = ? AND thread_id = ? AND terminal = 0 AND queued = 0"""
# The run that gets the thread next (P12).
READ_OLDEST_QUEUED: Final = """SELECT ordinal, head FROM run
    WHERE owner = ? AND thread_id = ? AND terminal = 0 AND queued = 1 ORDER BY ordinal LIMIT 1"""
# How many runs are not terminal, for the bound on them.
COUNT_UNFINISHED: Final = "SELECT count(*) FROM run WHERE terminal = 0"
COUNT_OWNED: Final = "SELECT count(*) FROM run WHERE terminal = 0 AND owner = ?"
# What an owner's logs hold: of runs that have ended, and of the others.
READ_OWNED: Final = """SELECT coalesce((SELECT bytes FROM owned WHERE owner = :owner), 0) + coalesce(
    (SELECT sum(json_extract(CAST(head AS TEXT), '$.logBytes')) FROM run WHERE terminal = 0 AND owner = :owner), 0)"""
READ_SUPERVISOR: Final = "SELECT epoch, claimant FROM supervisor"

_BATCH: Final = "seq, n, epoch, band, first_index, key, ends, data"
# A stored batch at its place: what a repeat is compared with (P7).
READ_BATCH_AT: Final = f"""SELECT {_BATCH} FROM batch
    WHERE run = (SELECT ordinal FROM run WHERE run_id = ?) AND seq = ?"""
# A stored batch by its cause (P8).
READ_BATCH_BY_KEY: Final = f"""SELECT {_BATCH} FROM batch
    WHERE run = (SELECT ordinal FROM run WHERE run_id = ?) AND key = ?"""

# --- what a transaction writes ---------------------------------------------------------------------------------

ADD_RUN: Final = """INSERT INTO run (run_id, owner, thread_id, status, terminal, queued, created_at, version, head)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
ADD_SPEC: Final = "INSERT INTO spec (run, spec) VALUES (?, ?)"
# A head whose searched columns stay: touches no index.
WRITE_HEAD: Final = "UPDATE run SET version = ?, head = ? WHERE ordinal = ?"
# A head that moved: its status changed, or it left the queue.
WRITE_MOVED_HEAD: Final = """UPDATE run SET status = ?, terminal = ?, queued = ?, version = ?, head = ?
    WHERE ordinal = ?"""
ADD_BATCH: Final = f"INSERT INTO batch (run, {_BATCH}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
WRITE_STDERR: Final = "INSERT OR REPLACE INTO stderr (run, tail) VALUES (?, ?)"
# What a run said, with its ending (P9).
WRITE_TRANSCRIPT: Final = "INSERT OR REPLACE INTO transcript (run, data) VALUES (?, ?)"
# A run's newest checkpoint (P25), in the transaction of its append; none once it has ended.
WRITE_CHECKPOINT: Final = "INSERT OR REPLACE INTO checkpoint (run, data) VALUES (?, ?)"
REMOVE_CHECKPOINT: Final = "DELETE FROM checkpoint WHERE run = ?"
# An ended run's sandbox is still to be destroyed; or it is known to be (P19).
ADD_DESTROY_PENDING: Final = "INSERT OR IGNORE INTO destroy_pending (run) VALUES (?)"
REMOVE_DESTROY_PENDING: Final = "DELETE FROM destroy_pending WHERE run = ?"
# What the reaper does next about a run, and from when on (P22); or nothing.
WRITE_REAP: Final = "INSERT OR REPLACE INTO reap (run, stage, due) VALUES (?, ?, ?)"
REMOVE_REAP: Final = "DELETE FROM reap WHERE run = ?"
# What a run said goes when its time is over.
REMOVE_STDERR: Final = "DELETE FROM stderr WHERE run = ?"
REMOVE_TRANSCRIPT: Final = "DELETE FROM transcript WHERE run = ?"
# The newest batches of a log that was given up, and their removal.
READ_GIVEN_UP: Final = """SELECT ordinal FROM run JOIN reap ON reap.run = ordinal
    WHERE run_id = ? AND reap.stage = 'drop'"""
LIST_NEWEST: Final = "SELECT seq, length(data) FROM batch WHERE run = ? ORDER BY seq DESC LIMIT ?"
DROP_FROM: Final = "DELETE FROM batch WHERE run = ? AND seq >= ?"
ADD_OWNED: Final = """INSERT INTO owned (owner, bytes) VALUES (?, ?)
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes"""
WRITE_SUPERVISOR: Final = "UPDATE supervisor SET epoch = ?, claimant = ?"

# --- what readers ask ------------------------------------------------------------------------------------------

_RECORD: Final = "SELECT run.ordinal, run.head, spec.spec FROM run JOIN spec ON spec.run = run.ordinal"
READ_RECORD: Final = f"{_RECORD} WHERE run.run_id = ?"
LIST_THREAD: Final = f"{_RECORD} WHERE run.owner = ? AND run.thread_id = ? ORDER BY run.ordinal"
COUNT_RUNS: Final = "SELECT count(*) FROM run"
LIST_UNFINISHED: Final = "SELECT head FROM run WHERE terminal = 0 ORDER BY ordinal"
LIST_DESTROY_PENDING: Final = "SELECT head FROM run JOIN destroy_pending ON run = ordinal ORDER BY ordinal"
LIST_REAPABLE: Final = """SELECT head FROM reap JOIN run ON ordinal = run
    WHERE stage = ? AND due <= ? AND NOT (stage = 'account' AND run IN (SELECT run FROM destroy_pending))
    ORDER BY due, run LIMIT ?"""
READ_CHECKPOINT: Final = "SELECT data FROM checkpoint WHERE run = (SELECT ordinal FROM run WHERE run_id = ?)"
READ_STDERR: Final = "SELECT tail FROM stderr WHERE run = (SELECT ordinal FROM run WHERE run_id = ?)"
READ_TRANSCRIPT: Final = "SELECT data FROM transcript WHERE run = (SELECT ordinal FROM run WHERE run_id = ?)"
# From the batch that begins at or before a position: it may hold positions past it.
LIST_BATCHES: Final = f"""SELECT {_BATCH} FROM batch
    WHERE run = (SELECT ordinal FROM run WHERE run_id = :run_id) AND seq >= coalesce(
        (SELECT max(seq) FROM batch WHERE run = (SELECT ordinal FROM run WHERE run_id = :run_id) AND seq <= :after), 0)
    ORDER BY seq"""


def list_runs(*, by_owner: bool, by_status: bool, by_thread: bool) -> str:
    """Return the statement for one page, newest first. Of one owner each of the four has an index that ends in
    `ordinal`; over all owners, which is the operator's, it goes down the ordinals."""
    where = ["run.ordinal < :below"]
    if by_owner:
        where.append("run.owner = :owner")
    if by_status:
        where.append("run.status = :status")
    if by_thread:
        where.append("run.thread_id = :thread_id")
    return f"{_RECORD} WHERE {' AND '.join(where)} ORDER BY run.ordinal DESC LIMIT :limit"
