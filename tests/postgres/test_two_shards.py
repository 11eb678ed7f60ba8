"""Two shards of one store: a thread whose runs lie on both has one active run, and one queue (P12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from postgres_server import PostgresServer
from waiting import wait_until

from runtime.core.ops import (
    Appended,
    Assigned,
    Claimed,
    Create,
    Created,
    Done,
    Finished,
    MustAbort,
    Op,
    OpenSupervisor,
    Outcome,
    SupervisorOpened,
    SupervisorStale,
    ThreadBusy,
    TooManyRuns,
)
from runtime.core.ops import Assign as AssignOp
from runtime.core.record import ClaimReason, Head, Status
from runtime.errors import StoreUnavailable
from runtime.ports import Store
from runtime.stores.memory import MemoryStore
from runtime.testing.sample_ops import OWNER, append, cancel, claim, create, finish, live

Open = Callable[[], Store]
THREAD = "thread-1"
ROUNDS = 40
BOUNDS = ("max_runs", "owner_max_runs")


class Side:
    """One shard with a store of its own, as another process would have it."""

    def __init__(self, store: Store, shard: int) -> None:
        self.store = store
        self.shard = shard
        self.epoch = store.open_shard(shard, f"side {shard}")
        self.now_ms = 1000

    def do(self, *ops: Op) -> list[Outcome]:
        self.now_ms += 1
        return self.store.commit(self.shard, self.epoch, ops, self.now_ms)

    def ask(self, op: Op, kind: type[Any]) -> Any:
        (outcome,) = self.do(op)
        assert isinstance(outcome, kind), outcome
        return outcome

    def start(self, run_id: str, thread_id: str = THREAD, on_busy: str = "reject") -> None:
        self.do(create(run_id, thread_id, on_busy=on_busy), claim(0, "driver", run_id))


def _head(store: Store, run_id: str) -> Head:
    record = store.read_run(run_id)
    assert record is not None
    return record[0]


@pytest.fixture(params=["memory", "postgres"])
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    if request.param == "memory":
        rows = MemoryStore(shards=2)
        yield Side(rows, 0), Side(rows, 1)
    else:
        make: Open = request.getfixturevalue("two_shards")
        yield Side(make(), 0), Side(make(), 1)


def test_a_thread_held_on_one_shard_is_busy_on_the_other(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.start("run-1")
    assert two.ask(create("run-2", THREAD), ThreadBusy).active_run_id == "run-1"
    assert two.ask(create("run-2", THREAD, on_busy="enqueue"), Created).head.queued
    one.do(finish(1, 1, run_id="run-1"))
    assert two.ask(create("run-3", THREAD), ThreadBusy).active_run_id == "run-2"
    two.do(claim(0, "x", "run-2"), cancel("run-2"), finish(1, 1, Status.ABORTED, "run-2"))
    assert not one.ask(create("run-4", THREAD), Created).head.queued


def test_a_finish_un_queues_the_oldest_run_of_another_shard(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.start("run-1")
    two.do(create("run-2", THREAD, on_busy="enqueue"))
    one.do(create("run-3", THREAD, on_busy="enqueue"))
    before = {head.run_id: head.version for head in two.store.list_unfinished(1)}
    assert two.store.list_changed(1, before) == []
    ended = one.ask(finish(1, 1, run_id="run-1"), Finished)
    assert ended.unqueued is not None
    assert (ended.unqueued.run_id, ended.unqueued.queued) == ("run-2", False)
    assert two.store.list_changed(1, before) == [_head(one.store, "run-2")]
    assert one.store.list_changed(0, {"run-3": _head(one.store, "run-3").version}) == []
    two.ask(claim(0, "driver", "run-2"), Claimed)
    assert two.ask(finish(1, 1, run_id="run-2"), Finished).unqueued.run_id == "run-3"
    one.ask(claim(0, "driver", "run-3"), Claimed)


def test_a_repeated_finish_names_the_run_of_the_other_shard_again(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.start("run-1")
    two.do(create("run-2", THREAD, on_busy="enqueue"))
    first = one.ask(finish(1, 1, run_id="run-1"), Finished)
    again = one.ask(finish(1, 1, run_id="run-1"), Finished)
    assert (again.repeat, again.unqueued) == (True, first.unqueued)


def test_a_creation_cancels_the_active_run_of_another_shard(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.start("run-1")
    one.do(append(live(1, 1, "a", run_id="run-1")))
    created = two.ask(create("run-2", THREAD, on_busy="cancel-previous"), Created)
    assert (created.head.queued, created.cancelled_previous) == (True, "run-1")
    assert [head.run_id for head in one.store.list_changed(0, {"run-1": 2})] == ["run-1"]
    assert one.ask(append(live(2, 1, "b", run_id="run-1")), Appended).head.cancel_requested
    one.ask(finish(3, 1, run_id="run-1"), MustAbort)
    assert not one.ask(cancel("run-1"), Done).changed
    assert one.ask(finish(3, 1, Status.ABORTED, "run-1"), Finished).unqueued.run_id == "run-2"


@pytest.mark.parametrize("of", BOUNDS)
def test_the_bound_on_runs_counts_those_of_every_shard(sides: tuple[Side, Side], of: str) -> None:
    one, two = sides
    one.start("run-1", "t1")
    two.start("run-2", "t2")
    assert one.ask(create("run-3", "t3", **{of: 2}), TooManyRuns).limit == 2
    two.do(finish(1, 1, run_id="run-2"))
    one.ask(create("run-3", "t3", **{of: 2}), Created)
    two.ask(create("run-4", "t4", **{of: 2}), TooManyRuns)


@pytest.mark.parametrize("of", BOUNDS)
def test_two_shards_that_admit_at_once_do_not_take_the_same_room(
    server: PostgresServer, two_shards: Open, of: str
) -> None:
    """Each counts what is committed; so one counts after the other has committed, or waits."""
    sides = [Side(two_shards(), 0), Side(two_shards(), 1)]

    def admit(side: Side) -> list[Outcome]:
        while True:
            try:
                return side.do(create(f"run-{side.shard}", f"t{side.shard}", **{of: 1}))
            except StoreUnavailable:
                continue  # it waits for a second at most

    with ThreadPoolExecutor(2) as pool, server.admin() as admin:
        with admin.transaction():
            admin.execute("SELECT FROM outlast.meta FOR NO KEY UPDATE")
            asked = [pool.submit(admit, side) for side in sides]
            wait_until(lambda: server.waiting_for_locks() == len(sides), "both shards wait for their turn to count")
        outcomes = [outcome for answer in asked for outcome in answer.result()]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Created", "TooManyRuns"]


@pytest.mark.parametrize("of", BOUNDS)
def test_the_bound_on_runs_holds_whoever_is_first(sides: tuple[Side, Side], of: str) -> None:
    barrier = Barrier(2)
    bound = 3

    def admit(side: Side, turn: int) -> list[Outcome]:
        barrier.wait()
        names = [f"run-{turn}-{side.shard}-{place}" for place in range(2)]
        return side.do(*(create(name, f"thread-of-{name}", **{of: bound}) for name in names))

    with ThreadPoolExecutor(2) as pool:
        for turn in range(ROUNDS):
            answers = [pool.submit(admit, side, turn) for side in sides]
            outcomes = [outcome for answer in answers for outcome in answer.result()]
            made = [outcome.head.run_id for outcome in outcomes if isinstance(outcome, Created)]
            assert len(made) == bound, outcomes
            for run_id in made:
                sides[0].do(cancel(run_id), claim(0, "x", run_id, ClaimReason.CANCEL))
                sides[0].do(finish(1, 1, Status.ABORTED, run_id))


def test_a_supervisor_opened_on_one_shard_decides_on_both(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.start("run-1", "t1")
    two.start("run-2", "t2")

    def assign(run_id: str, supervisor: int) -> Op:
        return AssignOp(run_id=run_id, expected_epoch=1, supervisor_epoch=supervisor, max_attempts=9)

    assert one.ask(OpenSupervisor(claimant="a"), SupervisorOpened).epoch == 1
    two.ask(assign("run-2", 1), Assigned)
    assert one.ask(OpenSupervisor(claimant="b"), SupervisorOpened).epoch == 2
    assert two.ask(assign("run-2", 1), SupervisorStale).current_epoch == 2
    two.ask(assign("run-2", 2), Assigned)


def test_each_shard_lists_its_own_and_both_list_the_thread(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.start("run-1")
    two.do(create("run-2", THREAD, on_busy="enqueue"))
    assert [head.run_id for head in two.store.list_unfinished(0)] == ["run-1"]
    assert [head.run_id for head in one.store.list_unfinished(1)] == ["run-2"]
    for side in sides:
        assert [head.run_id for head, _ in side.store.list_thread(OWNER, THREAD)] == ["run-1", "run-2"]


def _at_once(*works: Callable[[], list[Outcome]]) -> list[list[Outcome]]:
    """Run each in an OS thread of its own, begun together."""
    barrier = Barrier(len(works))

    def meet(work: Callable[[], list[Outcome]]) -> list[Outcome]:
        barrier.wait(10)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [done.result(30) for done in [pool.submit(meet, work) for work in works]]


def test_of_two_creations_at_once_on_two_shards_one_has_the_thread(sides: tuple[Side, Side]) -> None:
    one, two = sides
    for turn in range(ROUNDS):
        thread, other = f"t-{turn}", f"u-{turn}"

        def both(side: Side, thread: str = thread, other: str = other) -> list[Outcome]:
            ops: list[Create] = [create(f"{name}-{side.shard}", name) for name in (thread, other)]
            return side.do(*(ops if side.shard else reversed(ops)))

        outcomes = [outcome for group in _at_once(lambda: both(one), lambda: both(two)) for outcome in group]
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Created"] * 2 + ["ThreadBusy"] * 2
        for name in (thread, other):
            active = one.store.find_active(OWNER, name)
            assert active is not None
            assert active.run_id in (f"{name}-0", f"{name}-1")


def test_a_run_queued_while_the_holder_ends_is_never_left_behind(sides: tuple[Side, Side]) -> None:
    """The finish must not miss a queue that another shard is just lengthening."""
    one, two = sides
    for turn in range(ROUNDS):
        thread, first, second = f"t-{turn}", f"a-{turn}", f"b-{turn}"
        one.start(first, thread)
        (ended,), (created,) = _at_once(
            lambda first=first: one.do(finish(1, 1, run_id=first)),  # type: ignore[misc]
            lambda second=second, thread=thread: two.do(create(second, thread, on_busy="enqueue")),  # type: ignore[misc]
        )
        assert isinstance(ended, Finished)
        assert isinstance(created, Created)
        active = two.store.find_active(OWNER, thread)
        assert active is not None
        assert active.run_id == second, "it waits for a thread that nobody holds"
        assert created.head.queued == (ended.unqueued is not None)


def test_a_run_cancelled_in_the_queue_while_the_holder_ends_is_ended_once(sides: tuple[Side, Side]) -> None:
    one, two = sides
    for turn in range(ROUNDS):
        thread, first, second = f"t-{turn}", f"a-{turn}", f"b-{turn}"
        one.start(first, thread)
        two.do(create(second, thread, on_busy="enqueue"), cancel(second), claim(0, "x", second, ClaimReason.CANCEL))
        (ended,), (aborted,) = _at_once(
            lambda first=first: one.do(finish(1, 1, run_id=first)),  # type: ignore[misc]
            lambda second=second: two.do(finish(1, 1, Status.ABORTED, second)),  # type: ignore[misc]
        )
        assert isinstance(ended, Finished)
        assert isinstance(aborted, Finished)
        assert _head(one.store, second).status is Status.ABORTED
        assert one.store.find_active(OWNER, thread) is None
        assert two.ask(create(f"c-{turn}", thread), Created).head.queued is False


def _asks(side: Side, run_id: str, thread_id: str) -> None:
    side.start(run_id, thread_id)
    side.ask(finish(1, 1, Status.INTERRUPTED, run_id), Finished)


def test_of_two_answers_at_once_one_takes_the_place_of_the_run_that_asked(sides: tuple[Side, Side]) -> None:
    """P23, where both answers and the question lie on different shards."""
    one, two = sides
    for turn in range(ROUNDS):
        thread, asked = f"t-{turn}", f"a-{turn}"
        _asks(one, asked, thread)
        outcomes = [
            outcome
            for (outcome,) in _at_once(
                lambda thread=thread: one.do(create(f"{thread}-0", thread, resumes=True)),  # type: ignore[misc]
                lambda thread=thread: two.do(create(f"{thread}-1", thread, resumes=True)),  # type: ignore[misc]
            )
        ]
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Created", "NothingToResume"]
        (created,) = [outcome for outcome in outcomes if isinstance(outcome, Created)]
        assert _head(two.store, asked).status is Status.COMPLETED
        assert _head(two.store, asked).next_seq == 2, "no chunk"
        active = two.store.find_active(OWNER, thread)
        assert active is not None
        assert active.run_id == created.head.run_id


def test_of_stop_and_an_answer_at_once_either_wins_and_never_both(sides: tuple[Side, Side]) -> None:
    one, two = sides
    for turn in range(ROUNDS):
        thread, asked, answer = f"t-{turn}", f"a-{turn}", f"b-{turn}"
        _asks(one, asked, thread)
        (stopped,), (answered,) = _at_once(
            lambda asked=asked: one.do(cancel(asked)),  # type: ignore[misc]
            lambda answer=answer, thread=thread: two.do(create(answer, thread, resumes=True)),  # type: ignore[misc]
        )
        assert isinstance(stopped, Done)
        taken = isinstance(answered, Created)
        assert stopped.changed != taken
        head = _head(one.store, asked)
        assert (head.status, head.cancel_requested) == (
            (Status.COMPLETED, False) if taken else (Status.INTERRUPTED, True)
        )
