"""One group of operations of the PostgreSQL store: what the machine sees, what it writes, and on what it relied.

A View of a transaction that has not begun yet. The first time, it believes what this shard remembers, that a new run is
not there and that its thread is free: then a group costs one round trip. `write_group` (`postgres_function.py`) is told
each belief and writes only if all are true. If one is not, the next View is `fresh` and asks before it believes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runtime.core import checkpoint as checkpoints
from runtime.core import reaping
from runtime.core.batch import Band, Batch
from runtime.core.decision import Decision, SupervisorRow
from runtime.core.ops import Create, DigestDiffers, Joined, Op, Outcome, TooManyRuns
from runtime.core.owned import kept_bytes, settled_change
from runtime.core.record import Head, RunSpec
from runtime.stores import postgres_schema as sql
from runtime.stores.codec import decode_spec, encode
from runtime.stores.postgres_connection import Session
from runtime.stores.postgres_function import HUGE
from runtime.stores.postgres_memory import Memory, Stored

Thread = tuple[str, str]  # owner, thread id


class PostgresView:
    """What one group sees, its own earlier writes included. Raises psycopg.Error when it has to ask."""

    def __init__(self, session: Session, memory: Memory, *, fresh: bool, generation: int = 0) -> None:
        self._session = session
        self._generation = generation
        self._memory = memory
        self._fresh = fresh
        # What was believed to be stored.
        self.seen: dict[str, Stored | None] = {}
        self._held: dict[Thread, str] = {}
        self._queues: dict[Thread, tuple[int, list[str]]] = {}  # asked to this depth
        self._absent_keys: set[tuple[str, str]] = set()
        # By owner, and of all under None: what was read, and the least and most that decisions bear.
        self._counts: dict[str | None, int] = {}
        self._bounds: dict[str | None, tuple[int, int]] = {}
        self._owned: dict[str, int] = {}
        self._seen_supervisor = -1
        # What is written on top.
        self.written: dict[str, Head] = {}
        self.created: dict[str, RunSpec] = {}
        self.supervisor_row: SupervisorRow | None = None
        self._heads: dict[str, bytes] = {}
        self._specs: dict[str, bytes] = {}
        self._batches: list[tuple[Batch, bytes | None]] = []
        self._stderr: dict[str, bytes | None] = {}
        self._transcripts: dict[str, bytes | None] = {}
        self._checkpoints: dict[str, bytes | None] = {}

    def prefetch(self, ops: Sequence[Op]) -> None:
        """Read, in one statement, the runs of `ops` that are not remembered. Creations are believed to be new."""
        new = set() if self._fresh else {run_of(op) for op in ops if isinstance(op, Create)}
        runs = dict.fromkeys(map(run_of, ops))
        wanted = [run_id for run_id in runs if run_id and run_id not in new and run_id not in self._memory.rows]
        if wanted:
            self._remember(self._session.execute(sql.READ_ROWS, (wanted,)).fetchall())

    # --- what the machine asks ---

    def head(self, run_id: str) -> Head | None:
        """Return the run's head."""
        return self.written.get(run_id) or self._stored(run_id)

    def spec(self, run_id: str) -> RunSpec:
        """Return the spec of a run that exists; it never changes."""
        spec = self.created.get(run_id) or self._memory.specs.get(run_id)
        if spec is None:
            row = self._session.execute(sql.READ_SPEC, (run_id,)).fetchone()
            assert row is not None
            spec = decode_spec(row[0])
        return spec

    def batch_at(self, run_id: str, seq: int) -> Batch | None:
        """Return the batch that starts at `seq`. What is stored below the head's `next_seq` never changes."""
        for batch, _ in self._batches:
            if batch.seq == seq and batch.run_id == run_id:
                return batch
        stored = self._stored(run_id)
        if stored is None or seq >= stored.next_seq:
            return None
        return self._one_batch(run_id, sql.READ_BATCH_AT, seq)

    def batch_by_key(self, run_id: str, key: str) -> Batch | None:
        """Return the live batch with this key."""
        for batch, _ in self._batches:
            if batch.key == key and batch.run_id == run_id:
                return batch
        if self._stored(run_id) is None:
            return None
        found = self._one_batch(run_id, sql.READ_BATCH_BY_KEY, key_bytes(key)) if self._fresh else None
        if found is None:
            self._absent_keys.add((run_id, key))
        return found

    def holder(self, owner: str, thread_id: str) -> Head | None:
        """Return the active run of the thread (not terminal, not queued)."""
        for head in self._mine((owner, thread_id)):
            if head.active:
                return head
        thread = (owner, thread_id)
        if thread not in self._held:
            rows = self._session.execute(sql.READ_HOLDER, thread).fetchall() if self._fresh else []
            self._held[thread] = "".join(self._remember(rows))
        run_id = self._held[thread]
        return None if not run_id or run_id in self.written else self._stored(run_id)

    def oldest_queued(self, owner: str, thread_id: str) -> Head | None:
        """Return the run of the thread that has been queued longest."""
        thread = (owner, thread_id)
        mine = list(self._mine(thread))
        depth = 1 + len(mine)
        if self._queues.get(thread, (0, []))[0] < depth:
            rows = self._session.execute(sql.READ_QUEUE, (*thread, depth)).fetchall() if self._fresh else []
            self._queues[thread] = (depth, self._remember(rows))
        for run_id in self._queues[thread][1]:
            head = self.head(run_id)
            if head is not None and head.queued and not head.status.terminal:
                return head
        waiting = (head for head in mine if head.run_id in self.created and head.queued)
        return next((head for head in waiting if not head.status.terminal), None)

    def unfinished_runs(self, owner: str | None = None) -> int:
        """Return how many runs are not terminal; `_bind_count` says what of it a decision rests on."""
        if owner not in self._counts:
            query = (sql.COUNT_UNFINISHED, ()) if owner is None else (sql.COUNT_OWNED, (owner,))
            row = self._session.execute(*query).fetchone() if self._fresh else (0,)
            assert row is not None
            self._counts[owner] = int(row[0])
        return self._counts[owner] + self._added(owner)

    def owned_bytes(self, owner: str) -> int:
        """Return what the owner's logs hold. Always asked, and no decision is bound to it: the bound is on growth that
        lasts, and a run more or less that begins at it is none."""
        if owner not in self._owned:
            row = self._session.execute(sql.READ_OWNED, {"owner": owner}).fetchone()
            assert row is not None
            self._owned[owner] = int(row[0])
        mine = ((self._stored(run_id), head) for run_id, head in self.written.items() if head.owner == owner)
        change = sum(kept_bytes(head) - (0 if stored is None else kept_bytes(stored)) for stored, head in mine)
        return self._owned[owner] + change

    def supervisor(self) -> SupervisorRow:
        """Return the current supervisor; epoch 0 before the first."""
        if self.supervisor_row is not None:
            return self.supervisor_row
        if self._memory.supervisor is None:
            row = self._session.execute(sql.READ_SUPERVISOR).fetchone()
            assert row is not None
            self._memory.supervisor = SupervisorRow(epoch=row[0], claimant=row[1])
        self._seen_supervisor = self._memory.supervisor.epoch
        return self._memory.supervisor

    def generation(self) -> int:
        """Return the generation of new runs (P10): of a shard that is not superseded, it is the store's."""
        return self._generation

    # --- what it was told ---

    def apply(self, op: Op, decision: Decision) -> None:
        """Take what the decision says, or nothing of it. Raises TypeError or ValueError for what has no stored form."""
        heads = decision.heads if decision.created is None else (*decision.heads, decision.created[0])
        encoded = {head.run_id: encode(head) for head in heads}
        batch = None if decision.batch is None else _storable(decision.batch)
        mark = decision.checkpoint
        stored_mark = None if mark is None else checkpoints.encode(mark)
        if decision.created is not None:
            head, spec = decision.created
            for text in (head.run_id, head.owner, head.thread_id):
                _refuse_text(text)
            self._specs[head.run_id] = encode(spec)
            self.created[head.run_id] = spec
        if isinstance(op, Create) and not op.resumes and not isinstance(decision.outcome, Joined | DigestDiffers):
            self._bind_counts(op, decision.outcome)
        self._heads.update(encoded)
        self.written.update({head.run_id: head for head in heads})
        if batch is not None:
            self._batches.append(batch)
        if decision.stderr is not None:
            self._stderr[decision.heads[0].run_id] = decision.stderr
        if decision.transcript is not None:
            self._transcripts[decision.heads[0].run_id] = decision.transcript
        if mark is not None:
            self._checkpoints[mark.run_id] = stored_mark
        if decision.ended:
            self._checkpoints[decision.heads[0].run_id] = None
        if decision.forgotten:
            self._stderr[decision.heads[0].run_id] = self._transcripts[decision.heads[0].run_id] = None
        if decision.supervisor is not None:
            _refuse_text(decision.supervisor.claimant)
            self.supervisor_row = decision.supervisor

    def known(self, shard: int) -> Iterable[Head]:
        """Return the records of this shard's runs that are stored once the group is: those that it rests on, too."""
        for run_id, row in self.seen.items():
            if row is not None and row.shard == shard and run_id not in self.written and row.looked_at is not None:
                yield row.looked_at
        for run_id, head in self.written.items():
            seen = self.seen.get(run_id)
            if seen is None or seen.shard == shard:
                yield head

    def _bind_counts(self, op: Create, outcome: Outcome) -> None:
        """Note which numbers of runs the answer rests on: the owner's was asked for if all together were few enough."""
        refused = isinstance(outcome, TooManyRuns)
        of_all = isinstance(outcome, TooManyRuns) and not outcome.of_owner
        if op.max_runs:
            self._bind_count(None, op.max_runs, refused=of_all)
        if op.owner_max_runs and not of_all:
            self._bind_count(op.owner, op.owner_max_runs, refused=refused)

    def _bind_count(self, owner: str | None, limit: int, *, refused: bool) -> None:
        room = limit - self._added(owner)  # what may be stored already so that this decision stands
        least, most = self._bounds.get(owner, (0, HUGE))
        self._bounds[owner] = (max(least, room), most) if refused else (least, min(most, room - 1))

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of `write_group`, but for the shard's."""
        return {**self._beliefs(), **self._writes()}

    def _beliefs(self) -> dict[str, Any]:
        least, most = self._bounds.get(None, (0, HUGE))
        owners = {owner: bounds for owner, bounds in self._bounds.items() if owner is not None}
        seen, held, queues, keys = self.seen, self._held, self._queues, sorted(self._absent_keys)
        return {
            "seen_runs": list(seen),
            "seen_versions": [-1 if row is None else row.version for row in seen.values()],
            "held_owners": [owner for owner, _ in held],
            "held_threads": [thread for _, thread in held],
            "held_by": list(held.values()),
            "queue_owners": [owner for owner, _ in queues],
            "queue_threads": [thread for _, thread in queues],
            "queue_depths": [depth for depth, _ in queues.values()],
            "queue_runs": ["\n".join(run_ids) for _, run_ids in queues.values()],
            "key_runs": [run_id for run_id, _ in keys],
            "key_names": [key_bytes(key) for _, key in keys],
            "count_least": least,
            "count_most": most,
            "count_owners": list(owners),
            "owner_leasts": [least for least, _ in owners.values()],
            "owner_mosts": [most for _, most in owners.values()],
            "seen_supervisor": self._seen_supervisor,
        }

    def _writes(self) -> dict[str, Any]:
        changed = [head for run_id, head in self.written.items() if run_id not in self.created]
        new = [self.written[run_id] for run_id in self.created]
        batches = [batch for batch, _ in self._batches]
        row = self.supervisor_row
        owned: dict[str, int] = {}
        for head in changed:
            if change := settled_change(self._stored(head.run_id), head):
                owned[head.owner] = owned.get(head.owner, 0) + change
        return {
            **_head_columns("head", changed),
            "heads": [self._heads[head.run_id] for head in changed],
            **_head_columns("new", new),
            "new_owners": [head.owner for head in new],
            "new_threads": [head.thread_id for head in new],
            "new_createds": [head.created_at for head in new],
            "new_heads": [self._heads[head.run_id] for head in new],
            "new_specs": [self._specs[head.run_id] for head in new],
            "batch_runs": [batch.run_id for batch in batches],
            "batch_seqs": [batch.seq for batch in batches],
            "batch_ns": [batch.count for batch in batches],
            "batch_epochs": [batch.epoch for batch in batches],
            "batch_bands": [batch.band.value for batch in batches],
            "batch_firsts": [batch.first_index for batch in batches],
            "batch_keys": [key for _, key in self._batches],
            "batch_ends": [batch.ends for batch in batches],
            "batch_data": [batch.data for batch in batches],
            "stderr_runs": list(self._stderr),
            "stderr_tails": list(self._stderr.values()),
            "transcript_runs": list(self._transcripts),
            "transcripts": list(self._transcripts.values()),
            "mark_runs": list(self._checkpoints),
            "marks": list(self._checkpoints.values()),
            "owned_owners": list(owned),
            "owned_changes": list(owned.values()),
            "supervisor_epoch": -1 if row is None else row.epoch,
            "supervisor_claimant": "" if row is None else row.claimant,
        }

    # --- small steps ---

    def _stored(self, run_id: str) -> Head | None:
        """Return the head as it is believed to be stored. Raises StoreRefused for one that is damaged."""
        if run_id not in self.seen:
            self.seen[run_id] = self._memory.rows.get(run_id)
        row = self.seen[run_id]
        return None if row is None else row.head()

    def _remember(self, rows: Iterable[tuple[Any, ...]]) -> list[str]:
        """Take rows that were read; return their runs."""
        found = []
        for run_id, shard, version, head in rows:
            self._memory.rows[run_id] = Stored(shard, version, head)
            found.append(run_id)
        return found

    def _mine(self, thread: Thread) -> Iterable[Head]:
        """Return what this group wrote of a thread."""
        return (head for head in self.written.values() if (head.owner, head.thread_id) == thread)

    def _added(self, owner: str | None) -> int:
        """Return by how much this group has changed the number of unfinished runs, of all owners or of one."""
        change = 0
        for run_id, head in self.written.items():
            if owner not in (None, head.owner):
                continue
            stored = None if run_id in self.created else self._stored(run_id)
            change += (not head.status.terminal) - (stored is not None and not stored.status.terminal)
        return change

    def _one_batch(self, run_id: str, statement: str, value: object) -> Batch | None:
        row = self._session.execute(statement, (run_id, value)).fetchone()
        return None if row is None else batch_of(run_id, row)


def run_of(op: Op) -> str:
    """Return the run that `op` is about; "" if there is none, or the operation is malformed."""
    try:
        run_id = getattr(op, "run_id", "")
    except Exception:  # noqa: BLE001 - a property of a malformed operation; its decision will say so
        return ""
    return run_id if isinstance(run_id, str) and "\0" not in run_id else ""


def batch_of(run_id: str, row: Sequence[Any]) -> Batch:
    """Return the batch of one row, in the order of columns that every statement on batches has."""
    seq, count, epoch, band, first_index, key, ends, data = row
    return Batch(
        run_id=run_id,
        seq=seq,
        count=count,
        epoch=epoch,
        band=Band(band),
        first_index=first_index,
        key=None if key is None else bytes(key).decode("utf-8", "surrogatepass"),
        ends=bytes(ends),
        data=bytes(data),
    )


def key_bytes(key: str) -> bytes:
    """Return how a cause's key is stored: as bytes, since a client may put into it what text here cannot hold."""
    return key.encode("utf-8", "surrogatepass")


def _head_columns(name: str, heads: list[Head]) -> dict[str, Any]:
    dues = [reaping.due(head) for head in heads]
    return {
        f"{name}_runs": [head.run_id for head in heads],
        f"{name}_statuses": [head.status.value for head in heads],
        f"{name}_terminals": [head.status.terminal for head in heads],
        f"{name}_queueds": [head.queued for head in heads],
        f"{name}_destroys": [head.to_destroy for head in heads],
        f"{name}_stages": [None if due is None else due[0].value for due in dues],
        f"{name}_dues": [None if due is None else due[1] for due in dues],
        f"{name}_versions": [head.version for head in heads],
    }


def _storable(batch: Batch) -> tuple[Batch, bytes | None]:
    for data in (batch.data, batch.ends):
        if not isinstance(data, bytes):
            raise TypeError(f"a batch holds {type(data).__name__} for bytes")
    return batch, None if batch.key is None else key_bytes(batch.key)


def _refuse_text(text: str) -> None:
    """Raise ValueError for text that no PostgreSQL holds."""
    if "\0" in text:
        raise ValueError("a name holds a zero byte")
    text.encode()


__all__ = ["PostgresView", "batch_of", "run_of"]
