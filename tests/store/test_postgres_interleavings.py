"""What comes between two steps of one commit of PostgresStore, on the model of its server: no real one can be stopped
at each of them (`tests/postgres/` has what a real one can show)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from postgres_side import THREAD, Side

from runtime.core.ops import (
    Appended,
    Assign,
    Assigned,
    Create,
    Created,
    Done,
    Finished,
    OpenSupervisor,
    SupervisorStale,
    ThreadBusy,
)
from runtime.core.record import Head
from runtime.errors import ShardSuperseded, StoreFull, StoreUnavailable
from runtime.testing.postgres_model import Fate, ModelServer
from runtime.testing.sample_ops import append, cancel, create, finish, live


class Steps:
    """Lets something happen at the n-th place at which others may come: 1 before it looks, 2 before it writes."""

    def __init__(self, server: ModelServer, place: int, deed: Callable[[], object]) -> None:
        self._left = place
        self._deed = deed
        self._server = server
        server.before = self._come

    def _come(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._server.before = lambda: None
            self._deed()


@pytest.fixture
def server() -> ModelServer:
    return ModelServer(shards=2)


@pytest.fixture
def one(server: ModelServer) -> Side:
    return Side(server, 0)


@pytest.fixture
def two(server: ModelServer) -> Side:
    return Side(server, 1)


def _head(side: Side, run_id: str) -> Head:
    record = side.store.read_run(run_id)
    assert record is not None
    return record[0]


def _active(side: Side) -> list[str]:
    return [head.run_id for head, _ in side.store.list_thread(_head(side, "run-1").owner, THREAD) if head.active]


@pytest.mark.parametrize("place", [1, 2])
def test_two_posts_for_one_thread_at_once_start_one_run(server: ModelServer, one: Side, two: Side, place: int) -> None:
    Steps(server, place, lambda: two.do(create("run-2", THREAD)))
    (outcome,) = one.do(create("run-1", THREAD, on_busy="enqueue"))
    assert isinstance(outcome, Created)
    assert outcome.head.queued, "it met the other at the index, and decided again"
    assert _active(one) == ["run-2"]


def test_a_second_post_that_meets_the_first_is_refused(server: ModelServer, one: Side, two: Side) -> None:
    Steps(server, 2, lambda: two.do(create("run-2", THREAD)))
    (outcome,) = one.do(create("run-1", THREAD))
    assert isinstance(outcome, ThreadBusy)


def test_what_another_shard_wrote_before_the_look_is_decided_anew(server: ModelServer, one: Side, two: Side) -> None:
    one.start("run-1")
    Steps(server, 1, lambda: two.do(_cancelling("run-2")))
    (outcome,) = one.do(append(live(1, 1, "a")))
    assert isinstance(outcome, Appended)
    assert outcome.head.cancel_requested, "the answer holds what the other wrote"


def test_nobody_writes_a_row_between_the_look_and_the_writing(server: ModelServer, one: Side, two: Side) -> None:
    one.start("run-1")
    refused = []

    def cancel_it() -> None:
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            two.do(_cancelling("run-2"))
        refused.append(True)

    Steps(server, 2, cancel_it)
    assert isinstance(one.do(append(live(1, 1, "a")))[0], Appended)
    assert refused
    two.do(_cancelling("run-2"))
    head = _head(one, "run-1")
    assert (head.next_seq, head.cancel_requested) == (2, True)


def test_no_supervisor_begins_between_the_look_and_the_writing_of_an_older_ones_decision(
    server: ModelServer, one: Side, two: Side
) -> None:
    one.do(OpenSupervisor(claimant="old"), create("run-1", THREAD))
    refused = []

    def begin() -> None:
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            two.do(OpenSupervisor(claimant="new"))
        refused.append(True)

    Steps(server, 2, begin)
    assign = Assign(run_id="run-1", supervisor_epoch=1, expected_epoch=0, max_attempts=8)
    assert isinstance(one.do(assign)[0], Assigned)
    assert refused
    two.do(OpenSupervisor(claimant="new"))
    assert isinstance(one.do(assign)[0], SupervisorStale)


def test_a_finish_and_a_cancel_of_who_is_next_lose_nothing(server: ModelServer, one: Side, two: Side) -> None:
    one.start("run-1")
    two.do(create("run-2", THREAD, on_busy="enqueue"))
    Steps(server, 1, lambda: two.do(cancel("run-2")))
    (outcome,) = one.do(finish(1, 1))
    assert isinstance(outcome, Finished)
    assert outcome.unqueued is not None
    assert outcome.unqueued.cancel_requested
    assert _active(one) == ["run-2"]


@pytest.mark.parametrize("place", [1, 2])
def test_a_new_incarnation_undoes_what_the_old_one_has_under_way(server: ModelServer, one: Side, place: int) -> None:
    one.start("run-1")
    Steps(server, place, lambda: Side(server, 0))
    with pytest.raises((StoreUnavailable, ShardSuperseded)):
        one.do(append(live(1, 1, "a")))
    assert _head(one, "run-1").next_seq == 1


@pytest.mark.parametrize("place", [1, 2])
def test_a_restart_of_the_server_undoes_what_is_under_way(server: ModelServer, one: Side, place: int) -> None:
    one.start("run-1")
    Steps(server, place, server.restart)
    with pytest.raises(StoreUnavailable):
        one.do(append(live(1, 1, "a")))
    assert _head(one, "run-1").next_seq == 1
    (outcome,) = one.do(append(live(1, 1, "a")))
    assert isinstance(outcome, Appended)
    assert not outcome.repeat


def test_what_a_broken_session_left_under_way_ends_before_anything_else_is_written(
    server: ModelServer, one: Side
) -> None:
    one.start("run-1")
    late: list[Callable[[], None]] = []
    server.later = late.append
    server.fate = lambda _statement: Fate.LATE
    with pytest.raises(StoreUnavailable):
        one.do(append(live(1, 1, "late")))
    server.fate = lambda _statement: Fate.ANSWERED
    one.do()
    late[0]()
    assert _head(one, "run-1").next_seq == 1, "its session had been ended"


def test_what_happens_late_and_before_the_repeat_is_found_by_it(server: ModelServer, one: Side) -> None:
    one.start("run-1")
    late: list[Callable[[], None]] = []
    server.later = late.append
    server.fate = lambda _statement: Fate.LATE
    with pytest.raises(StoreUnavailable):
        one.do(append(live(1, 1, "a")))
    server.fate = lambda _statement: Fate.ANSWERED
    assert _head(one, "run-1").next_seq == 1
    late[0]()
    (outcome,) = one.do(append(live(1, 1, "a")))
    assert isinstance(outcome, Appended)
    assert outcome.repeat
    assert _head(one, "run-1").next_seq == 2


@pytest.mark.parametrize(("fate", "error"), [(Fate.UNHEARD, StoreUnavailable), (Fate.NO_SPACE, StoreFull)])
def test_an_answer_that_was_lost_and_a_full_disk_are_told_apart(
    server: ModelServer, one: Side, fate: Fate, error: type[Exception]
) -> None:
    one.start("run-1")
    server.fate = lambda _statement: fate
    with pytest.raises(error):
        one.do(append(live(1, 1, "a")))
    server.fate = lambda _statement: Fate.ANSWERED
    (outcome,) = one.do(append(live(1, 1, "a")))
    assert isinstance(outcome, Appended)
    assert outcome.repeat == (fate is Fate.UNHEARD)


def test_while_the_server_is_down_nothing_is_written_or_read(server: ModelServer, one: Side) -> None:
    one.start("run-1")
    server.down = True
    with pytest.raises(StoreUnavailable):
        one.do(append(live(1, 1, "a")))
    with pytest.raises(psycopg.OperationalError):
        server.connect("anybody", calm=False)
    assert server.store(calm=True).read_run("run-1") is not None
    server.down = False
    assert isinstance(one.do(cancel("run-1"))[0], Done)


def _cancelling(run_id: str) -> Create:
    return create(run_id, THREAD, on_busy="cancel-previous")
