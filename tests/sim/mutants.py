"""Deliberate faults, made by patching production code for as long as a context lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg
import pytest

from runtime.core import creating, intending, writing
from runtime.core.align import BandAligner
from runtime.core.batch import Band, Batch
from runtime.core.checkpoint import Checkpoint
from runtime.core.decision import Decision, View
from runtime.core.fold import Fold
from runtime.core.generations import raised
from runtime.core.ops import Append, Assign, ClaimRun, Finish, MustAbort, Op, Outcome, Refusal, RequestCancel
from runtime.core.record import CancelReason, Head
from runtime.engine import resuming, transcribing
from runtime.engine.appending import Appender
from runtime.engine.authority import Authority, Orders
from runtime.engine.checkpointing import Mark, Marker
from runtime.engine.concluding import Conclusion
from runtime.engine.returning import Orphans
from runtime.engine.shard import Shard
from runtime.engine.transcribing import Transcripts
from runtime.engine.watchlist import Watchlist
from runtime.ports import SandboxProvider, Store
from runtime.stores import memory, postgres_loss, postgres_reading
from runtime.stores.memory import MemoryStore
from runtime.stores.memory_tables import Transaction
from runtime.stores.postgres_memory import Memory
from runtime.testing import postgres_tables
from runtime.testing.sim_world import Box

Patch = pytest.MonkeyPatch


def transcribe_one_page(patch: Patch) -> None:
    """A transcript tells what one reading of the store brings."""

    def feed(folding: Fold, store: Store, run_id: str, after: int, end: int) -> int:
        batches = [batch for batch in store.read_batches(run_id, after, 1 << 20) if batch.seq < end]
        transcribing._feed(folding, batches)
        return end if batches else after

    patch.setattr(transcribing, "_feed_page", feed)


def end_a_run_without_its_transcript(patch: Patch) -> None:
    """A finish is stored as its driver sent it."""

    async def plain(_self: Transcripts, op: Finish, _head: Head | None) -> Finish:
        return op

    patch.setattr(Transcripts, "into", plain)


def drop_the_epoch_check(patch: Patch) -> None:
    """Appends, finishes and notes of any epoch are taken for the newest's."""
    for module in (writing, intending):
        patch.setattr(module, "holds", lambda _head, _epoch: True)


def claim_without_compare(patch: Patch) -> None:
    """A claim takes the run whatever epoch it expected."""
    decide = creating.claim

    def claim(view: View, op: ClaimRun, now_ms: int) -> Decision:
        head = view.head(op.run_id)
        return decide(
            view, op if head is None else msgspec.structs.replace(op, expected_epoch=head.driver_epoch), now_ms
        )

    patch.setattr(creating, "claim", claim)


def check_then_write_in_two_steps(patch: Patch) -> None:
    """A decision rests on heads that were read before the transaction before it was written."""
    head = Transaction.head
    merge = Transaction.merge
    before: dict[int, dict[str, Head]] = {}

    def stale_head(self: Transaction, run_id: str) -> Head | None:
        return before.get(id(self._tables), {}).get(run_id) or head(self, run_id)

    def remembering_merge(self: Transaction) -> None:
        before[id(self._tables)] = dict(self._tables.heads)
        merge(self)

    patch.setattr(Transaction, "head", stale_head)
    patch.setattr(Transaction, "merge", remembering_merge)


def forget_the_latch(patch: Patch) -> None:
    """A driver that was told that it lost the run goes on as if it had not been."""
    patch.setattr(Orders, "lose", lambda _self, _error: None)


def launch_without_the_link(patch: Patch) -> None:
    """The launch file does not keep a second launcher out."""

    def link(self: Box) -> bool:
        self.launch_file = True
        return True

    patch.setattr(Box, "link", link)


def no_repeat_detection(patch: Patch) -> None:
    """An append that is stored already is a conflict."""
    patch.setattr(writing, "_repeat_of", lambda _view, _batch: None)


def finish_without_the_cancel_check(patch: Patch) -> None:
    """A recorded cancel does not bind the finish."""
    refusal_of = writing._finish_refusal

    def refusal(head: Head, op: Finish) -> Refusal | None:
        found = refusal_of(head, op)
        return None if isinstance(found, MustAbort) else found

    patch.setattr(writing, "_finish_refusal", refusal)


def decide_without_the_supervisor_epoch(patch: Patch) -> None:
    """A superseded supervisor's decisions are stored."""
    assign = intending.assign

    def lenient(view: View, op: Assign, now_ms: int) -> Decision:
        return assign(view, msgspec.structs.replace(op, supervisor_epoch=view.supervisor().epoch), now_ms)

    patch.setattr(intending, "assign", lenient)


def act_without_asking(patch: Patch) -> None:
    """A driver acts on an answer of any age."""

    async def permit(self: Authority) -> None:
        self.orders.raise_if_lost()

    patch.setattr(Authority, "permit", permit)


def append_the_whole_replay(patch: Patch) -> None:
    """A successor appends what its predecessor stored already."""
    patch.setattr(BandAligner, "feed", lambda _self, chunks: chunks)
    patch.setattr(BandAligner, "remaining", property(lambda _self: 0))


def answer_before_the_commit(patch: Patch) -> None:
    """A store that answers and then forgets: what was acknowledged is lost."""
    commit = MemoryStore.commit
    count = [0]

    def forgetful(self: MemoryStore, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        count[0] += 1
        if count[0] % 40:
            return commit(self, shard, shard_epoch, ops, now_ms)
        view = Transaction(self._tables, shard)
        return [memory._one(view, op, now_ms) for op in ops]

    patch.setattr(MemoryStore, "commit", forgetful)


def destroy_before_the_finish(patch: Patch) -> None:
    """A driver gives the sandbox back, then says that the run has ended."""
    finish = Conclusion.finish

    async def hasty(self: Conclusion, ending: Any, exit: Any) -> Any:
        await self.destroy()
        return await finish(self, ending, exit)

    patch.setattr(Conclusion, "finish", hasty)


def refuse_the_whole_group(patch: Patch) -> None:
    """One refusal of a group commit takes the others' rows with it (P7)."""
    commit = MemoryStore.commit

    def whole(self: MemoryStore, shard: int, shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        view = Transaction(self._tables, shard)
        outcomes = [memory._one(view, op, now_ms) for op in ops]
        if any(isinstance(outcome, Refusal) for outcome in outcomes):
            return outcomes
        return commit(self, shard, shard_epoch, ops, now_ms)

    patch.setattr(MemoryStore, "commit", whole)


def commit_under_any_shard_epoch(patch: Patch) -> None:
    """The store lets a superseded incarnation of a shard write (P11)."""
    commit = MemoryStore.commit

    def lenient(self: MemoryStore, shard: int, _shard_epoch: int, ops: Sequence[Op], now_ms: int) -> list[Outcome]:
        return commit(self, shard, self._epochs[shard], ops, now_ms)

    patch.setattr(MemoryStore, "commit", lenient)


def cancel_whoever_is_not_watched(patch: Patch) -> None:
    """A disconnect ends runs that did not choose that (P20, I6)."""

    async def cancel(self: Shard, head: Head) -> None:
        op = RequestCancel(
            run_id=head.run_id, reason=CancelReason.DISCONNECT, only_if_detached_since=head.detached_since
        )
        await self._quietly(op)

    patch.setattr(Shard, "_cancel_unwatched", cancel)


def count_viewers_by_edges(patch: Patch) -> None:
    """Only the coming of a viewer counts; that one is still there is not told (P20)."""

    async def set_viewers(self: Shard, viewer: str, number: int, _counts: Mapping[str, int]) -> None:
        self._viewers.replace(viewer, number, {})

    patch.setattr(Shard, "set_viewers", set_viewers)


def act_without_the_grace(patch: Patch) -> None:
    """A run that chose to end with its viewers ends as soon as none is heard of (P20)."""
    unwatched = Watchlist.unwatched
    patch.setattr(Watchlist, "unwatched", lambda self, _grace_s: unwatched(self, 0.0))


def mark_where_the_reading_ends(patch: Patch) -> None:
    """A checkpoint's position is where the journal was read to, in the middle of a line (P25)."""
    mark = Marker.mark

    def eager(self: Marker, _position: int, journal_chunks: int) -> Mark | None:
        return mark(self, self._end, journal_chunks)

    patch.setattr(Marker, "mark", eager)


def mark_ahead_of_the_append(patch: Patch) -> None:
    """A checkpoint goes with an append before the one that ends where it says (P25)."""

    def hasty(self: Appender, mark: Mark | None, batch: Batch, chunks: list[bytes]) -> Checkpoint | None:
        marks = [piece.mark for piece in self._pieces if piece.mark is not None]
        mark = marks[-1] if marks and batch.band is Band.JOURNAL else mark
        return checkpoint(self, mark, batch, chunks)

    checkpoint = Appender._checkpoint
    patch.setattr(Appender, "_checkpoint", hasty)


def forget_what_is_open(patch: Patch) -> None:
    """A checkpoint holds what was open before its append (P25, P9)."""

    def late(self: Appender, mark: Mark | None, batch: Batch, _chunks: list[bytes]) -> Checkpoint | None:
        return None if mark is None else mark.at(batch, self._open.state())

    patch.setattr(Appender, "_checkpoint", late)


def trust_every_checkpoint(patch: Patch) -> None:
    """A checkpoint is used without a look at the journal (P25)."""
    patch.setattr(resuming, "_doubt", lambda *_: None)


def go_on_without_the_state(patch: Patch) -> None:
    """A successor begins at the checkpoint with a translator that knows nothing (P25)."""
    patch.setattr(resuming, "_not_taken", lambda *_: None)


def keep_a_refused_checkpoint(patch: Patch) -> None:
    """The checkpoint of a refused append is stored (P3, P25)."""
    one = memory._one

    def lenient(view: Transaction, op: Op, now_ms: int) -> Outcome:
        outcome = one(view, op, now_ms)
        if isinstance(op, Append) and op.checkpoint is not None:
            view._checkpoints[op.run_id] = op.checkpoint
        return outcome

    patch.setattr(memory, "_one", lenient)


def look_for_no_orphans(patch: Patch) -> None:
    """A sandbox that is made after its run has ended stays (P22)."""

    async def end(self: Orphans) -> int:
        return 0

    patch.setattr(Orphans, "end", end)


def take_every_sandbox_for_an_orphan(patch: Patch) -> None:
    """A sandbox is destroyed without a look at what the store says of its run (P22)."""

    async def end(self: Orphans, provider: SandboxProvider, key: str, _there: set[str]) -> bool:
        await provider.destroy(key)
        return True

    patch.setattr(Orphans, "_end", end)


def write_on_what_was_believed(patch: Patch) -> None:
    """PostgreSQL writes a group without a look at what its decisions rest on (P7, P12)."""
    patch.setattr(postgres_tables, "as_believed", lambda _tables, _group: True)


def have_no_unique_index(patch: Patch) -> None:
    """Two shards that find a thread free at the same moment both take it (P12)."""
    patch.setattr(postgres_tables, "refuse_twins", lambda _tables, _group: None)


def keep_half_of_a_group(patch: Patch) -> None:
    """A server that goes down in the middle of a group has written the records and not the chunks (P7, P12)."""
    write_rows = postgres_tables.write_rows
    count = [0]

    def torn(tables: postgres_tables.Tables, group: Mapping[str, Any]) -> None:
        count[0] += 1
        if count[0] % 40 or not group["batch_runs"]:
            write_rows(tables, group)
            return
        write_rows(tables, {name: [] if name.startswith("batch_") else value for name, value in group.items()})
        raise psycopg.OperationalError("the server went down")

    patch.setattr(postgres_tables, "write_rows", torn)


def remember_what_failed(patch: Patch) -> None:
    """A commit without an answer leaves everything that was remembered as it was (P7)."""
    patch.setattr(Memory, "forget", lambda _self: None)


def raise_nothing(patch: Patch) -> None:
    """A store that has lost its end goes on as if it had not (P10)."""
    blind = lambda session, _address, witness: postgres_loss._read(session, witness).generation  # noqa: E731
    patch.setattr(postgres_reading, "settle", blind)


def raise_epochs_alone(patch: Patch) -> None:
    """A raise supersedes everybody, and leaves offsets as they are (P10)."""

    def same_offsets(head: Head, generation: int) -> Head:
        return msgspec.structs.replace(raised(head, generation), generation=head.generation)

    patch.setattr(postgres_loss, "raised", same_offsets)


def raise_offsets_alone(patch: Patch) -> None:
    """A raise leaves epochs as they are: they are given twice (P10)."""
    patch.setattr(postgres_loss, "raised", lambda head, generation: head.with_(generation=generation))


@contextmanager
def applied(mutant: Callable[[Patch], None]) -> Iterator[None]:
    """Have the fault for as long as the context lasts."""
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        yield
