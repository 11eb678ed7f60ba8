"""`outlast.write_group`: what one commit does inside PostgreSQL, as one statement and so as one round trip.

The decisions are made outside, by `core.machine`, on what this shard believes is stored. The function is told what
they rest on and what they write. It locks, looks whether all of it is still so, and only then writes:

    1  the shard's row           a superseded incarnation writes nothing (P11); also what makes every commit, of
                                 refusals too, a real one that waits for the disk and synchronous standbys (P7, P10)
    2  the supervisor's row      if a decision rests on it (P6)
    3  the rows of runs          in the order of run ids, so that two shards never wait for each other (P12)
    4  the row of `meta`         if a run is made under a bound on all runs: one shard at a time counts and adds, or
                                 several would take the same room
    5  threads, keys, the count  each statement sees what was committed before it began: after the locks, nobody who
                                 holds none of them can change these; what ends meanwhile only makes room

A thread's runs change only under the lock of the run that holds it; two shards that both find it free meet at the
unique index `run_active`, inserting in the order of threads.

The answer is (epoch of the shard, whether it was written). Not written means that somebody else wrote first: the shard
reads and decides again. It is so small that a client that does not read it holds no lock.
"""

from __future__ import annotations

from typing import Final

# In the order of the parameters; `View.parameters` in `postgres_view.py` makes a value for each.
PARAMETERS: Final = (
    ("p_shard", "int"),
    ("p_epoch", "bigint"),
    # What the decisions rest on. Versions: -1 for a run that is not there.
    ("seen_runs", "text[]"),
    ("seen_versions", "bigint[]"),
    ("held_owners", "text[]"),
    ("held_threads", "text[]"),
    ("held_by", "text[]"),  # '' for nobody
    ("queue_owners", "text[]"),
    ("queue_threads", "text[]"),
    ("queue_depths", "bigint[]"),
    ("queue_runs", "text[]"),  # the first so many, a line each
    ("key_runs", "text[]"),
    ("key_names", "bytea[]"),  # that are not there
    ("count_least", "bigint"),  # unfinished runs; 0 and a huge number if nobody asked
    ("count_most", "bigint"),
    ("count_owners", "text[]"),  # unfinished runs of these
    ("owner_leasts", "bigint[]"),
    ("owner_mosts", "bigint[]"),
    ("seen_supervisor", "bigint"),  # -1 if nobody asked
    # What is written: heads of runs that are there, ...
    ("head_runs", "text[]"),
    ("head_statuses", "text[]"),
    ("head_terminals", "boolean[]"),
    ("head_queueds", "boolean[]"),
    ("head_destroys", "boolean[]"),
    ("head_stages", "text[]"),  # what the reaper does next; NULL: nothing
    ("head_dues", "bigint[]"),
    ("head_versions", "bigint[]"),
    ("heads", "bytea[]"),
    # ... new runs in the order of their creation, ...
    ("new_runs", "text[]"),
    ("new_owners", "text[]"),
    ("new_threads", "text[]"),
    ("new_statuses", "text[]"),
    ("new_terminals", "boolean[]"),
    ("new_queueds", "boolean[]"),
    ("new_destroys", "boolean[]"),
    ("new_stages", "text[]"),
    ("new_dues", "bigint[]"),
    ("new_createds", "bigint[]"),
    ("new_versions", "bigint[]"),
    ("new_heads", "bytea[]"),
    ("new_specs", "bytea[]"),
    # ... batches, ends of stderr, transcripts, checkpoints (of these, NULL: none any more), the supervisor (-1: stays).
    ("batch_runs", "text[]"),
    ("batch_seqs", "bigint[]"),
    ("batch_ns", "bigint[]"),
    ("batch_epochs", "bigint[]"),
    ("batch_bands", "text[]"),
    ("batch_firsts", "bigint[]"),
    ("batch_keys", "bytea[]"),
    ("batch_ends", "bytea[]"),
    ("batch_data", "bytea[]"),
    ("stderr_runs", "text[]"),
    ("stderr_tails", "bytea[]"),
    ("transcript_runs", "text[]"),
    ("transcripts", "bytea[]"),
    ("mark_runs", "text[]"),
    ("marks", "bytea[]"),
    ("owned_owners", "text[]"),  # by how much what their ended runs' logs hold changes
    ("owned_changes", "bigint[]"),
    ("supervisor_epoch", "bigint"),
    ("supervisor_claimant", "text"),
)
HUGE: Final = (1 << 63) - 1

_BODY: Final = """
DECLARE
    here bigint;
    there bigint;
    as_seen bigint;
BEGIN
    SELECT epoch INTO here FROM outlast.shard WHERE shard = p_shard FOR NO KEY UPDATE;
    current_epoch := coalesce(here, 0);
    written := false;
    IF here IS DISTINCT FROM p_epoch THEN
        RETURN;
    END IF;
    IF supervisor_epoch >= 0 THEN
        PERFORM FROM outlast.supervisor WHERE epoch = seen_supervisor FOR NO KEY UPDATE;
        IF NOT FOUND THEN RETURN; END IF;
    ELSIF seen_supervisor >= 0 THEN
        PERFORM FROM outlast.supervisor WHERE epoch = seen_supervisor FOR SHARE;
        IF NOT FOUND THEN RETURN; END IF;
    END IF;
    IF cardinality(seen_runs) > 0 THEN
        SELECT count(*), count(*) FILTER (WHERE locked.version = seen.version) INTO there, as_seen
        FROM (SELECT run_id, version FROM outlast.run
              WHERE run_id = ANY(seen_runs) ORDER BY run_id FOR NO KEY UPDATE) AS locked
        JOIN unnest(seen_runs, seen_versions) AS seen(run_id, version) USING (run_id);
        IF there <> as_seen OR there <> (SELECT count(*) FROM unnest(seen_versions) AS v WHERE v >= 0) THEN
            RETURN;
        END IF;
    END IF;
    IF count_most < 9223372036854775807 OR cardinality(count_owners) > 0 THEN
        PERFORM FROM outlast.meta FOR NO KEY UPDATE;
    END IF;
    IF cardinality(held_by) > 0 AND EXISTS (
        SELECT FROM unnest(held_owners, held_threads, held_by) AS held(owner, thread, by)
        LEFT JOIN outlast.run AS r
            ON r.owner = held.owner AND r.thread_id = held.thread AND NOT r.terminal AND NOT r.queued
        WHERE held.by <> coalesce(r.run_id, '')) THEN
        RETURN;
    END IF;
    IF cardinality(queue_runs) > 0 AND EXISTS (
        SELECT FROM unnest(queue_owners, queue_threads, queue_depths, queue_runs) AS queue(owner, thread, depth, runs)
        WHERE queue.runs <> coalesce((
            SELECT string_agg(first.run_id, E'\\n' ORDER BY first.ordinal) FROM (
                SELECT r.run_id, r.ordinal FROM outlast.run AS r
                WHERE r.owner = queue.owner AND r.thread_id = queue.thread AND NOT r.terminal AND r.queued
                ORDER BY r.ordinal LIMIT queue.depth) AS first), '')) THEN
        RETURN;
    END IF;
    IF cardinality(key_runs) > 0 AND EXISTS (
        SELECT FROM unnest(key_runs, key_names) AS absent(run_id, key)
        JOIN outlast.run AS r USING (run_id)
        JOIN outlast.batch AS b ON b.run = r.ordinal AND sha256(b.key) = sha256(absent.key)) THEN
        RETURN;
    END IF;
    IF count_least > 0 OR count_most < 9223372036854775807 THEN
        SELECT count(*) INTO there FROM outlast.run WHERE NOT terminal;
        IF there < count_least OR there > count_most THEN RETURN; END IF;
    END IF;
    IF cardinality(count_owners) > 0 AND EXISTS (
        SELECT FROM unnest(count_owners, owner_leasts, owner_mosts) AS counted(owner, least, most)
        WHERE (SELECT count(*) FROM outlast.run AS r WHERE r.owner = counted.owner AND NOT r.terminal)
            NOT BETWEEN counted.least AND counted.most) THEN
        RETURN;
    END IF;

    -- Whoever lets go of a thread is written before whoever takes it: the index is checked row by row.
    IF cardinality(head_runs) > 0 THEN
        UPDATE outlast.run AS r
        SET status = h.status, terminal = h.terminal, queued = h.queued, to_destroy = h.to_destroy,
            reap_stage = h.reap_stage, reap_due = h.reap_due, version = h.version, head = h.head
        FROM unnest(head_runs, head_statuses, head_terminals, head_queueds, head_destroys, head_stages,
            head_dues, head_versions, heads)
            AS h(run_id, status, terminal, queued, to_destroy, reap_stage, reap_due, version, head)
        WHERE r.run_id = h.run_id AND (h.terminal OR h.queued);
        UPDATE outlast.run AS r
        SET status = h.status, terminal = h.terminal, queued = h.queued, to_destroy = h.to_destroy,
            reap_stage = h.reap_stage, reap_due = h.reap_due, version = h.version, head = h.head
        FROM unnest(head_runs, head_statuses, head_terminals, head_queueds, head_destroys, head_stages,
            head_dues, head_versions, heads)
            AS h(run_id, status, terminal, queued, to_destroy, reap_stage, reap_due, version, head)
        WHERE r.run_id = h.run_id AND NOT (h.terminal OR h.queued);
    END IF;
    IF cardinality(new_runs) > 0 THEN
        WITH numbered AS MATERIALIZED (
            SELECT nextval('outlast.run_ordinal') AS ordinal, n.* FROM unnest(new_runs, new_owners, new_threads,
                new_statuses, new_terminals, new_queueds, new_destroys, new_stages, new_dues, new_createds,
                new_versions, new_heads, new_specs) AS n(run_id, owner, thread_id, status, terminal, queued,
                to_destroy, reap_stage, reap_due, created_at, version, head, spec)),
        made AS (
            INSERT INTO outlast.run (ordinal, run_id, owner, thread_id, shard, status, terminal, queued, to_destroy,
                reap_stage, reap_due, created_at, version, head)
            SELECT ordinal, run_id, owner, thread_id, p_shard, status, terminal, queued, to_destroy, reap_stage,
                reap_due, created_at, version, head
            FROM numbered ORDER BY owner COLLATE "C", thread_id COLLATE "C", ordinal)
        INSERT INTO outlast.spec (run, spec) SELECT ordinal, spec FROM numbered;
    END IF;
    IF cardinality(batch_runs) > 0 THEN
        INSERT INTO outlast.batch (run, seq, n, epoch, band, first_index, key, ends, data)
        SELECT r.ordinal, b.seq, b.n, b.epoch, b.band, b.first_index, b.key, b.ends, b.data
        FROM unnest(batch_runs, batch_seqs, batch_ns, batch_epochs, batch_bands, batch_firsts, batch_keys, batch_ends,
            batch_data) AS b(run_id, seq, n, epoch, band, first_index, key, ends, data)
        LEFT JOIN outlast.run AS r USING (run_id);
    END IF;
    IF cardinality(stderr_runs) > 0 THEN
        INSERT INTO outlast.stderr (run, tail)
        SELECT r.ordinal, s.tail FROM unnest(stderr_runs, stderr_tails) AS s(run_id, tail)
        LEFT JOIN outlast.run AS r USING (run_id) WHERE s.tail IS NOT NULL
        ON CONFLICT (run) DO UPDATE SET tail = excluded.tail;
        DELETE FROM outlast.stderr WHERE run IN (
            SELECT r.ordinal FROM unnest(stderr_runs, stderr_tails) AS s(run_id, tail)
            JOIN outlast.run AS r USING (run_id) WHERE s.tail IS NULL);
    END IF;
    IF cardinality(transcript_runs) > 0 THEN
        INSERT INTO outlast.transcript (run, stored)
        SELECT r.ordinal, t.stored FROM unnest(transcript_runs, transcripts) AS t(run_id, stored)
        LEFT JOIN outlast.run AS r USING (run_id) WHERE t.stored IS NOT NULL
        ON CONFLICT (run) DO UPDATE SET stored = excluded.stored;
        DELETE FROM outlast.transcript WHERE run IN (
            SELECT r.ordinal FROM unnest(transcript_runs, transcripts) AS t(run_id, stored)
            JOIN outlast.run AS r USING (run_id) WHERE t.stored IS NULL);
    END IF;
    IF cardinality(mark_runs) > 0 THEN
        INSERT INTO outlast.checkpoint (run, stored)
        SELECT r.ordinal, m.stored FROM unnest(mark_runs, marks) AS m(run_id, stored)
        LEFT JOIN outlast.run AS r USING (run_id) WHERE m.stored IS NOT NULL
        ON CONFLICT (run) DO UPDATE SET stored = excluded.stored;
        DELETE FROM outlast.checkpoint WHERE run IN (
            SELECT r.ordinal FROM unnest(mark_runs, marks) AS m(run_id, stored)
            JOIN outlast.run AS r USING (run_id) WHERE m.stored IS NULL);
    END IF;
    -- A row of this shard's own: shards that end runs of one owner at once do not wait for each other.
    IF cardinality(owned_owners) > 0 THEN
        INSERT INTO outlast.owned AS o (owner, shard, bytes)
        SELECT c.owner, p_shard, c.change FROM unnest(owned_owners, owned_changes) AS c(owner, change)
        ON CONFLICT (owner, shard) DO UPDATE SET bytes = o.bytes + excluded.bytes;
    END IF;
    IF supervisor_epoch >= 0 THEN
        UPDATE outlast.supervisor SET epoch = supervisor_epoch, claimant = supervisor_claimant;
    END IF;
    written := true;
END
"""

# A store of an older schema has an older body: a change here needs a migration that runs this again; one of the
# parameters, `REMOVE` before it, or there would be two functions.
REMOVE: Final = """DO $body$
    DECLARE found regprocedure;
    BEGIN
        FOR found IN SELECT oid::regprocedure FROM pg_proc
            WHERE pronamespace = 'outlast'::regnamespace AND proname = 'write_group' LOOP
            EXECUTE 'DROP FUNCTION ' || found;
        END LOOP;
    END $body$"""
CREATE: Final = (
    "CREATE OR REPLACE FUNCTION outlast.write_group("
    + ", ".join(f"{name} {kind}" for name, kind in PARAMETERS)
    + f", OUT current_epoch bigint, OUT written boolean) LANGUAGE plpgsql AS $body${_BODY}$body$"
)
# Named casts, so that the driver's choice of integer width does not matter; arrays go in binary form.
CALL: Final = (
    "SELECT current_epoch, written FROM outlast.write_group("
    + ", ".join(f"%({name})b::{kind}" for name, kind in PARAMETERS)
    + ")"
)
