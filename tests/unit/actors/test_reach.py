"""A node is asked which hosts it reaches until it has told all."""

from __future__ import annotations

import asyncio

from actors.reach import AGAIN_S, MORE_S, WITHIN_S, Reach, Reached

ALL = Reached(frozenset({"local/a", "docker/a"}), True)
SOME = Reached(frozenset({"local/a"}), False)


class Asked:
    """Nodes that answer as a test says, at a time that it says."""

    def __init__(self, *answers: Reached | None) -> None:
        self.now = 100.0
        self.answers = list(answers)
        self.times = 0
        self.reach = Reach(self._ask, lambda: self.now)

    async def _ask(self, _node_id: str) -> Reached | None:
        self.times += 1
        return self.answers.pop(0)

    async def after(self, seconds: float, *, answers: bool = True) -> frozenset[str] | None:
        """Look at the node then; return what it reaches."""
        self.now += seconds
        self.reach.seen("a", answers=answers)
        for _ in range(3):
            await asyncio.sleep(0)
        return self.reach.of("a")


async def test_a_node_whose_engine_was_not_up_yet_is_asked_again_until_it_tells_all() -> None:
    node = Asked(SOME, SOME, ALL)
    assert await node.after(0) == SOME.hosts
    assert await node.after(MORE_S - 1) == SOME.hosts
    assert node.times == 1
    assert await node.after(1) == SOME.hosts
    assert await node.after(MORE_S) == ALL.hosts
    assert await node.after(10 * MORE_S) == ALL.hosts
    assert node.times == 3


async def test_also_the_node_of_who_asks() -> None:
    node = Asked(ALL)
    node.reach.tell("a", SOME)
    assert await node.after(0) == SOME.hosts
    assert node.times == 0
    assert await node.after(MORE_S) == ALL.hosts


async def test_what_was_told_stays_true_when_the_node_can_say_less_later() -> None:
    node = Asked(SOME, Reached(frozenset(), False))
    await node.after(0)
    assert await node.after(MORE_S) == SOME.hosts
    assert node.times == 2


async def test_a_node_that_does_not_say_is_asked_soon_and_taken_to_reach_nothing_at_last() -> None:
    node = Asked(None, None, ALL)
    assert await node.after(0) is None
    assert await node.after(AGAIN_S) is None
    assert await node.after(WITHIN_S, answers=False) == frozenset()
    assert node.times == 2
    assert await node.after(0) == ALL.hosts


async def test_a_node_that_comes_back_under_its_name_is_asked_anew() -> None:
    node = Asked(ALL, SOME)
    await node.after(0)
    node.reach.forget("a")
    assert node.reach.of("a") is None
    assert await node.after(0) == SOME.hosts
