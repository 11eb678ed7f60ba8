"""All SQL of the PostgreSQL store but `write_group`: the schema with its migrations, and every statement, named.

Layout. Everything lies in the schema `outlast` of a database that is this deployment's alone. `run` holds what changes
(the head as JSON in bytes, beside it what is searched), `spec` what never does. Bytes and not `jsonb`: what a client
sent must come back as it was, and `jsonb` refuses some of it. A head is rewritten by each append: the columns of no
index change then, and a page keeps room, so that PostgreSQL writes no index (HOT). Chunks are stored as they are
(`EXTERNAL`): compressing them would cost more time in each commit than everything else.

Deliberately not: foreign keys and triggers. What may be written is decided in `core.machine`, in one place for all
stores; the unique indexes only catch a bug there, and two shards that take one thread at once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from runtime.stores import postgres_function, postgres_loss

LOCK: Final = 0x4F75746C  # "Outl": set-up's advisory lock, so that two starters make one store


class Migration(NamedTuple):
    """One step of the schema: brings a store from `version - 1` to `version`, in the transaction of the set-up."""

    version: int
    what: str
    statements: tuple[str, ...]


# `->`, since `->>` reads every string of the head.
_LOG_BYTES: Final = "(convert_from(head, 'UTF8')::json -> 'logBytes')::text::bigint"

MIGRATIONS: Final = (
    Migration(
        1,
        "runs, their logs, shards and the supervisor",
        (
            """CREATE TABLE outlast.meta (
                only_row integer PRIMARY KEY CHECK (only_row = 1),
                deployment_id text NOT NULL,
                schema_version integer NOT NULL,
                shards integer NOT NULL)""",
            """CREATE TABLE outlast.shard (
                shard integer PRIMARY KEY,
                epoch bigint NOT NULL,
                opener text NOT NULL)""",
            """CREATE TABLE outlast.supervisor (
                only_row integer PRIMARY KEY CHECK (only_row = 1),
                epoch bigint NOT NULL,
                claimant text NOT NULL)""",
            # The order of creation: for paging, queues, and as the short name of a run in other tables.
            "CREATE SEQUENCE outlast.run_ordinal",
            """CREATE TABLE outlast.run (
                ordinal bigint PRIMARY KEY,
                run_id text COLLATE "C" NOT NULL UNIQUE,
                owner text COLLATE "C" NOT NULL,
                thread_id text COLLATE "C" NOT NULL,
                shard integer NOT NULL,
                status text NOT NULL,
                terminal boolean NOT NULL,
                queued boolean NOT NULL,
                to_destroy boolean NOT NULL,
                created_at bigint NOT NULL,
                version bigint NOT NULL,
                head bytea NOT NULL) WITH (fillfactor = 60)""",
            # At most one active run per thread, whatever shards its runs are on (P12).
            "CREATE UNIQUE INDEX run_active ON outlast.run (owner, thread_id) WHERE NOT terminal AND NOT queued",
            "CREATE INDEX run_queued ON outlast.run (owner, thread_id, ordinal) WHERE NOT terminal AND queued",
            "CREATE INDEX run_unfinished ON outlast.run (shard, ordinal) WHERE NOT terminal",
            "CREATE INDEX run_to_destroy ON outlast.run (shard, ordinal) WHERE to_destroy",
            "CREATE INDEX run_of_owner ON outlast.run (owner, ordinal)",
            "CREATE INDEX run_of_thread ON outlast.run (owner, thread_id, ordinal)",
            "CREATE INDEX run_of_status ON outlast.run (owner, status, ordinal)",
            "CREATE TABLE outlast.spec (run bigint PRIMARY KEY, spec bytea NOT NULL)",
            """CREATE TABLE outlast.batch (
                run bigint NOT NULL,
                seq bigint NOT NULL,
                n integer NOT NULL,
                epoch bigint NOT NULL,
                band text NOT NULL,
                first_index integer NOT NULL,
                key bytea,
                ends bytea NOT NULL,
                data bytea NOT NULL,
                PRIMARY KEY (run, seq))""",
            "ALTER TABLE outlast.batch ALTER COLUMN data SET STORAGE EXTERNAL",
            # By its digest: an index takes no key of any length.
            "CREATE UNIQUE INDEX batch_key ON outlast.batch (run, sha256(key)) WHERE key IS NOT NULL",
            "CREATE TABLE outlast.stderr (run bigint PRIMARY KEY, tail bytea NOT NULL)",
            # What a run's newest checkpoint is (P25): replaced by appends, so a page keeps room.
            "CREATE TABLE outlast.checkpoint (run bigint PRIMARY KEY, stored bytea NOT NULL) WITH (fillfactor = 60)",
            postgres_function.CREATE,
            # Where a page of batches ends: at the first that brings it to so many bytes. Looks at no data.
            """CREATE FUNCTION outlast.page_end(p_run bigint, p_first bigint, p_bytes bigint) RETURNS bigint
                LANGUAGE plpgsql STABLE AS $body$
                DECLARE
                    b record;
                    last bigint := -1;
                    size bigint := 0;
                BEGIN
                    FOR b IN SELECT seq, length(data) AS bytes FROM outlast.batch
                        WHERE run = p_run AND seq >= p_first ORDER BY seq LOOP
                        last := b.seq;
                        size := size + b.bytes;
                        EXIT WHEN size >= p_bytes;
                    END LOOP;
                    RETURN last;
                END $body$""",
        ),
    ),
    Migration(2, "shards that make runs at once keep the bound on all runs", (postgres_function.CREATE,)),
    Migration(
        3,
        "what ended runs said, kept longer than their logs",
        (
            "CREATE TABLE outlast.transcript (run bigint PRIMARY KEY, stored bytea NOT NULL)",
            postgres_function.REMOVE,
            postgres_function.CREATE,
        ),
    ),
    Migration(
        4,
        "the generation of offsets, and the history that it belongs to",
        (
            "ALTER TABLE outlast.meta ADD COLUMN generation bigint NOT NULL DEFAULT 0",
            "ALTER TABLE outlast.meta ADD COLUMN history text NOT NULL DEFAULT ''",
            postgres_loss.CREATE_RAISE,
        ),
    ),
    Migration(
        5,
        "what the reaper does next, and when",
        (
            "ALTER TABLE outlast.run ADD COLUMN reap_stage text, ADD COLUMN reap_due bigint",
            # Runs that go on get theirs with the next claim. `->`, since `->>` reads every string of the head.
            """UPDATE outlast.run SET reap_stage = 'prune', reap_due = coalesce(
                nullif((convert_from(head, 'UTF8')::json -> 'finishedAt')::text, 'null')::bigint, created_at)
                WHERE terminal""",
            "CREATE INDEX run_to_reap ON outlast.run (shard, reap_stage, reap_due) WHERE reap_stage IS NOT NULL",
            postgres_function.REMOVE,
            postgres_function.CREATE,
        ),
    ),
    Migration(
        6,
        "how many runs an owner has, among what a commit rests on",
        (postgres_function.REMOVE, postgres_function.CREATE),
    ),
    Migration(
        7,
        "logs and transcripts are kept for a time of their own",
        (
            # Heads of before do not say whether there is a transcript: their logs are kept as if there was none.
            "UPDATE outlast.run SET reap_stage = 'forget' WHERE reap_stage = 'prune'",
            postgres_function.CREATE,
        ),
    ),
    Migration(
        8,
        "what owners' logs hold",
        (
            """CREATE TABLE outlast.owned (
                owner text COLLATE "C" NOT NULL,
                shard integer NOT NULL,
                bytes bigint NOT NULL,
                PRIMARY KEY (owner, shard)) WITH (fillfactor = 60)""",
            f"""INSERT INTO outlast.owned (owner, shard, bytes)
                SELECT owner, shard, sum({_LOG_BYTES}) FROM outlast.run
                WHERE terminal AND coalesce((convert_from(head, 'UTF8')::json -> 'kept')::text, '"log"') = '"log"'
                GROUP BY owner, shard""",
            postgres_function.REMOVE,
            postgres_function.CREATE,
        ),
    ),
)
SCHEMA_VERSION: Final = MIGRATIONS[-1].version

# --- set-up and opening ----------------------------------------------------------------------------------------

# One set-up at a time; let go with the transaction.
TAKE_SETUP_LOCK: Final = f"SELECT pg_advisory_xact_lock({LOCK})"
# Whether set-up has been here: the table's name, or nothing.
FIND_META: Final = "SELECT to_regclass('outlast.meta')"
# Whether the schema is there; a database user without the right to make one may be given an empty one.
FIND_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'outlast')"
MAKE_SCHEMA: Final = "CREATE SCHEMA outlast"
# What the store was set up as (P12).
READ_META: Final = "SELECT deployment_id, schema_version, shards FROM outlast.meta"
WRITE_META: Final = "INSERT INTO outlast.meta (only_row, deployment_id, schema_version, shards) VALUES (1, %s, %s, %s)"
WRITE_SCHEMA_VERSION: Final = "UPDATE outlast.meta SET schema_version = %s"
ADD_SHARDS: Final = "INSERT INTO outlast.shard SELECT shard, 0, '' FROM generate_series(0, %s - 1) AS shard"
ADD_SUPERVISOR: Final = "INSERT INTO outlast.supervisor (only_row, epoch, claimant) VALUES (1, 0, '')"
# One epoch more, for a new incarnation of a shard (P11).
TAKE_SHARD: Final = "UPDATE outlast.shard SET epoch = epoch + 1, opener = %s WHERE shard = %s RETURNING epoch"
# Read after the shard was taken: a later one is not given to it, since it is superseded then (P10).
READ_GENERATION: Final = "SELECT generation FROM outlast.meta"
# How a writer's connection is found by others: they end it by this name.
NAME_SESSION: Final = "SELECT set_config('application_name', %s, false)"
# A reader's session. Set once it is connected: one that begins so is none to `target_session_attrs=read-write`.
READ_ONLY: Final = "SELECT set_config('default_transaction_read_only', 'on', false)"
# End the sessions of this database user whose names begin so, and wait until they are gone.
END_SESSIONS: Final = """SELECT count(pg_terminate_backend(pid, 1000)) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
    AND starts_with(application_name, %s)"""

# --- what a commit reads before it decides ---------------------------------------------------------------------

_ROW: Final = "run_id, shard, version, head"
READ_ROWS: Final = f"SELECT {_ROW} FROM outlast.run WHERE run_id = ANY(%s)"
READ_SPEC: Final = "SELECT spec FROM outlast.spec WHERE run = (SELECT ordinal FROM outlast.run WHERE run_id = %s)"
READ_HOLDER: Final = f"""SELECT {_ROW} FROM outlast.run
    WHERE owner = %s AND thread_id = %s AND NOT terminal AND NOT queued"""
READ_QUEUE: Final = f"""SELECT {_ROW} FROM outlast.run
    WHERE owner = %s AND thread_id = %s AND NOT terminal AND queued ORDER BY ordinal LIMIT %s"""
COUNT_UNFINISHED: Final = "SELECT count(*) FROM outlast.run WHERE NOT terminal"
COUNT_OWNED: Final = "SELECT count(*) FROM outlast.run WHERE NOT terminal AND owner = %s"
# What an owner's logs hold: of runs that have ended, and of the others.
READ_OWNED: Final = f"""SELECT (coalesce((SELECT sum(bytes) FROM outlast.owned WHERE owner = %(owner)s), 0) + coalesce(
    (SELECT sum({_LOG_BYTES}) FROM outlast.run WHERE owner = %(owner)s AND NOT terminal), 0))::bigint"""
READ_SUPERVISOR: Final = "SELECT epoch, claimant FROM outlast.supervisor"
_BATCH: Final = "seq, n, epoch, band, first_index, key, ends, data"
# A stored batch at its place, or by its cause: what a repeat is compared with (P7, P8).
READ_BATCH_AT: Final = f"""SELECT {_BATCH} FROM outlast.batch
    WHERE run = (SELECT ordinal FROM outlast.run WHERE run_id = %s) AND seq = %s"""
READ_BATCH_BY_KEY: Final = f"""SELECT {_BATCH} FROM outlast.batch
    WHERE run = (SELECT ordinal FROM outlast.run WHERE run_id = %s) AND sha256(key) = sha256(%s)"""

# --- what readers ask ------------------------------------------------------------------------------------------

_RECORD: Final = "SELECT r.ordinal, r.head, s.spec FROM outlast.run AS r JOIN outlast.spec AS s ON s.run = r.ordinal"
READ_RECORD: Final = f"{_RECORD} WHERE r.run_id = %s"
LIST_THREAD: Final = f"{_RECORD} WHERE r.owner = %s AND r.thread_id = %s ORDER BY r.ordinal"
FIND_ACTIVE: Final = """SELECT head FROM outlast.run
    WHERE owner = %s AND thread_id = %s AND NOT terminal AND NOT queued AND status = 'running'"""
LIST_UNFINISHED: Final = "SELECT head FROM outlast.run WHERE shard = %s AND NOT terminal ORDER BY ordinal"
# What other shards' transactions changed: rows that are newer than the versions this shard knows.
LIST_CHANGED: Final = """SELECT r.head FROM outlast.run AS r
    LEFT JOIN unnest(%s::text[], %s::bigint[]) AS known(run_id, version) ON known.run_id = r.run_id
    WHERE r.shard = %s AND NOT r.terminal AND r.version > coalesce(known.version, -1) ORDER BY r.ordinal"""
LIST_DESTROY_PENDING: Final = "SELECT head FROM outlast.run WHERE shard = %s AND to_destroy ORDER BY ordinal"
LIST_REAPABLE: Final = """SELECT head FROM outlast.run
    WHERE shard = %s AND reap_stage = %s AND reap_due <= %s AND NOT (reap_stage = 'account' AND to_destroy)
    ORDER BY reap_due, ordinal LIMIT %s"""
READ_STDERR: Final = "SELECT tail FROM outlast.stderr WHERE run = (SELECT ordinal FROM outlast.run WHERE run_id = %s)"
READ_TRANSCRIPT: Final = """SELECT stored FROM outlast.transcript
    WHERE run = (SELECT ordinal FROM outlast.run WHERE run_id = %s)"""
# Of several runs, in the order of their names here, until so many bytes are reached.
READ_TRANSCRIPTS: Final = """SELECT run_id, stored FROM (
        SELECT r.run_id, wanted.place, t.stored,
            sum(length(t.stored)) OVER (ORDER BY wanted.place) - length(t.stored) AS before
        FROM unnest(%s::text[]) WITH ORDINALITY AS wanted(run_id, place)
        JOIN outlast.run AS r ON r.run_id = wanted.run_id JOIN outlast.transcript AS t ON t.run = r.ordinal) AS page
    WHERE before < %s ORDER BY place"""
READ_CHECKPOINT: Final = """SELECT stored FROM outlast.checkpoint
    WHERE run = (SELECT ordinal FROM outlast.run WHERE run_id = %s)"""
# From the batch that holds a position on, until a bound of bytes is reached.
LIST_BATCHES: Final = f"""WITH page AS (
        SELECT r.ordinal AS run, coalesce((
            SELECT CASE WHEN b.seq + b.n > %(after)s THEN b.seq ELSE b.seq + b.n END FROM outlast.batch AS b
            WHERE b.run = r.ordinal AND b.seq <= %(after)s ORDER BY b.seq DESC LIMIT 1), 0) AS first
        FROM outlast.run AS r WHERE r.run_id = %(run_id)s)
    SELECT {_BATCH} FROM page JOIN outlast.batch USING (run)
    WHERE seq >= page.first AND seq <= outlast.page_end(page.run, page.first, %(max_bytes)s)
    ORDER BY seq"""
# Remove the newest batches of a log that was given up, so many and about so many bytes; answers how many positions are
# left. Looks at no data.
DROP_END: Final = """WITH newest AS (
        SELECT b.run, b.seq, length(b.data) AS bytes FROM outlast.run AS r JOIN outlast.batch AS b ON b.run = r.ordinal
        WHERE r.run_id = %s AND r.reap_stage = 'drop' ORDER BY b.seq DESC LIMIT %s),
    summed AS (SELECT run, seq, sum(bytes) OVER (ORDER BY seq DESC) - bytes AS after FROM newest),
    dropped AS (
        DELETE FROM outlast.batch AS b USING summed AS s WHERE b.run = s.run AND b.seq = s.seq AND s.after < %s
        RETURNING b.seq)
    SELECT coalesce(min(seq), 0) FROM dropped"""
COUNT_RUNS: Final = "SELECT count(*) FROM outlast.run"


def list_runs(*, by_owner: bool, by_status: bool, by_thread: bool) -> str:
    """Return the statement for one page, newest first. Of one owner each of the four has an index that ends in
    `ordinal`; over all owners, which is the operator's, it goes down the ordinals."""
    where = ["r.ordinal < %(below)s"]
    if by_owner:
        where.append("r.owner = %(owner)s")
    if by_status:
        where.append("r.status = %(status)s")
    if by_thread:
        where.append("r.thread_id = %(thread_id)s")
    return f"{_RECORD} WHERE {' AND '.join(where)} ORDER BY r.ordinal DESC LIMIT %(limit)s"
