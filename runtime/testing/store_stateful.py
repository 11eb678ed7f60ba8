"""A Hypothesis state machine that drives a store and `store_model` side by side.

    TestMyStore = state_machine_of(make_storage).TestCase

`make_storage()` returns, for each example, a fresh storage: a context manager that gives what opens it, as the kit's
`make_store` does. After each step every run is compared with the model, by the record, the log, the lists and the
pages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.core import chunk
from runtime.core.batch import Band, Batch, pack_ends
from runtime.core.ops import (
    Append,
    Assign,
    Attach,
    Detach,
    Finish,
    Note,
    Op,
    OpenSupervisor,
    RequestCancel,
    RequestHandover,
)
from runtime.core.reap_ops import Account, Expire, Forget, LogDropped, PruneLog
from runtime.core.record import CancelReason, ClaimReason, Launch, Limits, Status
from runtime.errors import ShardSuperseded
from runtime.ports import Store
from runtime.testing.sample_ops import checkpoint, claim, create, spec, text
from runtime.testing.store_comparison import compare, plain
from runtime.testing.store_model import Facts, StoreModel

Answer = tuple[str, Facts]
Opening = AbstractContextManager[Callable[[], Store]]

NAMES = [f"r{place}" for place in range(8)]
RUNS = st.sampled_from(NAMES)
PICKS = st.integers(0, 11)
PLACES = st.sampled_from([("owner", "t0"), ("owner", "t1"), ("stranger", "t0")])
CLAIMANTS = st.sampled_from(["a", "b"])
WORDS = st.lists(st.sampled_from(["", "x", "yy", "\u2028"]), min_size=1, max_size=3)
NEAR = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])  # off by this much: mostly right, sometimes not
TTL_S = 0  # of every run: who is detached may be expired
KEYS = st.sampled_from([None, None, None, "k0", "k1"])


class StoreMachine(RuleBasedStateMachine):
    """One storage and its model. Rules guess epochs and places from the model, and miss now and then."""

    make_storage: Callable[[], Opening]

    def __init__(self) -> None:
        super().__init__()
        self.exits = ExitStack()
        self.open = self.exits.enter_context(type(self).make_storage())
        self.model = StoreModel(chunk.run_accepted())
        self.now = self.model.now = 1000
        self.stale: list[tuple[Store, int]] = []
        self.group: list[tuple[Op, Answer]] = []

    @initialize()
    def first_opening(self) -> None:
        """Open the shard, and store something that rules can work on."""
        self._open()
        self._create("r0", ("owner", "t0"), "d", "reject")
        self._create("r1", ("owner", "t0"), "d", "enqueue")
        self._create("r2", ("owner", "t1"), "d", "reject")
        self.open_supervisor("a")
        for run_id in ("r0", "r2"):
            self._ask(claim(0, "a", run_id), self.model.claim(run_id, 0, "a", "start"))

    def _open(self) -> None:
        self.store = self.open()
        self.shard_epoch = self.store.open_shard(0, "machine")

    def _ask(self, op: Op, expected: Answer) -> None:
        self.group.append((op, expected))

    def _commit(self) -> None:
        group, self.group = self.group, []
        outcomes = self.store.commit(0, self.shard_epoch, [op for op, _ in group], self.now)
        self.now += 1
        self.model.now = self.now
        for (op, (name, facts)), outcome in zip(group, outcomes, strict=True):
            assert type(outcome).__name__ == name, f"{op}\n got {outcome}\n expected {name} {facts}"
            seen = {key: plain(outcome, key) for key in facts}
            assert seen == facts, f"{op}\n got {outcome}"

    # --- rules: most add to the group, `commit` sends it -----------------------------------------------------------

    @rule()
    def commit(self) -> None:
        """Send the group in one transaction."""
        self._commit()

    @precondition(lambda self: not self.group)
    @rule()
    def reopen(self) -> None:
        """Open the storage anew; the incarnation before it is stale."""
        self.stale.append((self.store, self.shard_epoch))
        self._open()

    @precondition(lambda self: self.stale and not self.group)
    @rule(run_id=RUNS)
    def write_from_the_past(self, run_id: str) -> None:
        """A superseded incarnation writes nothing."""
        store, epoch = self.stale[-1]
        op = create(run_id)
        with pytest.raises(ShardSuperseded) as refusal:
            store.commit(0, epoch, [op], self.now)
        assert refusal.value.current_epoch == self.shard_epoch

    @rule(
        run_id=RUNS,
        place=PLACES,
        digest=st.sampled_from(["d", "d", "e"]),
        busy=st.sampled_from(["reject", "enqueue", "enqueue", "cancel-previous", "resume"]),
    )
    def create(self, run_id: str, place: tuple[str, str], digest: str, busy: str) -> None:
        """Create a run, or something that looks like it."""
        self._create(run_id, place, digest, busy)

    def _create(self, run_id: str, place: tuple[str, str], digest: str, busy: str) -> None:
        owner, thread = place
        resumes = busy == "resume"
        limits = Limits(detached_ttl_s=TTL_S)
        op = create(run_id, thread, owner=owner, digest=digest, on_busy=busy, resumes=resumes, spec=spec(limits=limits))
        self._ask(op, self.model.create(run_id, thread, owner, digest, busy, self.now, resumes))

    @rule(pick=PICKS, off=NEAR, who=CLAIMANTS, reason=st.sampled_from([ClaimReason.START, ClaimReason.CANCEL]))
    def claim(self, pick: int, off: int, who: str, reason: ClaimReason) -> None:
        """Claim."""
        run_id = self._picked(pick)
        expected = max(0, self._epoch(run_id) + off)
        self._ask(claim(expected, who, run_id, reason), self.model.claim(run_id, expected, who, reason.value))

    @rule(
        pick=PICKS,
        near=st.tuples(NEAR, NEAR, NEAR),
        words=WORDS,
        key=KEYS,
        band=st.sampled_from(Band),
        bound=st.sampled_from([0, 0, 0, 300]),
        state=st.sampled_from([None, b"", b"s", b"state"]),
    )
    def append(
        self,
        pick: int,
        near: tuple[int, int, int],
        words: list[str],
        key: str | None,
        band: Band,
        bound: int,
        state: bytes | None,
    ) -> None:
        """Append, or try to."""
        off, place, late = near
        run_id = self._picked(pick)
        epoch, seq = max(0, self._epoch(run_id) + off), max(0, self._length(run_id) + place)
        chunks = [text(word) for word in words]
        key = key if band is Band.LIVE else None
        batch = _batch(run_id, seq, epoch, chunks, band, key)
        facts = {"key": key, "chunks": chunks, "band": band.value}
        mark = None if state is None else checkpoint(batch, translator=state, seq=batch.next_seq + late)
        noted = None if mark is None else {"epoch": mark.epoch, "seq": mark.seq, "state": state}
        op = Append(batch=batch, max_log_bytes=bound, checkpoint=mark)
        self._ask(op, self.model.append(run_id, epoch, seq, facts, bound, noted))

    @rule(pick=PICKS, data=st.data())
    def append_again(self, pick: int, data: st.DataObject) -> None:
        """Send a stored batch once more, under its own epoch."""
        run_id = self._picked(pick)
        run = self.model.runs.get(run_id)
        if run is None:
            return
        old = data.draw(st.sampled_from(run.stored))
        batch = _batch(run_id, old["seq"], old["epoch"], old["chunks"], Band(old["band"]), old["key"])
        facts = {"key": old["key"], "chunks": old["chunks"], "band": old["band"]}
        self._ask(Append(batch=batch), self.model.append(run_id, old["epoch"], old["seq"], facts, 0))

    @rule(
        pick=PICKS,
        off=NEAR,
        place=NEAR,
        status=st.sampled_from(Status),
        empty=st.booleans(),
        tails=st.tuples(st.binary(max_size=3), st.sampled_from([None, b"", b"{}"])),
    )
    def finish(
        self, pick: int, off: int, place: int, status: Status, empty: bool, tails: tuple[bytes, bytes | None]
    ) -> None:
        """Finish, or try to."""
        run_id = self._picked(pick)
        epoch, seq = max(0, self._epoch(run_id) + off), max(0, self._length(run_id) + place)
        run = self.model.runs.get(run_id)
        chunks = [] if empty and run is not None and run.closed else [chunk.run_finished(run_id, "t")]
        stderr, said = tails
        expected = self.model.finish(run_id, epoch, seq, chunks, status.value, stderr, said)
        batch = _batch(run_id, seq, epoch, chunks, Band.LIVE, None)
        op = Finish(batch=batch, status=status, stderr=stderr, transcript=said, destroy_pending=False)
        self._ask(op, expected)

    @rule(pick=PICKS)
    def finish_again(self, pick: int) -> None:
        """Send a stored finish once more."""
        ended = [run for run in self.model.runs.values() if run.ending is not None]
        if not ended:
            return
        run = ended[pick % len(ended)]
        run_id = run.run_id
        assert run.ending is not None
        old = run.ending
        expected = self.model.finish(run_id, old["epoch"], old["seq"], old["chunks"], old["status"], b"")
        batch = _batch(run_id, old["seq"], old["epoch"], old["chunks"], Band.LIVE, None)
        self._ask(Finish(batch=batch, status=Status(old["status"]), destroy_pending=False), expected)

    @rule(pick=PICKS, reason=st.sampled_from(CancelReason))
    def cancel(self, pick: int, reason: CancelReason) -> None:
        """Cancel."""
        run_id = self._picked(pick)
        self._ask(RequestCancel(run_id=run_id, reason=reason), self.model.intend(run_id, "cancel", reason.value))

    @rule(run_id=RUNS, what=st.sampled_from(["attach", "detach", "handover"]))
    def intend(self, run_id: str, what: str) -> None:
        """Attach, detach or ask for a handover."""
        ops: dict[str, Op] = {
            "attach": Attach(run_id=run_id),
            "detach": Detach(run_id=run_id, since=self.now),
            "handover": RequestHandover(run_id=run_id),
        }
        self._ask(ops[what], self.model.intend(run_id, what, self.now))

    @rule(
        pick=PICKS,
        off=NEAR,
        key=st.sampled_from([None, "s"]),
        launch=st.sampled_from([None, *Launch]),
        progressed=st.booleans(),
    )
    def note(self, pick: int, off: int, key: str | None, launch: Launch | None, progressed: bool) -> None:
        """Remark on the sandbox."""
        run_id = self._picked(pick)
        epoch = max(0, self._epoch(run_id) + off)
        op = Note(run_id=run_id, epoch=epoch, sandbox_key=key, launch=launch, progressed=progressed)
        self._ask(op, self.model.note(run_id, epoch, key, launch.value if launch else None, progressed))

    @rule(who=CLAIMANTS)
    def open_supervisor(self, who: str) -> None:
        """Become the supervisor."""
        self._ask(OpenSupervisor(claimant=who), self.model.open_supervisor(who))

    @rule(pick=PICKS, off=NEAR, back=NEAR)
    def assign(self, pick: int, off: int, back: int) -> None:
        """Decide on a new driver."""
        run_id = self._picked(pick)
        expected, supervisor = max(0, self._epoch(run_id) + off), max(0, self.model.supervisor + back)
        op = Assign(run_id=run_id, expected_epoch=expected, supervisor_epoch=supervisor, max_attempts=2)
        self._ask(op, self.model.assign(run_id, expected, supervisor, 2))

    @rule(pick=PICKS, back=NEAR)
    def expire(self, pick: int, back: int) -> None:
        """Expire a run that nobody came back for."""
        run_id, supervisor = self._picked(pick), max(0, self.model.supervisor + back)
        op = Expire(run_id=run_id, supervisor_epoch=supervisor)
        self._ask(op, self.model.expire(run_id, supervisor, self.now, TTL_S))

    @rule(run_id=RUNS, back=NEAR)
    def account(self, run_id: str, back: int) -> None:
        """Account for a run that ended unwatched."""
        supervisor = max(0, self.model.supervisor + back)
        self._ask(Account(run_id=run_id, supervisor_epoch=supervisor), self.model.account(run_id, supervisor))

    @rule(
        run_id=RUNS,
        back=NEAR,
        kind=st.sampled_from([("prune", PruneLog), ("prune", PruneLog), ("forget", Forget)]),
        before=st.sampled_from([0, 1000, 1 << 40]),
        keep=st.sampled_from([0, 0, 3, 1 << 40]),
    )
    def prune(self, run_id: str, back: int, kind: tuple[str, type[PruneLog | Forget]], before: int, keep: int) -> None:
        """Give up what is too old."""
        supervisor, (stage, op) = max(0, self.model.supervisor + back), kind
        asked = op(run_id=run_id, supervisor_epoch=supervisor, ended_before=before, retention_ms=keep)
        self._ask(asked, self.model.prune(run_id, supervisor, stage, before, keep))

    @rule(run_id=RUNS)
    def say_that_a_log_is_gone(self, run_id: str) -> None:
        """Say so of any log, gone or not."""
        op = LogDropped(run_id=run_id, supervisor_epoch=self.model.supervisor)
        self._ask(op, self.model.prune(run_id, self.model.supervisor, "drop", 0))

    @precondition(lambda self: not self.group)
    @rule(run_id=RUNS)
    def drop(self, run_id: str) -> None:
        """Remove a log that was given up, to its end; of another, nothing."""
        run = self.model.runs.get(run_id)
        if run is None or run.kept != "dropping":
            self.store.drop_log(run_id)
            return
        while self.store.drop_log(run_id):
            pass
        run.dropped = True
        op = LogDropped(run_id=run_id, supervisor_epoch=self.model.supervisor)
        self._ask(op, self.model.prune(run_id, self.model.supervisor, "drop", 0))

    # --- what must always be true ----------------------------------------------------------------------------------

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        """Compare every run, list and page, unless a group is not sent yet."""
        if self.group or not hasattr(self, "store"):
            return
        compare(self.store, self.model)

    def teardown(self) -> None:
        """Send what is left, then close everything."""
        try:
            if hasattr(self, "store"):
                self._commit()
                self.the_store_says_what_the_model_says()
        finally:
            self.exits.close()

    def _picked(self, pick: int) -> str:
        """Return a run: mostly one that is driven and goes on, else any, or one that is not there."""
        driven = [run.run_id for run in self.model.runs.values() if run.epoch and not run.closed]
        return driven[pick % len(driven)] if driven and pick < len(NAMES) else NAMES[pick % len(NAMES)]

    def _epoch(self, run_id: str) -> int:
        run = self.model.runs.get(run_id)
        return run.epoch if run is not None else 0

    def _length(self, run_id: str) -> int:
        run = self.model.runs.get(run_id)
        return len(run.chunks) if run is not None else 0


def state_machine_of(storage: Callable[[], Opening]) -> type[StoreMachine]:
    """Return the state machine for one kind of store; its `.TestCase` is what pytest collects."""
    return type("Machine", (StoreMachine,), {"make_storage": staticmethod(storage)})


def _batch(run_id: str, seq: int, epoch: int, chunks: list[bytes], band: Band, key: str | None) -> Batch:
    ends = pack_ends([place + 1 for place in range(len(chunks))]) if band is Band.JOURNAL else b""
    data = b"\n".join(chunks)
    return Batch(run_id=run_id, seq=seq, count=len(chunks), epoch=epoch, band=band, data=data, ends=ends, key=key)
