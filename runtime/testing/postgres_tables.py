"""The tables of the PostgreSQL store in memory, and what each of its statements does to them.

Written from the SQL in `postgres_schema.py` and `postgres_function.py`, and held to it by the same kit that the real
server is held to. One statement is one transaction: it sees what was committed before, and happens whole or not at
all. When it has looked and not yet written, others' statements may come (`Query.between`): those that want a row which
it has locked do not get it, as after `lock_timeout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

from psycopg.errors import LockNotAvailable, UniqueViolation

from runtime.stores import postgres_schema as sql
from runtime.stores.codec import decode_head
from runtime.stores.postgres_durability import READ_SERVER
from runtime.stores.postgres_function import CALL, HUGE
from runtime.stores.postgres_loss import LIST_OPEN, RAISE, READ_HISTORY
from runtime.testing.postgres_rows import FIRST_HISTORY, Locks, Query, Row, Rows, Values

DROPPED_AT_ONCE = 2  # of a log that is removed: few, so that others see it in between


class Tables:
    """What is committed. `answer` runs one statement."""

    def __init__(self, shards: int) -> None:
        self.shards = dict.fromkeys(range(shards), 0)
        self.supervisor: tuple[int, str] = (0, "")
        self.runs: dict[str, Row] = {}  # in the order of creation
        self.specs: dict[str, bytes] = {}
        self.batches: dict[str, dict[int, tuple[Any, ...]]] = {}  # by seq, which only grows
        self.stderr: dict[str, bytes] = {}
        self.transcripts: dict[str, bytes] = {}
        self.marks: dict[str, bytes] = {}
        self.owned: dict[tuple[str, int], int] = {}  # by owner and shard
        self.generation = 0
        self.history = FIRST_HISTORY  # as `meta` has it
        self.server: Callable[[], tuple[str | None, int]] = lambda: (
            FIRST_HISTORY,
            0,
        )  # its own (None: a standby), its clock
        self.locks: dict[object, Locks] = {}  # by session
        self._statements: dict[str, Callable[[Values], Rows]] = {
            sql.TAKE_SHARD: self._take_shard,
            sql.READ_ONLY: lambda _: [("on",)],
            sql.FIND_META: lambda _: [("outlast.meta",)],
            sql.READ_META: lambda _: [("simulated", sql.SCHEMA_VERSION, shards)],
            READ_SERVER: lambda _: [("a model", True, True, "on", "", False, 0, 0)],
            sql.READ_ROWS: lambda values: [_short(row) for row in self.runs.values() if row.run_id in values[0]],
            sql.READ_SPEC: lambda values: [(self.specs[run],) for run in values if run in self.specs],
            sql.READ_HOLDER: lambda values: [_short(row) for row in self.of_thread(*values) if row.active],
            sql.READ_QUEUE: lambda values: [_short(row) for row in self.queue(*values)],
            sql.COUNT_UNFINISHED: lambda _: [(self.unfinished(),)],
            sql.COUNT_OWNED: lambda values: [(self.unfinished(*values),)],
            sql.READ_OWNED: lambda values: [(self._owned(values["owner"]),)],
            sql.READ_SUPERVISOR: lambda _: [self.supervisor],
            sql.READ_BATCH_AT: self._batch_at,
            sql.READ_BATCH_BY_KEY: self._batch_by_key,
            sql.READ_RECORD: lambda values: [self._record(row) for row in self._named(values[0])],
            sql.LIST_THREAD: lambda values: [self._record(row) for row in self.of_thread(*values)],
            sql.FIND_ACTIVE: lambda values: _heads(
                row for row in self.of_thread(*values) if row.active and row.status == "running"
            ),
            sql.LIST_UNFINISHED: lambda values: _heads(row for row in self._of_shard(*values) if not row.terminal),
            sql.LIST_CHANGED: self._list_changed,
            sql.LIST_DESTROY_PENDING: lambda values: _heads(row for row in self._of_shard(*values) if row.to_destroy),
            sql.LIST_REAPABLE: self._list_reapable,
            sql.DROP_END: self._drop_end,
            sql.READ_STDERR: lambda values: [(self.stderr[run],) for run in values if run in self.stderr],
            sql.READ_TRANSCRIPT: lambda values: [(self.transcripts[run],) for run in values if run in self.transcripts],
            sql.READ_TRANSCRIPTS: self._read_transcripts,
            sql.READ_CHECKPOINT: lambda values: [(self.marks[run],) for run in values if run in self.marks],
            sql.LIST_BATCHES: self._list_batches,
            sql.COUNT_RUNS: lambda _: [(len(self.runs),)],
            sql.READ_GENERATION: lambda _: [(self.generation,)],
            LIST_OPEN: lambda _: [(row.run_id, row.version, row.head) for row in self._open()],
            RAISE: lambda values: [(self._raise(values),)],
        }
        for owner, status, thread in product((False, True), repeat=3):
            statement = sql.list_runs(by_owner=owner, by_status=status, by_thread=thread)
            self._statements[statement] = self._list_runs

    def answer(self, query: Query) -> Rows:
        """Run one statement to its end. Raises UniqueViolation, LockNotAvailable, and what `between` raises; KeyError
        for a statement that the store has not."""
        if query.statement == CALL:
            return [write_group(self, query)]
        if query.statement == READ_HISTORY:
            return [self._history(*query.values)]
        return self._statements[query.statement](query.values)

    def copy(self) -> Tables:
        """Return what is committed now, as a standby or a copy of the data folder has it."""
        twin = Tables(len(self.shards))
        twin.shards, twin.supervisor = dict(self.shards), self.supervisor
        twin.runs = {run_id: replace(row) for run_id, row in self.runs.items()}
        twin.specs, twin.stderr, twin.marks = dict(self.specs), dict(self.stderr), dict(self.marks)
        twin.transcripts = dict(self.transcripts)
        twin.batches = {run_id: dict(batches) for run_id, batches in self.batches.items()}
        twin.owned = dict(self.owned)
        twin.generation, twin.history, twin.server = self.generation, self.history, self.server
        return twin

    @contextmanager
    def locking(self, wanted: Locks, by: object) -> Iterator[None]:
        """Keep others from these rows. Raises LockNotAvailable if another session has one of them."""
        self.refuse_locked(wanted)
        self.locks[by] = wanted
        try:
            yield
        finally:
            self.locks.pop(by, None)

    def refuse_locked(self, wanted: Locks) -> None:
        """Raise LockNotAvailable if a session has locked one of these rows."""
        if any(wanted.conflict(locked) for locked in self.locks.values()):
            raise LockNotAvailable("canceling statement due to lock timeout")

    # --- what more than one statement asks ---

    def of_thread(self, owner: str, thread_id: str) -> Iterable[Row]:
        """Return a thread's runs, oldest first."""
        return [row for row in self.runs.values() if row.thread == (owner, thread_id)]

    def queue(self, owner: str, thread_id: str, depth: int) -> list[Row]:
        """Return the first `depth` runs that wait for a thread."""
        return [row for row in self.of_thread(owner, thread_id) if row.queued and not row.terminal][:depth]

    def unfinished(self, owner: str | None = None) -> int:
        """Return how many runs are not terminal, of all owners or of one."""
        return sum(not row.terminal and owner in (None, row.owner) for row in self.runs.values())

    def with_key(self, run_id: str, key: bytes) -> Rows:
        """Return the batch of a run that has a key."""
        return [batch for batch in self.batches.get(run_id, {}).values() if batch[5] == key]

    def _owned(self, owner: str) -> int:
        settled = sum(held for (of, _), held in self.owned.items() if of == owner)
        unfinished = (row for row in self.runs.values() if row.owner == owner and not row.terminal)
        return settled + sum(decode_head(row.head).log_bytes for row in unfinished)

    def _named(self, run_id: str) -> list[Row]:
        return [self.runs[run_id]] if run_id in self.runs else []

    def _of_shard(self, shard: int) -> Iterable[Row]:
        return [row for row in self.runs.values() if row.shard == shard]

    def _record(self, row: Row) -> tuple[Any, ...]:
        return row.ordinal, row.head, self.specs[row.run_id]

    def _open(self) -> list[Row]:
        return sorted((row for row in self.runs.values() if not row.terminal), key=lambda row: row.run_id)

    # --- statements of more than one line ---

    def _history(self, shard: int, run_ids: list[str], versions: list[int]) -> tuple[Any, ...]:
        stored = [self.runs[run_id].version if run_id in self.runs else -1 for run_id in run_ids]
        missing = sum(have < known for have, known in zip(stored, versions, strict=True))
        return self.generation, self.history, *self.server(), self.shards.get(shard), missing

    def _raise(self, values: Values) -> bool:
        """Do what the function `outlast.raise_generation` does."""
        self.refuse_locked(Locks({"meta", "supervisor", *map(_shard_row, self.shards), *map(_run_row, self.runs)}))
        open_runs = self._open()
        seen = dict(zip(values["runs"], values["versions"], strict=True))
        if self.generation != values["seen_generation"] or {row.run_id: row.version for row in open_runs} != seen:
            return False
        generation = self.generation = values["generation"]
        for row, head in zip(open_runs, values["heads"], strict=True):
            row.version, row.head = row.version + 1, head
        self.shards = {shard: max(epoch + 1, generation) for shard, epoch in self.shards.items()}
        self.supervisor = (max(self.supervisor[0] + 1, generation), "")
        self.history = values["history"] or self.history
        return True

    def _take_shard(self, values: Values) -> Rows:
        _, shard = values
        if shard not in self.shards:
            return []
        self.refuse_locked(Locks({_shard_row(shard)}))
        self.shards[shard] += 1
        return [(self.shards[shard],)]

    def _batch_at(self, values: Values) -> Rows:
        run_id, seq = values
        found = self.batches.get(run_id, {}).get(seq)
        return [] if found is None else [found]

    def _batch_by_key(self, values: Values) -> Rows:
        return self.with_key(*values)

    def _list_changed(self, values: Values) -> Rows:
        run_ids, versions, shard = values
        known = dict(zip(run_ids, versions, strict=True))
        rows = (row for row in self._of_shard(shard) if not row.terminal)
        return _heads(row for row in rows if row.version > known.get(row.run_id, -1))

    def _list_reapable(self, values: Values) -> Rows:
        shard, stage, before, limit = values
        rows = [row for row in self._of_shard(shard) if row.reap[0] == stage and (row.reap[1] or 0) <= before]
        if stage == "account":
            rows = [row for row in rows if not row.to_destroy]
        return _heads(sorted(rows, key=lambda row: (row.reap[1], row.ordinal))[:limit])

    def _drop_end(self, values: Values) -> Rows:
        run_id, most, _ = values
        given_up = any(row.reap[0] == "drop" for row in self._named(run_id))
        batches = self.batches.get(run_id, {}) if given_up else {}
        newest = sorted(batches)[-min(most, DROPPED_AT_ONCE) :]
        for seq in newest:
            del batches[seq]
        return [(min(newest, default=0),)]

    def _list_batches(self, values: Values) -> Rows:
        size = 0
        page: Rows = []
        for batch in self.batches.get(values["run_id"], {}).values():
            if batch[0] + batch[1] > values["after"] and (not page or size < values["max_bytes"]):
                page.append(batch)
                size += len(batch[7])
        return page

    def _read_transcripts(self, values: Values) -> Rows:
        run_ids, left = values
        page: Rows = []
        for run_id in run_ids:
            if run_id in self.transcripts and left > 0:
                page.append((run_id, self.transcripts[run_id]))
                left -= len(self.transcripts[run_id])
        return page

    def _list_runs(self, values: Values) -> Rows:
        wanted = [
            row
            for row in reversed(self.runs.values())
            if values["owner"] in (None, row.owner)
            and row.ordinal < values["below"]
            and values["status"] in (None, row.status)
            and values["thread_id"] in (None, row.thread_id)
        ]
        return [self._record(row) for row in wanted[: values["limit"]]]


def _short(row: Row) -> tuple[Any, ...]:
    return row.run_id, row.shard, row.version, row.head


def _heads(rows: Iterable[Row]) -> Rows:
    return [(row.head,) for row in rows]


# --- write_group ---------------------------------------------------------------------------------------------------


def write_group(tables: Tables, query: Query) -> tuple[int, bool]:
    """Do what the function `outlast.write_group` does. Raises what `answer` does: then nothing is written."""
    group = query.values
    here = tables.shards.get(group["p_shard"])
    if here is None or here != group["p_epoch"]:
        return here or 0, False
    with tables.locking(locked_rows(tables, group), query.by):
        if not as_believed(tables, group):
            return here, False
        query.between()
        refuse_twins(tables, group)
        write_rows(tables, group)
    return here, True


def _shard_row(shard: int) -> str:
    return f"shard {shard}"


def _run_row(run_id: str) -> str:
    return f"run {run_id}"


def locked_rows(tables: Tables, group: Mapping[str, Any]) -> Locks:
    """Return what a group locks: its shard's row, those of runs, and those that say who the supervisor is and how many
    runs there may be, if it changes that. Who the supervisor is may be read by several at once."""
    rows = {_shard_row(group["p_shard"]), *(_run_row(run_id) for run_id in group["seen_runs"] if run_id in tables.runs)}
    if group["supervisor_epoch"] >= 0:
        rows.add("supervisor")
    if group["count_most"] < HUGE or group["count_owners"]:
        rows.add("meta")
    return Locks(rows, {"supervisor"} if group["seen_supervisor"] >= 0 else set())


def as_believed(tables: Tables, group: Mapping[str, Any]) -> bool:
    """Return whether all that the group's decisions rest on is still so."""
    if group["seen_supervisor"] not in (-1, tables.supervisor[0]):
        return False
    for run_id, version in _columns(group, "seen_runs", "seen_versions"):
        row = tables.runs.get(run_id)
        if (-1 if row is None else row.version) != version:
            return False
    for owner, thread_id, holder in _columns(group, "held_owners", "held_threads", "held_by"):
        if "".join(row.run_id for row in tables.of_thread(owner, thread_id) if row.active) != holder:
            return False
    for owner, thread_id, depth, run_ids in _columns(
        group, "queue_owners", "queue_threads", "queue_depths", "queue_runs"
    ):
        if "\n".join(row.run_id for row in tables.queue(owner, thread_id, depth)) != run_ids:
            return False
    if any(tables.with_key(run_id, key) for run_id, key in _columns(group, "key_runs", "key_names")):
        return False
    for owner, least, most in _columns(group, "count_owners", "owner_leasts", "owner_mosts"):
        if not least <= tables.unfinished(owner) <= most:
            return False
    least, most = int(group["count_least"]), int(group["count_most"])
    return (least <= 0 and most >= HUGE) or least <= tables.unfinished() <= most


def refuse_twins(tables: Tables, group: Mapping[str, Any]) -> None:
    """Raise UniqueViolation where an index of the schema would: `run_active` row by row, as it is checked."""
    holders = {row.thread: row.run_id for row in tables.runs.values() if row.active}
    for run_id, terminal, queued in _in_order_of_writing(group):
        row = tables.runs[run_id]
        if holders.get(row.thread) == run_id:
            del holders[row.thread]
        if not terminal and not queued and holders.setdefault(row.thread, run_id) != run_id:
            raise UniqueViolation("run_active")
    names = ("new_runs", "new_owners", "new_threads", "new_terminals", "new_queueds")
    for run_id, owner, thread_id, terminal, queued in _columns(group, *names):
        if run_id in tables.runs:
            raise UniqueViolation("run_run_id_key")
        if not terminal and not queued and holders.setdefault((owner, thread_id), run_id) != run_id:
            raise UniqueViolation("run_active")
    for run_id, seq, key in _columns(group, "batch_runs", "batch_seqs", "batch_keys"):
        if seq in tables.batches.get(run_id, {}):
            raise UniqueViolation("batch_pkey")
        if key is not None and tables.with_key(run_id, key):
            raise UniqueViolation("batch_key")


def _in_order_of_writing(group: Mapping[str, Any]) -> Rows:
    """Return the heads that change: whoever lets go of a thread before whoever takes it."""
    changes = list(_columns(group, "head_runs", "head_terminals", "head_queueds"))
    return sorted(changes, key=lambda change: not (change[1] or change[2]))


def write_rows(tables: Tables, group: Mapping[str, Any]) -> None:
    """Write what a group writes, once it is known that it may."""
    names = ("runs", "statuses", "terminals", "queueds", "destroys", "stages", "dues", "versions")
    for run_id, status, terminal, queued, to_destroy, stage, due, version, head in _columns(
        group, *(f"head_{name}" for name in names), "heads"
    ):
        row = tables.runs[run_id]
        row.status, row.terminal, row.queued, row.to_destroy = status, terminal, queued, to_destroy
        row.reap, row.version, row.head = (stage, due), version, head
    for run_id, status, terminal, queued, to_destroy, stage, due, version, head, spec, owner, thread_id in _columns(
        group, *(f"new_{name}" for name in names), "new_heads", "new_specs", "new_owners", "new_threads"
    ):
        tables.runs[run_id] = Row(
            ordinal=len(tables.runs) + 1,
            run_id=run_id,
            owner=owner,
            thread_id=thread_id,
            shard=group["p_shard"],
            status=status,
            terminal=terminal,
            queued=queued,
            to_destroy=to_destroy,
            reap=(stage, due),
            version=version,
            head=head,
        )
        tables.specs[run_id] = spec
    parts = ("seqs", "ns", "epochs", "bands", "firsts", "keys", "ends", "data")
    for run_id, seq, *rest in _columns(group, "batch_runs", *(f"batch_{part}" for part in parts)):
        tables.batches.setdefault(run_id, {})[seq] = (seq, *rest)
    _replace(tables.stderr, _columns(group, "stderr_runs", "stderr_tails"))
    _replace(tables.transcripts, _columns(group, "transcript_runs", "transcripts"))
    _replace(tables.marks, _columns(group, "mark_runs", "marks"))
    for owner, change in _columns(group, "owned_owners", "owned_changes"):
        place = owner, group["p_shard"]
        tables.owned[place] = tables.owned.get(place, 0) + change
    if group["supervisor_epoch"] >= 0:
        tables.supervisor = group["supervisor_epoch"], group["supervisor_claimant"]


def _replace(rows: dict[str, bytes], columns: Iterable[tuple[Any, ...]]) -> None:
    for run_id, stored in columns:
        if stored is None:
            rows.pop(run_id, None)
        else:
            rows[run_id] = stored


def _columns(group: Mapping[str, Any], *names: str) -> Iterable[tuple[Any, ...]]:
    return zip(*(group[name] for name in names), strict=True)
