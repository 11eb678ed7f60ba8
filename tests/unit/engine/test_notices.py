"""The ends of runs are told until everybody knows; whoever hangs or is down holds up nobody else."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from unit.engine.fleet_by_hand import Acts
from unit.engine.stage import RUN, claim, create, finish

from runtime.core import noticing
from runtime.core.ops import Note
from runtime.core.reap_ops import ReapStage
from runtime.core.record import Head, RunSpec, Status
from runtime.engine.notices import PAUSE_AFTER, Announcer, Nobody, Notices
from runtime.testing.sim_loop import elapse, play


class Town:
    """Who is to be told. `deaf` never answer, `down` always say no."""

    def __init__(self, *names: str) -> None:
        self.all = set(names)
        self.deaf: set[str] = set()
        self.down: set[str] = set()
        self.heard: list[tuple[str, str]] = []
        self.asked: Counter[str] = Counter()
        self.gone = False

    async def names(self) -> frozenset[str]:
        if self.gone:
            raise ConnectionError("no process of hooks")
        return frozenset(self.all)

    async def tell(self, name: str, head: Head, spec: RunSpec) -> bool:
        del spec
        self.asked[name] += 1
        if name in self.deaf:
            await elapse(20.0)
            raise TimeoutError
        if name in self.down:
            return False
        self.heard.append((name, head.run_id))
        return True


class Square:
    """A shard with runs that have ended, and who tells of them."""

    acts: Acts
    town: Town
    notices: Notices

    @classmethod
    async def open(cls, town: Announcer, *runs: str) -> Square:
        self = cls()
        self.acts = await Acts.open(lease_ttl_s=1e6)
        self.notices = await self.another(town, self.acts.supervisor)
        for run_id in runs or (RUN,):
            await self.end(run_id)
        return self

    async def another(self, town: Announcer, supervisor: object = None) -> Notices:
        chosen = supervisor or await self.acts.another("successor")
        shard = self.acts.shard
        return Notices(chosen, {0: shard}, lambda _run_id: shard, self.acts.stage.loop, town)  # type: ignore[arg-type]

    async def end(self, run_id: str) -> None:
        await self.acts.shard.submit(create(run_id, run_id))
        await self.acts.shard.submit(claim(run_id=run_id))
        ending = finish(1, run_id=run_id)
        await self.acts.shard.submit(type(ending)(batch=ending.batch, status=Status.COMPLETED, tell=True))

    async def turns(self, seconds: float, notices: Notices | None = None) -> None:
        for _ in range(int(seconds)):
            await (notices or self.notices).turn()
            await elapse(1.0)

    async def close(self) -> None:
        await self.notices.close()
        await self.acts.supervisor.close()


def test_everybody_is_told_once() -> None:
    async def acts() -> None:
        town = Town("a", "b")
        square = await Square.open(town, RUN, "run-2")
        await square.turns(30)
        assert sorted(town.heard) == [("a", RUN), ("a", "run-2"), ("b", RUN), ("b", "run-2")]
        assert square.acts.stage.head().notice is None
        assert square.notices.counts == {"told": 4, "given_up": 0}
        await square.close()

    play(1, acts())


def test_who_is_down_is_asked_again_and_the_others_are_not() -> None:
    async def acts() -> None:
        town = Town("a", "b")
        town.down = {"b"}
        square = await Square.open(town)
        await square.turns(20)
        assert town.heard == [("a", RUN)]
        assert 3 <= town.asked["b"] <= 5
        town.down.clear()
        await square.turns(40)
        assert town.heard == [("a", RUN), ("b", RUN)]
        assert town.asked["a"] == 1
        await square.close()

    play(1, acts())


def test_who_hangs_holds_up_no_other_run() -> None:
    async def acts() -> None:
        town = Town("a", "deaf")
        town.deaf = {"deaf"}
        square = await Square.open(town)
        await square.turns(1)
        for number in range(5):
            await square.end(f"run-{number + 2}")
        await square.turns(3)
        assert len(town.heard) == 6
        await square.turns(40)
        assert "deaf" in square.notices._paused
        assert square.notices._failures["deaf"] >= PAUSE_AFTER
        await square.close()

    play(1, acts())


def test_a_supervisor_that_dies_in_an_attempt_is_followed_by_another_attempt() -> None:
    async def acts() -> None:
        town = Town("a")
        town.deaf = {"a"}
        square = await Square.open(town)
        await square.turns(2)
        assert town.asked["a"] == 1
        await square.notices.close()  # in the middle of it
        town.deaf.clear()
        successor = await square.another(town)
        await square.turns(10, successor)
        assert town.heard == [("a", RUN)]
        await square.turns(5)  # the old one goes on, and decides nothing
        assert town.heard == [("a", RUN)]
        await successor.close()
        await square.close()

    play(1, acts())


def test_an_older_supervisor_tells_nobody() -> None:
    async def acts() -> None:
        town = Town("a")
        square = await Square.open(town)
        await square.acts.another("successor")
        await square.turns(5)
        assert town.heard == []
        assert square.acts.supervisor.stale.is_set()
        await square.close()

    play(1, acts())


def test_while_nobody_can_be_told_nothing_is_tried_and_nothing_lost() -> None:
    async def acts() -> None:
        town = Town("a")
        town.gone = True
        square = await Square.open(town)
        await square.turns(100)
        notice = square.acts.stage.head().notice
        assert notice is not None
        assert notice.attempts == 0
        town.gone = False
        await square.turns(2)
        assert town.heard == [("a", RUN)]
        await square.close()

    play(1, acts())


def test_who_cannot_be_told_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noticing, "MOST_AGE_MS", 60_000)

    async def acts() -> None:
        town = Town("a", "b")
        town.down = {"b"}
        square = await Square.open(town)
        await square.turns(60)
        assert square.acts.stage.head().notice is not None
        await square.turns(60)
        assert square.acts.stage.head().notice is None
        assert square.notices.counts["given_up"] == 1
        assert town.asked["b"] <= 6
        await square.close()

    play(1, acts())


@pytest.mark.parametrize("reachable", [True, False])
def test_an_end_and_its_account_wait_for_one_another_by_nothing(reachable: bool) -> None:
    async def acts() -> None:
        town = Town("a")
        town.gone = True
        square = await Square.open(town)
        await square.acts.shard.submit(Note(run_id=RUN, epoch=1, destroy_pending=False))
        town.gone = not reachable
        await square.turns(2)
        assert town.heard == ([("a", RUN)] if reachable else [])
        now_ms = square.acts.stage.loop.wall_ms()
        accounts = await square.acts.shard.reapable(ReapStage.ACCOUNT, now_ms, 10)
        assert [head.run_id for head in accounts] == [RUN]
        await square.close()

    play(1, acts())


def test_without_anybody_to_tell_what_is_owed_is_dropped() -> None:
    async def acts() -> None:
        square = await Square.open(Nobody())
        await square.turns(2)
        assert square.acts.stage.head().notice is None
        await square.close()

    play(1, acts())


def test_closing_ends_every_attempt() -> None:
    async def acts() -> None:
        town = Town("a")
        town.deaf = {"a"}
        square = await Square.open(town)
        await square.turns(1)
        await square.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("tell of")]

    play(1, acts())


@pytest.mark.parametrize("attempts", [0, 3])
def test_what_is_too_old_is_given_up_where_nobody_can_be_named_for_long(
    monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    monkeypatch.setattr(noticing, "MOST_AGE_MS", 900_000)

    async def acts() -> None:
        town = Town("a")
        town.down = {"a"}
        square = await Square.open(town)
        while town.asked["a"] < attempts:
            await square.turns(1)
        town.gone = True
        await square.turns(850)
        assert square.acts.stage.head().notice is not None
        await square.turns(200)
        assert square.acts.stage.head().notice is None
        assert square.notices.counts["given_up"] == 1
        await square.close()

    play(1, acts())


def test_an_instance_that_was_stopped_for_long_waits_for_its_hooks_before_it_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noticing, "MOST_AGE_MS", 900_000)

    async def acts() -> None:
        town = Town("a")
        square = await Square.open(town)
        await elapse(1000.0)
        town.gone = True
        await square.turns(60)
        assert square.acts.stage.head().notice is not None
        town.gone = False
        await square.turns(2)
        assert town.heard == [("a", RUN)]
        await square.close()

    play(1, acts())
