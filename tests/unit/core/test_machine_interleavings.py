"""Every interleaving of two drivers, a canceller, and lost replies, walked in full (I1, I3, I5).

The drivers are the worst there can be: paused at any step for any time, they go on as if nothing had happened, and no
refusal of a write stops them (in production one latches them shut). Each may do its latest step again, as one does
whose reply was lost. The walk visits every state that can be reached, and checks each step on the way. The last tests
break the machine on purpose: a checker that lets a mutant pass checks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from runtime.core import creating, writing
from runtime.core.batch import Batch
from runtime.core.ops import Append, Appended, Claimed, ClaimRun, Finish, Finished, MustAbort, Op, Outcome, Superseded
from runtime.core.record import Head, Status
from runtime.testing.dict_view import DictView
from runtime.testing.sample_ops import RUN, append, cancel, claim, create, ending, finish, live


class Driver(NamedTuple):
    """What a driver knows. `done` counts its steps: claim, appends, finish."""

    name: str
    appends: int
    epoch: int = 0
    seq: int = 0
    done: int = 0
    must_abort: bool = False
    last: tuple[Op, type[object]] | None = None  # the latest step and its answer: it may be sent once more

    @property
    def ended(self) -> bool:
        """True when it has nothing more to do of its own accord."""
        return self.done > self.appends + 1

    def next_ops(self, view: DictView) -> list[Op]:
        """Return its next step, made from what it knows; a claim from any epoch that its supervisor may have seen."""
        if self.done == 0:
            return [claim(expected, self.name) for expected in range(view.heads[RUN].driver_epoch + 1)]
        if self.done <= self.appends:
            return [append(live(self.seq, self.epoch, f"{self.name}{self.done}"))]
        status = Status.ABORTED if self.must_abort else Status.COMPLETED
        return [finish(self.seq, self.epoch, status, batch=ending(self.seq, self.epoch))]

    def after(self, op: Op, outcome: Outcome) -> Driver:
        """Return what it knows after the answer, which it takes as a success unless told how to do it otherwise."""
        if isinstance(outcome, MustAbort):
            return self._replace(must_abort=True, last=(op, MustAbort))
        if isinstance(op, ClaimRun) and not isinstance(outcome, Claimed):
            return self._replace(
                done=self.appends + 2, last=(op, type(outcome))
            )  # it never held an epoch to write under
        seq, epoch = self.seq, self.epoch
        if isinstance(outcome, Claimed):
            epoch, seq = outcome.head.driver_epoch, outcome.head.next_seq
        elif isinstance(op, Append):
            seq = outcome.next_seq if isinstance(outcome, Appended) else seq + op.batch.count
        return self._replace(epoch=epoch, seq=seq, done=self.done + 1, last=(op, type(outcome)))


class World(NamedTuple):
    """One state: the store's rows, both drivers, and whether the cancel was sent."""

    view: DictView
    drivers: tuple[Driver, ...]
    cancel_sent: bool

    def key(self) -> tuple[object, ...]:
        """Return what tells this state from another."""
        rows = tuple(self.view.heads.values()), tuple(self.view.batches.values())
        return rows, self.drivers, self.cancel_sent


def _steps(world: World) -> Iterator[tuple[Op, int | None, bool]]:
    """Yield every step that can come next: (operation, driver, is a repeat)."""
    for place, driver in enumerate(world.drivers):
        if not driver.ended:
            for op in driver.next_ops(world.view):
                yield op, place, False
        if driver.last is not None:
            yield driver.last[0], place, True
    if not world.cancel_sent:
        yield cancel(), None, False


def _take(world: World, op: Op, place: int | None, repeat: bool) -> World:
    view = world.view.copy()
    before = view.heads[RUN]
    outcome = view.do(op)
    _check(world.view, view, before, op, outcome)
    if place is None:
        return World(view, world.drivers, cancel_sent=True)
    driver = world.drivers[place]
    if repeat and driver.last is not None:
        _check_repeat(world.view, view, driver, outcome, driver.last[1])
    known = driver._replace(last=None) if repeat else driver.after(op, outcome)
    return World(view, (*world.drivers[:place], known, *world.drivers[place + 1 :]), world.cancel_sent)


def _check(old: DictView, new: DictView, before: Head, op: Op, outcome: Outcome) -> None:
    after = new.heads[RUN]
    epoch = op.batch.epoch if isinstance(op, Append | Finish) else None
    if epoch is not None and epoch != before.driver_epoch:
        assert isinstance(outcome, Superseded), f"I1: epoch {epoch} was answered {outcome}"
    if isinstance(op, ClaimRun) and op.expected_epoch + 1 < before.driver_epoch:
        assert isinstance(outcome, Superseded), "I1: an old claim came back"
    if isinstance(outcome, Superseded):
        assert new.rows() == old.rows(), "I1: a refusal wrote"
    log, longer = old.log(RUN), new.log(RUN)
    assert longer[: len(log)] == log, "I3: what was stored changed"
    assert [batch.seq for batch in longer] == _places(longer), "I3: a gap or an overlap"
    assert after.next_seq == longer[-1].next_seq
    assert [batch.epoch for batch in longer] == sorted(batch.epoch for batch in longer), "I1: an old epoch wrote late"
    if before.closed:
        assert longer == log, "I5: something follows the end"
        assert (after.status, after.finish, after.finished_at) == (before.status, before.finish, before.finished_at)
    if isinstance(outcome, Finished) and not outcome.repeat:
        assert not before.closed, "I5: a second ending"
    if after.status.terminal and not before.status.terminal:
        wanted = Status.ABORTED if before.cancel_requested else Status.COMPLETED
        assert after.status is wanted, "P9: the ending is not what the cancel says"


def _check_repeat(old: DictView, new: DictView, driver: Driver, outcome: Outcome, first: type[object]) -> None:
    assert new.rows() == old.rows(), "P7: a repeat wrote"
    if driver.epoch == old.heads[RUN].driver_epoch:
        assert type(outcome) is first, f"P7: a repeat was answered {outcome}, first {first}"


def _places(log: list[Batch]) -> list[int]:
    places, seq = [], 0
    for batch in log:
        places.append(seq)
        seq += batch.count
    return places


def walk(names: str, appends: int) -> tuple[int, list[World]]:
    """Visit every reachable state; return how many there are, and those in which nothing can happen any more."""
    view = DictView()
    view.do(create())
    pending = [World(view, tuple(Driver(name, appends) for name in names), cancel_sent=False)]
    seen = {pending[0].key()}
    final: list[World] = []
    while pending:
        world = pending.pop()
        steps = list(_steps(world))
        if not steps:
            final.append(world)
        for op, place, repeat in steps:
            reached = _take(world, op, place, repeat)
            if reached.key() not in seen:
                seen.add(reached.key())
                pending.append(reached)
    return len(seen), final


@pytest.mark.parametrize(("names", "appends", "least"), [("ab", 3, 1_000), ("abc", 1, 15_000)])
def test_no_interleaving_breaks_an_invariant(names: str, appends: int, least: int) -> None:
    states, final = walk(names, appends)
    assert states > least, "the walk was cut short"
    assert all(world.view.heads[RUN].status.terminal for world in final), "I5: a run without an ending"
    endings = {world.view.heads[RUN].status for world in final}
    assert endings == {Status.COMPLETED, Status.ABORTED}
    histories = {tuple(entry.claimant.claimant for entry in world.view.heads[RUN].claims) for world in final}
    assert histories >= {("a",), ("b",), ("a", "b"), ("b", "a")}


def _never_superseded(head: Head, epoch: int) -> bool:
    return True


def _no_refusal(head: Head, op: Finish) -> None:
    return None


def _no_repeat(view: DictView, batch: Batch) -> None:
    return None


def _forgetful(head: Head, op: ClaimRun) -> bool:
    return False


@pytest.mark.parametrize(
    ("module", "name", "mutant", "broken"),
    [
        (writing, "holds", _never_superseded, "I1"),
        (writing, "_finish_refusal", _no_refusal, "I5|P9|I3"),
        (writing, "_repeat_of", _no_repeat, "P7"),
        (creating, "_is_first_answer", _forgetful, "P7"),
    ],
    ids=["no epoch check", "no check of a finish", "no repeat of an append", "no repeat of a claim"],
)
def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, mutant: object, broken: str
) -> None:
    monkeypatch.setattr(module, name, mutant)
    with pytest.raises(AssertionError, match=broken):
        walk("ab", 2)
